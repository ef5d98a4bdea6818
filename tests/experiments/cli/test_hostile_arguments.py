"""Hostile arguments: each is refused by one short message that names what is wrong, and nothing is left behind."""

import os
import random

import pytest

from tests.fuzz.arguments import ACCEPTED, KEP, check, furnish, fuzz_arguments, run, without_work

BIG, ESC, BYTE = "9" * 30, "\x1b[31mred", "\udcff"
SHOWN = r"\x1b[31mred"
TRAIN = ["train", KEP, "--out", "{tmp}/new"]
EVALUATE = ["evaluate", "{run}"]


def each(command, *values):
    """The command with each of the values as its last argument."""
    return [[*command, value] for value in values]


def changes(key, *values):
    return each([*TRAIN, "--set"], *(f"{key}={value}" for value in values))


ROWS = {
    # names
    "unknown preset": each(["train"], "", " ", "..", "x" * 5000),
    SHOWN: [["train", ESC], ["reproduce", ESC], ["demo", "--layers", ESC], ["train", f"--{ESC}"]],
    r"\udcff": each(["train"], BYTE),
    r"\u202e": each(["train"], "\u202edcba"),
    "--list": each(["reproduce"], "", "..", "x" * 5000),
    "red": [[*EVALUATE, "--method", f"laplace+{ESC}"], [*EVALUATE, "--ood", ESC], ["train", KEP, "--layer", ESC]],
    "method": each([*EVALUATE, "--method"], "laplace,,temperature", "laplac"),
    "svhn": each([*EVALUATE, "--ood"], "svhnn"),
    "probattn --help": [["nothing"], ["--nothing"]],
    "--config": [["train"], ["train", "--config", "{tmp}/nowhere.yaml"]],
    # numbers
    "--seeds": [["study", "--seeds"], *each(["study", "--seeds"], "", "nan", "0", "-1", "1.5", BIG)],
    "--workers": each(["study", "--workers"], "", "0", BIG),
    "--epochs": [*each(["study", "--epochs"], BIG, "nan"), *each(["demo", "--epochs"], "-1", BIG, "1e3")],
    "--num-samples": each([*EVALUATE, "--num-samples"], "0", BIG, "nan"),
    "--seed": [*each([*EVALUATE, "--seed"], "-1", BIG, str(2**63), "x")],
    "--rounds": each(["bench", "layers", "--rounds"], "0", BIG),
    "--device": each(["bench", "layers", "--device"], ESC, "tpu"),
    "severit": each([*EVALUATE, "--shift", "--severities"], "", "x", "1,2", "0", "6", BIG),
    # settings
    "--set takes key=value": each([*TRAIN, "--set"], "", ESC, "train.epochs"),
    "unknown": each([*TRAIN, "--set"], "=", "=1", f"{ESC}=1", "train.epochs.x=1"),
    "epochs": changes("train.epochs", "", "nan", "none", "1.5", ESC, "0", "-1", BIG),
    "lr": changes("train.lr", "nan", "inf", "1e400", ""),
    "seed": [*changes("train.seed", "-1", BIG, str(2**63)), *changes("data.seed", "-1", BIG, "1.5")],
    "devices": changes("train.devices", "", "0", "-1", "nan", "cuda", "1,", "7,8", "1.5", "[0]", BIG, ESC, "2"),
    "accelerator": changes("train.accelerator", "", ESC, "warp"),
    "num_samples": changes("train.num_samples", "0", BIG),
    "dropout": changes("network.dropout", "nan", "inf", "-0.1", "1", "2"),
    "dim": [
        *changes("network.dim", "0", "-1", "nan", BIG, "none"),
        *changes("network.mlp_dim", BIG),
    ],
    "depth": changes("network.depth", "0", BIG),
    "heads": changes("network.heads", "3", "10000000", BIG),
    "patch_size": changes("network.patch_size", "0", "3", "10000000", BIG),
    "data.": [*changes("data.batch_size", "0", BIG), *changes("data.limit", "0", BIG)],
    "rank": changes("layer.rank", "0", "100", "10000000", BIG),
    "last": changes("layer.last", "9", "10000000", BIG),
    "scale": changes("layer.scale", "0", "-1", "nan"),
    "data": changes("data.name", "", "mnist", ESC, BYTE),
    # paths
    "--out": [
        *each(["train", KEP, "--out"], "{tmp}/file", "{tmp}/fifo", "/dev/null"),
        *([command, "{run}", "--out", "{tmp}/file"] for command in ("compare", "study", "demo")),
        ["reproduce", "cgp/table-1", "--out", "{tmp}/file"],
        ["bench", "layers", "--out", "{tmp}/empty"],
    ],
    ": ": [
        *each(["train", KEP, "--out"], "{tmp}/file/x", "{tmp}/loop", "/proc/x"),
        *each(["bench", "layers", "--out"], "{tmp}/file/x", "/proc/x/x"),
        ["demo", "--workers", "1", "--out", "{tmp}/fifo"],
    ],
    "--data": [
        *each([*TRAIN, "--data"], "{tmp}/file", "{tmp}/fifo", "{tmp}/loop", "{tmp}/" + BYTE, ESC),
        [*EVALUATE, "--data", "{tmp}/new/x"],
        ["study", "kep-svgp/cifar10-softmax", "--data", "{tmp}/new"],
    ],
    "holds no run": [
        *each(["evaluate"], "{tmp}/file", "{tmp}/fifo", "{tmp}/empty", "{tmp}/" + ESC, BYTE),
        *each(["compare"], "{tmp}/fifo", "{tmp}/new"),
        *(["export", place, "--out", "{tmp}/x.pt2"] for place in ("{tmp}/file", "{tmp}/fifo")),
    ],
    "loop": [["evaluate", "{tmp}/loop"], ["compare", "{tmp}/loop"]],
    "a.png": each([*EVALUATE, "--ood"], "{tmp}/pipes"),
    "folder of images": each([*EVALUATE, "--ood"], "./nowhere", "{tmp}/fifo", f"./{ESC}"),
    "no image": each([*EVALUATE, "--ood"], "{tmp}/empty"),
    "digits": each([*EVALUATE, "--ood"], "digits"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    furnish(folder)
    return folder


@pytest.mark.parametrize("words", ROWS, ids=lambda words: words[:14])
def test_a_hostile_argument_is_refused_by_a_short_message(place, evaluated, monkeypatch, words):
    monkeypatch.chdir(place)
    for arguments in ROWS[words]:
        filled = [part.replace("{tmp}", str(place)).replace("{run}", str(evaluated[KEP])) for part in arguments]
        with without_work():
            outcome = run(filled)
        check(filled, outcome)
        assert outcome.status in (1, 2), (filled, outcome)
        assert words in outcome.err, (filled, outcome.err)
        assert not (place / "new").exists(), "a command that is refused leaves nothing behind"


def test_good_arguments_are_accepted(place, evaluated):
    with without_work():
        for arguments in (
            ["train", KEP, "--out", f"{place}/{ESC}"],
            ["evaluate", str(evaluated[KEP]), "--seed", str(2**63 - 1), "--num-samples", "3"],
            ["bench", "scaling", "--out", f"{place}/results.csv"],
        ):
            assert run(arguments).status == ACCEPTED, arguments


@pytest.mark.parametrize("number", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_command_lines_are_accepted_or_refused_by_a_short_message(tmp_path, number):
    for seed in range(number):
        fuzz_arguments(random.Random(seed), tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    outcome = run(["train", KEP, "--out", str(tmp_path / "closed" / "run")])
    assert outcome.status == 1
    assert "Permission denied" in outcome.err
