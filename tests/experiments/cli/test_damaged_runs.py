"""Damaged runs are neither evaluated nor resumed: one message, and their files stay as they are."""

import shutil

import pytest

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


@pytest.mark.parametrize(("verb", "name"), [("evaluate", "best.pt"), ("train", "last.pt"), ("export", "best.pt")])
@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_checkpoint(command, kep, tmp_path, verb, name, damage, contents):
    whole = (kep / name).read_bytes()
    (kep / name).write_bytes({"cut": whole[: len(whole) // 2], "text": b"not a checkpoint\n"}[damage])
    before = contents(kep)
    more = {"train": ["train", "--out", kep, "--resume"], "export": ["export", kep, "--out", tmp_path]}
    code, text, err = command(*more.get(verb, [verb, kep]))
    assert (code, text) == (1, "")
    assert err.startswith("error: ")
    assert str(kep / name) in err
    assert contents(kep) == before


def test_a_checkpoint_of_another_network_is_not_evaluated(command, kep, trained):
    shutil.copy(trained[SOFTMAX] / "best.pt", kep / "best.pt")
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert str(kep / "best.pt") in err
    assert not (kep / "scores.csv").exists()


def test_a_run_without_a_whole_epoch(command, kep, contents, is_one_message):
    (kep / "best.pt").unlink()
    (kep / "last.pt").unlink()
    before = contents(kep)
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert is_one_message(err, kep, "no best.pt", "--resume")
    assert contents(kep) == before


@pytest.mark.parametrize("text", ["", '{"name": "digits/kep', "[]", "{}", '{"name": "a", "settings": {"layer": 3}}'])
@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_broken_settings(command, kep, text, verb, contents):
    (kep / "settings.json").write_text(text, encoding="utf-8")
    before = contents(kep)
    code, _, err = command(*(["evaluate", kep] if verb == "evaluate" else ["train", "--out", kep, "--resume"]))
    assert code == 1
    assert err.startswith("error: ")
    assert str(kep / "settings.json") in err
    assert contents(kep) == before
