"""Damaged runs are neither evaluated nor resumed: one message, and their files stay as they are."""

import json
import shutil

import pytest
import torch

from probattn.inference.io import checkpoint

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def damage_checkpoint(path, damage):
    if damage == "missing weight":
        content = torch.load(path)
        del content["model"]["network.head.bias"]
        torch.save(content, path)
    else:
        whole = path.read_bytes()
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not a checkpoint\n"}[damage])


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "missing weight"])
def test_a_damaged_checkpoint_is_not_resumed_from(command, kep, damage, assignments, tiny, contents):
    damage_checkpoint(kep / "last.pt", damage)
    before = contents(kep)
    code, _, err = command("train", KEP, "--out", kep, "--resume", *assignments(tiny))
    assert code == 1
    assert err.startswith("error: ")
    assert str(kep / "last.pt") in err
    assert contents(kep) == before


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "missing weight"])
def test_a_damaged_checkpoint_is_not_evaluated(command, kep, damage, contents):
    damage_checkpoint(kep / "best.pt", damage)
    before = contents(kep)
    code, text, err = command("evaluate", kep)
    assert (code, text) == (1, "")
    assert err.startswith("error: ")
    assert str(kep / "best.pt") in err
    assert contents(kep) == before


def test_a_checkpoint_of_another_network_is_not_evaluated(command, kep, trained):
    shutil.copy(trained[SOFTMAX] / "best.pt", kep / "best.pt")
    (kep / "last.pt").unlink()
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert err.startswith(f"error: {kep / 'best.pt'} is of another architecture")
    assert "network.blocks.1.attention" in err
    assert not (kep / "metrics.json").exists()


def test_evaluate_of_a_folder_without_a_run(command, tmp_path, contents, is_one_message):
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, text, err = command("evaluate", folder)
        assert (code, text) == (1, "")
        assert is_one_message(err, folder, "holds no run", "settings.json")
    assert contents(tmp_path) == {}
    assert not (tmp_path / "nowhere").exists()


def test_evaluate_of_a_run_without_a_whole_epoch(command, kep, contents, is_one_message):
    (kep / "best.pt").unlink()
    (kep / "last.pt").unlink()
    before = contents(kep)
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert is_one_message(err, kep, "no best.pt", "no epoch", "--resume")
    assert contents(kep) == before


@pytest.mark.parametrize("best_is_last", [True, False])
def test_the_advice_about_a_lost_best_checkpoint_works(command, kep, best_is_last, assignments, tiny, contents):
    last = checkpoint.read(kep / "last.pt")
    last["extra"]["best_epoch"] = last["extra"]["epoch"] - (not best_is_last)
    checkpoint.write(kep / "last.pt", last)
    (kep / "best.pt").unlink()
    before = contents(kep)
    resume = ["train", KEP, "--out", kep, "--resume", *assignments(tiny)]
    code, _, err = command("evaluate", kep)
    assert code == 1
    if best_is_last:
        assert "train --resume" in err
    else:
        assert f"by copying {kep / 'last.pt'} to {kep / 'best.pt'}, and resume" in err
        assert command(*resume)[0] == 1
        assert contents(kep) == before
        shutil.copy(kep / "last.pt", kep / "best.pt")
    assert command(*resume)[0] == 0
    assert command("evaluate", kep)[0] == 0
    assert json.loads((kep / "metrics.json").read_text(encoding="utf-8"))["best_epoch"] == last["extra"]["epoch"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["settings.json"]),
        ('{"name": "digits/kep', ["settings.json"]),
        ("[]", ["settings.json"]),
        ("{}", ["settings.json", "name: field required", "settings: field required"]),
        ('{"name": "digits/kep-svgp", "settings": {"layer": {"name": "mystery"}}}', ["settings.json", "mystery"]),
        ("\x00\ufffd", ["settings.json"]),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_broken_settings(command, kep, text, words, verb, assignments, tiny, contents, is_one_message):
    (kep / "settings.json").write_text(text, encoding="utf-8")
    before = contents(kep)
    more = ["--resume", *assignments(tiny)]
    code, _, err = command(*(["evaluate", kep] if verb == "evaluate" else ["train", KEP, "--out", kep, *more]))
    assert code == 1
    assert is_one_message(err, kep, *words)
    assert contents(kep) == before


def test_a_setting_of_the_wrong_kind_is_named(command, kep, is_one_message):
    content = json.loads((kep / "settings.json").read_text(encoding="utf-8"))
    content["settings"]["layer"]["rank"] = "8"
    (kep / "settings.json").write_text(json.dumps(content), encoding="utf-8")
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert is_one_message(err, kep / "settings.json", "layer.rank", "'8'")
