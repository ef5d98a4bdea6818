"""Damaged runs are neither evaluated nor resumed: one message, and their files stay as they are."""

import shutil

import pytest

from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.inference.io import checkpoint
from probattn.inference.io.files import write_archive

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def damage_checkpoint(path, damage):
    if damage == "missing weight":
        content = checkpoint.read(path)
        del content["model"]["network.head.bias"]
        write_archive(path, content)
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["settings.json"]),
        ('{"name": "digits/kep', ["settings.json"]),
        ("[]", ["settings.json"]),
        ("\x00\ufffd", ["settings.json"]),
        ({}, ["settings.json", "name: field required", "settings: field required"]),
        ({"name": "digits/kep-svgp", "settings": {"layer": {"name": "mystery"}}}, ["settings.json", "mystery"]),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_broken_settings(command, kep, text, words, verb, assignments, tiny, contents, is_one_message):
    if isinstance(text, str):
        (kep / "settings.json").write_text(text, encoding="utf-8")
    else:
        write_json(kep / "settings.json", text)
    before = contents(kep)
    more = ["--resume", *assignments(tiny)]
    code, _, err = command(*(["evaluate", kep] if verb == "evaluate" else ["train", KEP, "--out", kep, *more]))
    assert code == 1
    assert is_one_message(err, kep, *words)
    assert contents(kep) == before


def test_a_setting_of_the_wrong_kind_is_named(command, kep, is_one_message):
    content = read_json(kep / "settings.json")
    content["settings"]["layer"]["rank"] = "8"
    write_json(kep / "settings.json", content)
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert is_one_message(err, kep / "settings.json", "layer.rank", "'8'")


@pytest.mark.parametrize("environment", [[], ["3.11"], "3.11", None, {"python": 3}, {"python": ["3.11"]}], ids=repr)
def test_an_environment_of_another_type_is_named(command, kep, environment, is_one_message):
    write_json(kep / "settings.json", read_json(kep / "settings.json") | {"environment": environment})
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert is_one_message(err, kep / "settings.json", "environment")


@pytest.mark.parametrize("verb", ["evaluate", "train", "compare", "export"])
def test_edited_settings_are_refused(command, kep, verb, assignments, tiny, contents, is_one_message, tmp_path):
    path = kep / "settings.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3'))
    before = contents(kep)
    arguments = {
        "train": ["train", KEP, "--out", kep, "--resume", *assignments(tiny)],
        "export": ["export", kep, "--out", tmp_path / "a.safetensors"],
    }
    code, _, err = command(*arguments.get(verb, [verb, kep]))
    assert code == 1
    assert is_one_message(err, path, "damaged or was edited", "restore the file that the run was started with")
    assert contents(kep) == before
