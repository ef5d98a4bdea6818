"""Hostile arguments: each is refused by one short message that says what is wrong."""

import os
import random

import pytest

from tests.fuzz.arguments import ACCEPTED, KEP, check, furnish, fuzz_arguments, run, without_work

BIG, ESC, BYTE, BIDI = "9" * 30, "\x1b[31mred", "\udcff", "\u202edcba"
TRAIN = ["train", KEP, "--out", "{tmp}/new"]


def changes(key, *values):
    return [[*TRAIN, "--set", f"{key}={value}"] for value in values]


def rows(words, commands):
    return [(command, words) for command in commands]


ROWS = [
    # names
    *rows(["unknown preset", "probattn presets"], [["train", name] for name in ("", " ", "..", "x" * 5000)]),
    (["train", ESC], [r"unknown preset '\x1b[31mred'"]),
    (["train", BYTE], [r"unknown preset '\udcff'"]),
    (["train", BIDI], [r"unknown preset '\u202edcba'"]),
    (["study", ESC], [r"unknown preset '\x1b[31mred'"]),
    (["reproduce", ESC, "--out", "{tmp}/new"], [r"unknown table or figure '\x1b[31mred'"]),
    *rows(["unknown table or figure", "--list"], [["reproduce", each] for each in ("", " ", "..", "x" * 5000)]),
    (["bench", "train", "--preset", ESC], [r"unknown preset '\x1b[31mred'"]),
    (["bench", "train", "--preset", "kep-svgp/cola"], ["kep-svgp/cola is not a preset of images"]),
    (["demo", "--layers", f"softmax,{ESC}"], [r"unknown layers '\x1b[31mred'"]),
    (["study", "--layers", ",", "--out", "{tmp}/new"], ["unknown layers ''"]),
    (["evaluate", "{run}", "--method", f"laplace+{ESC}"], [r"unknown method '\x1b[31mred'"]),
    (["evaluate", "{run}", "--method", "laplace,,temperature"], ["unknown method ''"]),
    (["evaluate", "{run}", "--shift", "--corruptions", ESC], [r"unknown corruption '\x1b[31mred'"]),
    (["evaluate", "{run}", "--ood", "svhnn"], ["unknown OOD set 'svhnn'", "did you mean svhn"]),
    (["evaluate", "{run}", "--ood", ESC], [r"unknown OOD set '\x1b[31mred'"]),
    (["evaluate", "{run}", "--ood", "letters,"], ["unknown OOD set ''"]),
    # command lines
    (["nothing"], ["No such command 'nothing'", "probattn --help"]),
    ([ESC], [r"No such command", "x1b[31mred"]),
    (["train", f"--{ESC}"], [r"No such option: --\x1b[31mred"]),
    (["train", KEP, ESC], [r"\x1b[31mred", "probattn train --help"]),
    (["train"], ["no preset", "--config FILE"]),
    (["train", KEP, "--seeds"], ["--seeds", "requires an argument"]),
    # numbers
    *rows(["--seeds"], [["train", KEP, "--seeds", each] for each in ("", "nan", "0", "-1", "1.5", BIG, ESC)]),
    *rows(["--workers"], [["study", "--workers", each] for each in ("", "0", BIG)]),
    *rows(["--seeds"], [["study", "--seeds", each] for each in ("0", BIG)]),
    *rows(["--epochs"], [["study", "--epochs", each] for each in ("2", BIG, "nan")]),
    *rows(["--epochs"], [["demo", "--epochs", each] for each in ("-1", BIG, "1e3")]),
    *rows(["--num-samples"], [["evaluate", "{run}", "--num-samples", each] for each in ("0", BIG, "nan")]),
    *rows(["--seed"], [["evaluate", "{run}", "--seed", each] for each in ("-1", BIG, str(2**63), "x")]),
    *rows(["--seed"], [["export", "{run}", "--out", "{tmp}/x.pt2", "--seed", each] for each in ("-1", BIG)]),
    *rows(["--seed"], [[*command, "--seed", BIG] for command in (["check-posterior"], ["check-gp"])]),
    *rows(["--seed"], [["bench", name, "--seed", BIG] for name in ("layers", "train", "predict", "scaling")]),
    *rows(["--rounds"], [["bench", "layers", "--rounds", each] for each in ("0", BIG)]),
    *rows(["--images"], [["bench", "train", "--images", each] for each in ("-1", BIG)]),
    *rows(["--sizes"], [["bench", "scaling", "--sizes", each] for each in ("", "1,,2", "²", "0", "1.5", BIG, ESC)]),
    *rows(["--limit"], [["bench", "scaling", "--limit", each] for each in ("nan", "-1", "0", "x")]),
    (["bench", "layers", "--device", ESC], [r"--device is cpu or cuda, got '\x1b[31mred'"]),
    *rows(["severities"], [["evaluate", "{run}", "--shift", "--severities", each] for each in ("", "x", "1,,2")]),
    *rows(["severity"], [["evaluate", "{run}", "--shift", "--severities", each] for each in ("0", "6", BIG)]),
    # settings
    *rows(["--set takes key=value"], [[*TRAIN, "--set", each] for each in ("", ESC, "train.epochs")]),
    *rows(
        ["unknown key"], [[*TRAIN, "--set", each] for each in ("=", "=1", "train.=1", f"{ESC}=1", "train.epochs.x=1")]
    ),
    *rows(["train.epochs"], changes("train.epochs", "", "nan", "none", "1.5", "1" * 5000, ESC)),
    *rows(["epochs=", "out of bounds"], changes("train.epochs", "0", "-1", BIG)),
    *rows(["train.lr"], changes("train.lr", "nan", "inf", "1e400", "")),
    *rows(["seed="], changes("train.seed", "-1", BIG, str(2**63))),
    *rows(["data.seed"], changes("data.seed", "-1", BIG, "1.5")),
    *rows(
        ["devices"], changes("train.devices", "", "0", "-1", "nan", "cuda", "1,", "0,", "7,8", "1.5", "[0]", BIG, ESC)
    ),
    (changes("train.devices", "2")[0], ["devices=2 are 2 devices", "torchrun"]),
    *rows(["accelerator"], changes("train.accelerator", "", ESC, "warp")),
    *rows(["num_samples="], changes("train.num_samples", "0", BIG)),
    *rows(["num_particles="], changes("train.num_particles", "0", BIG)),
    *rows(["network.dropout"], changes("network.dropout", "nan", "inf", "-0.1", "1", "2")),
    *rows(["network.dim"], changes("network.dim", "0", "-1", "nan", BIG, "10000000", "none")),
    *rows(["network.depth"], changes("network.depth", "0", BIG, "10000000")),
    *rows(["GiB of memory"], changes("network.mlp_dim", "1000000000")),
    *rows(["network.mlp_dim"], changes("network.mlp_dim", BIG)),
    *rows(["heads"], changes("network.heads", "3", "10000000", BIG)),
    *rows(["patch_size"], changes("network.patch_size", "3", "10000000", BIG)),
    *rows(["data.batch_size"], changes("data.batch_size", "0", BIG)),
    *rows(["data.limit"], changes("data.limit", "0", BIG)),
    *rows(["rank"], changes("layer.rank", "0", "10000000", BIG)),
    *rows(["last"], changes("layer.last", "0", "10000000", BIG)),
    *rows(["scale"], changes("layer.scale", "0", "-1", "nan")),
    *rows(["data set"], changes("data.name", "", ESC)),
    *rows(["not valid UTF-8"], changes("data.name", BYTE)),
    # paths
    *rows(
        ["--out"],
        [["train", KEP, "--out", each] for each in ("{tmp}/file", "{tmp}/file/x", "{tmp}/fifo", "{tmp}/loop")],
    ),
    *rows(["--out"], [["train", KEP, "--out", each] for each in ("/dev/null", "/proc/x", "{tmp}/" + "x" * 300)]),
    *rows(
        ["not valid utf-8", "--out"],
        [[*each, "--out", "{tmp}/" + BYTE] for each in (["train", KEP], ["demo"], ["study"])],
    ),
    *rows(["--out"], [["demo", "--out", each] for each in ("{tmp}/file", "{tmp}/fifo/x", "/dev/null")]),
    *rows(["--out"], [["study", "--out", each] for each in ("{tmp}/file", "{tmp}/loop/x", "/proc/x")]),
    *rows(["--out"], [["reproduce", "cgp/table-1", "--out", each] for each in ("{tmp}/file", "{tmp}/" + BYTE)]),
    *rows(["--seeds"], [["reproduce", "cgp/table-1", "--seeds", each] for each in ("0", BIG)]),
    *rows(["--scale"], [["reproduce", "cgp/table-1", "--scale", each] for each in ("", "gpu", ESC)]),
    *rows(["--out"], [["compare", "{run}", "--out", each] for each in ("{tmp}/file", "{tmp}/fifo", "{tmp}/" + BYTE)]),
    *rows(["--out"], [["check-posterior", "--out", each] for each in ("{tmp}/file", "{tmp}/loop", "{tmp}/" + BYTE)]),
    *rows(["suffix"], [["export", "{run}", "--out", each] for each in ("{tmp}/x.pt", "{tmp}/x.PT2")]),
    *rows(["--out"], [["export", "{run}", "--out", each] for each in ("{tmp}/file/x.pt2", "/dev/null")]),
    *rows(["--out"], [["export", "{run}", "--out", each] for each in ("{tmp}/fifo", "{tmp}/" + BYTE + ".pt2")]),
    *rows(
        ["--json"],
        [["bench", "layers", "--json", each] for each in ("{tmp}/empty", "/dev/null", "/proc/x", "{tmp}/" + BYTE)],
    ),
    *rows(
        ["--data"],
        [[*TRAIN, "--data", each] for each in ("{tmp}/file", "{tmp}/fifo", "{tmp}/loop", "{tmp}/" + BYTE, ESC)],
    ),
    *rows(["--data"], [["evaluate", "{run}", "--data", each] for each in ("{tmp}/fifo", "{tmp}/new/x")]),
    *rows(
        ["holds no run"],
        [["evaluate", each] for each in ("{tmp}/file", "{tmp}/fifo", "{tmp}/empty", "{tmp}/" + ESC, BYTE)],
    ),
    *rows(["holds no run"], [["compare", each] for each in ("{tmp}/fifo", "{tmp}/new")]),
    *rows(["holds no run"], [["export", each, "--out", "{tmp}/x.pt2"] for each in ("{tmp}/file", "{tmp}/fifo")]),
    *rows(["loop"], [[verb, "{tmp}/loop"] for verb in ("evaluate", "compare")]),
    *rows(["holds no run"], [["evaluate", "{run}", "--baseline", each] for each in ("{tmp}/fifo", ESC, "")]),
    *rows(["a.png is not a regular file"], [["evaluate", "{run}", "--ood", "{tmp}/pipes"]]),
    *rows(
        ["a folder of images"],
        [["evaluate", "{run}", "--ood", each] for each in ("./nowhere", "{tmp}/fifo", f"./{ESC}")],
    ),
    *rows(["holds no image"], [["evaluate", "{run}", "--ood", "{tmp}/empty"]]),
    (["evaluate", "{run}", "--ood", "digits"], ["trained on digits"]),
    (["compare", "{run}", "{run}"], ["seed 0 already"]),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    furnish(folder)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"), ROWS, ids=[f"{n}-{row[0][0]}"[:12] if row[0] else f"{n}" for n, row in enumerate(ROWS)]
)
def test_a_hostile_argument_is_refused_by_a_short_message(place, evaluated, monkeypatch, arguments, words):
    monkeypatch.chdir(place)
    filled = [each.replace("{tmp}", str(place)).replace("{run}", str(evaluated[KEP])) for each in arguments]
    with without_work():
        outcome = run(filled)
    check(filled, outcome)
    assert outcome.status in (1, 2), outcome
    assert [word for word in words if word not in outcome.err] == [], outcome.err
    assert not (place / "new").exists(), "a command that is refused leaves nothing behind"


def test_good_arguments_are_accepted(place, evaluated):
    with without_work():
        for arguments in (
            ["train", KEP, "--out", f"{place}/{ESC}"],
            ["evaluate", str(evaluated[KEP]), "--seed", str(2**63 - 1), "--num-samples", "3"],
            ["bench", "scaling", "--sizes", "16, 8", "--limit", "inf", "--json", f"{place}/results.json"],
            ["check-posterior", "--out", f"{place}/check"],
        ):
            assert run(arguments).status == ACCEPTED, arguments


def test_random_command_lines_are_accepted_or_refused_by_a_short_message(tmp_path):
    for seed in range(60):
        fuzz_arguments(random.Random(seed), tmp_path)


@pytest.mark.slow
def test_many_random_command_lines_are_accepted_or_refused_by_a_short_message(tmp_path):
    for seed in range(1000):
        fuzz_arguments(random.Random(seed), tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    outcome = run(["train", KEP, "--out", str(tmp_path / "closed" / "run")])
    assert outcome.status == 1
    assert "closed: Permission denied" in outcome.err
