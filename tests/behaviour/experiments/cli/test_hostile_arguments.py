"""Hostile arguments: each is answered by one short message that names what is wrong, and nothing is
left behind."""

import os
from multiprocessing.process import BaseProcess

import pytest
from torch import nn

KEP = "digits/kep-svgp"
BIG, ESC, BYTE = "9" * 30, "\x1b[31mred", "\udcff"
TRAIN = ["train", KEP, "--out", "{tmp}/new"]
EVALUATE = ["evaluate", "{run}"]


class AcceptedError(BaseException):
    """Raised in place of the work of a command that has passed all checks."""


def variants(command, *values):
    """The command with each of the values as its last argument."""
    return [[*command, value] for value in values]


def changes(key, *values):
    return variants([*TRAIN, "--set"], *(f"{key}={value}" for value in values))


ROWS = {
    r"\x1b[31mred": [
        ["train", ESC],
        ["reproduce", ESC],
        ["demo", "--layers", ESC],
        ["train", f"--{ESC}"],
    ],
    "red": [
        [*EVALUATE, "--method", f"laplace+{ESC}"],
        [*EVALUATE, "--ood", ESC],
        ["train", KEP, "--layer", ESC],
    ],
    KEP: [
        ["train", "digits/kepsvgp", "--out", "{tmp}/new"],
        ["study", "digits/kepsvgp", "--out", "{tmp}/new"],
    ],
    "laplace": [["study", KEP, "--out", "{tmp}/new", "--method", "laplac"]],
    "nowhere": [["study", KEP, "--out", "{tmp}/new", "--layers", "softmax,nowhere:Layer"]],
    "monitor": changes("train.monitor", "foo"),
    "does not suit": changes("network.kind", "tabular", "text", "encoder"),
    "preset must be": variants(["train", "--config"], "{tmp}/list.yaml", "{tmp}/mapping.yaml"),
    "there is no folder": [
        *variants(["predict"], "typo", "{tmp}/typo", "https://example.com/user/model"),
        ["export", "typo", "--out", "{tmp}/new"],
    ],
    "4 tokens": [
        [
            *TRAIN,
            "--set",
            "network.patch_size=4",
            "--set",
            "network.dim=128",
            "--set",
            "layer.rank=17",
        ]
    ],
    "probattn evaluate": [["compare", "{trained}", "--out", "{tmp}/new"]],
    "KEPSVGPAttention": [[*TRAIN, "--set", "warm_start.epochs=1"]],
    "gaussian_noise": [[*EVALUATE, "--shift", "--corruptions", "gausian_noise"]],
    "laplace+temperature": [[*EVALUATE, "--method", "temperature+laplace"]],
    "kep-svgp/table-2": [["reproduce", "kep-svgp/tabel-2"]],
    "probattn bench": [["reproduce", "kep-svgp/table-8"]],
    "--config": [["train"], ["train", "--config", "{tmp}/nowhere.yaml"]],
    "--seeds": [["study", "--seeds"], *variants(["study", "--seeds"], "", "nan", "0", "1.5", BIG)],
    "--seed": variants([*EVALUATE, "--seed"], "-1", str(2**63), "x"),
    "--set takes key=value": variants([*TRAIN, "--set"], "", ESC, "train.epochs"),
    "unknown": variants([*TRAIN, "--set"], "=", "=1", f"{ESC}=1", "train.epochs.x=1"),
    "epochs": changes("train.epochs", "", "nan", "none", "1.5", ESC, "0", BIG),
    "lr": changes("train.lr", "nan", "inf", "1e400", "[" * 5000, "{{" * 5000),
    "devices": changes("train.devices", "", "0", "cuda", "1,", "7,8", "[0]", BIG, ESC),
    "dim": [*changes("network.dim", "0", "nan", BIG, "none"), *changes("network.mlp_dim", BIG)],
    "data.": [*changes("data.batch_size", "0", BIG), *changes("data.limit", "0", BIG)],
    "rank": changes("layer.rank", "0", "100", "10000000", BIG),
    "data": changes("data.name", "", "mnist", ESC, BYTE),
    "--out": [
        *variants(["train", KEP, "--out"], "{tmp}/file", "{tmp}/fifo", "/dev/null"),
        *([command, "{run}", "--out", "{tmp}/file"] for command in ("compare", "study", "demo")),
    ],
    ": ": variants(["train", KEP, "--out"], "{tmp}/file/x", "{tmp}/loop", "/proc/x"),
    "--data": [
        ["study", "tabular/csv", "--out", "{tmp}/new"],
        ["train", "kep-svgp/cifar10", "--data", "{tmp}/empty"],
    ]
    + variants([*TRAIN, "--data"], "{tmp}/file", "{tmp}/fifo", "{tmp}/loop", "{tmp}/" + BYTE, ESC),
    "holds no run": [
        *variants(["evaluate"], "{tmp}/file", "{tmp}/fifo", "{tmp}/empty", "{tmp}/" + ESC, BYTE),
        *variants(["compare"], "{tmp}/fifo", "{tmp}/new"),
        ["export", "{tmp}/fifo", "--out", "{tmp}/x.pt2"],
    ],
    "folder of images": variants([*EVALUATE, "--ood"], "./nowhere", "{tmp}/fifo", f"./{ESC}"),
}


@pytest.fixture
def checked(command, trained, evaluated, monkeypatch, no_network, tmp_path):
    """Runs a command among pipes, links in a circle, and files in place of folders, as far as no
    work begins."""
    (tmp_path / "file").write_text("text", "utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "list.yaml").write_text("preset: [x]\n", "utf-8")
    (tmp_path / "mapping.yaml").write_text("preset: {a: b}\n", "utf-8")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)

    def accept(*arguments, **options):
        raise AcceptedError

    # Where a network would run, or a process would start.
    monkeypatch.setattr(nn.Module, "__call__", accept)
    monkeypatch.setattr(BaseProcess, "start", accept)
    places = {"tmp": tmp_path, "run": evaluated[KEP], "trained": trained[KEP]}
    return lambda arguments: command(*(part.format(**places) for part in arguments))


@pytest.mark.parametrize("words", ROWS, ids=lambda words: words[:14])
def test_a_hostile_argument_is_answered_by_a_short_message(checked, tmp_path, words):
    for arguments in ROWS[words]:
        status, out, err = checked(arguments)
        assert status in (1, 2), (arguments, status)
        assert words in err, (arguments, err)
        assert err.startswith("error: ") or "\nerror: " in err
        assert len(err.splitlines()) <= 4, err
        assert all(character.isprintable() or character == "\n" for character in out + err), ascii(
            err
        )
        assert not (tmp_path / "new").exists(), "a command that fails leaves nothing behind"


@pytest.mark.parametrize(
    "arguments", [["train", KEP, "--out", ESC], ["evaluate", "{run}", "--seed", str(2**63 - 1)]]
)
def test_good_arguments_are_accepted(checked, arguments):
    with pytest.raises(AcceptedError):
        checked(arguments)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("layer.rank=0", "layer.rank"),
        ("layer.eta=-1", "layer.eta"),
        ("network.heads=5", "network.heads"),
        ("train.lr=-1", "train.lr"),
        ("layer.merge=x", "layer.merge"),
    ],
)
def test_an_error_names_the_setting_before_data_are_read(command, tmp_path, change, named):
    missing = ["--data", tmp_path / "no-such-folder"]
    code, _, err = command("train", "vit/folder", *missing, "--set", change)
    assert code == 1
    assert named in err
    assert "no-such-folder" not in err
