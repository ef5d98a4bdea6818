"""`probattn train` refuses bad input: one message, exit code 1, and files on disk stay as they are."""

import pytest
import torch
from PIL import Image

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


@pytest.mark.parametrize(
    ("preset", "changes", "words"),
    [
        ("digits/kepsvgp", [], ["unknown preset 'digits/kepsvgp'", "did you mean digits/kep-svgp", "probattn presets"]),
        (KEP, ["train.epoch=3"], ["unknown key 'train.epoch'", "did you mean train.epochs"]),
        (KEP, ["train.epochs=many"], ["train.epochs: input should be a valid integer", "got 'many'"]),
        (KEP, ["layer.merge=sum"], ["layer.merge: input should be 'add', 'concat' or 'concat_lowrank', got 'sum'"]),
        (KEP, ["train.epochs"], ["--set takes key=value, got 'train.epochs'"]),
        (KEP, ["train.epochs=0"], ["epochs=0"]),
        (KEP, ["layer.rank=100"], ["rank", "1..16", "100"]),
        (KEP, ["layer.rank=17", "network.dim=128", "network.patch_size=4"], ["rank of at most the 4 tokens", "got 17"]),
        (KEP, ["network.heads=3"], ["dim=64", "heads=3"]),
        (KEP, ["network.patch_size=3"], ["patch_size 3", "image_size 8"]),
        (KEP, ["network.patch_size=0"], ["network.patch_size: input should be greater than 0, got '0'"]),
        (KEP, ["network.dropout=2"], ["dropout"]),
        (KEP, ["layer.last=9"], ["last 9 of 4 blocks"]),
        (KEP, ["data.name=mnist"], ["unknown data set 'mnist'", "digits, cifar10, cifar100"]),
        (KEP, ["data.limit=0"], ["data.limit: input should be greater than 0, got '0'"]),
        (KEP, ["train.accelerator=warp"], ["warp", "cpu"]),
    ],
)
def test_wrong_arguments_of_train(command, tmp_path, preset, changes, words, assignments, is_one_message):
    code, text, err = command("train", preset, "--out", tmp_path / "run", *assignments(changes))
    assert (code, text) == (1, "")
    assert is_one_message(err, *words)
    if changes != ["train.accelerator=warp"]:  # known only when training starts
        assert not (tmp_path / "run").exists(), "a run that cannot start must not claim its folder"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu(command, tmp_path, is_one_message):
    code, _, err = command("train", KEP, "--out", tmp_path / "run", "--set", "train.accelerator=cuda")
    assert code == 1
    assert is_one_message(err, "train.accelerator=cuda", "no GPU", "auto or cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_network")
def test_missing_data(command, tmp_path, is_one_message):
    root = tmp_path / "empty"
    root.mkdir()
    code, _, err = command("train", "kep-svgp/cifar10", "--data", root, "--out", tmp_path / "run")
    assert code == 1
    assert is_one_message(err, "CIFAR-10", root, "no network", "--data", "PROBATTN_DATA")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_network")
def test_half_written_data(command, tmp_path, contents, is_one_message):
    for part in ("train", "test"):
        (tmp_path / "cifar10" / part / "cat").mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "cifar10" / part / "cat" / "1.png")
    before = contents(tmp_path)
    code, _, err = command("train", "kep-svgp/cifar10", "--data", tmp_path, "--out", tmp_path / "run")
    assert code == 1
    assert is_one_message(err, tmp_path / "cifar10", "CIFAR-10", "expected 50,000")
    assert contents(tmp_path) == before


def test_a_folder_that_holds_a_run(command, kep, assignments, tiny, contents, is_one_message):
    before = contents(kep)
    code, text, err = command("train", KEP, "--out", kep, *assignments(tiny))
    assert (code, text) == (1, "")
    assert is_one_message(err, kep, "holds a run", "--resume", "--out")
    assert contents(kep) == before


def test_a_folder_that_holds_a_run_of_other_settings(command, kep, assignments, tiny, contents, is_one_message):
    before = contents(kep)
    changes = assignments([*tiny, "train.epochs=3", "layer.rank=3"])
    code, text, err = command("train", KEP, "--out", kep, "--resume", *changes)
    assert (code, text) == (1, "")
    assert is_one_message(err, kep, "train.epochs: 2 → 3", "layer.rank: 8 → 3", "--out")
    assert contents(kep) == before


def test_a_folder_that_holds_the_twin(command, kep, assignments, tiny, contents, is_one_message):
    before = contents(kep)
    code, _, err = command("train", SOFTMAX, "--out", kep, "--resume", *assignments(tiny))
    assert code == 1
    assert is_one_message(err, kep, "layer.name: 'kep-svgp' → 'softmax'")
    assert contents(kep) == before


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_folder_that_holds_other_files(command, tmp_path, resume, assignments, tiny, contents, is_one_message):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = command("train", KEP, "--out", tmp_path, *resume, *assignments(tiny))
    assert code == 1
    assert is_one_message(err, tmp_path, "not an empty folder", "--out")
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_a_file_in_place_of_the_folder(command, tmp_path, assignments, tiny, contents, is_one_message):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    code, _, err = command("train", KEP, "--out", tmp_path / "file", *assignments(tiny))
    assert code == 1
    assert is_one_message(err, tmp_path / "file", "--out")
    code, _, err = command("train", KEP, "--out", tmp_path / "file" / "run", *assignments(tiny))
    assert code == 1
    assert is_one_message(err, tmp_path / "file" / "run", "cannot write", "choose another")
    assert contents(tmp_path) == {"file": b"mine"}
