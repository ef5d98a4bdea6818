"""`probattn bench`, from its arguments to its output, on sizes so small that no speed is tested."""

import functools
import json
import sys

import pytest
import torch

from probattn.experiments.bench import flops, layers, predict, scaling, train
from probattn.experiments.cli import main

LAYERS = {"dim": 8, "heads": 2, "batch": 2, "tokens": 4, "long": 6, "longer": 8}
NETWORK = {"dim": 8, "heads": 2, "rank": 2, "batch": 2, "depth": 1}
SMALL = {
    (layers, "kep_svgp"): LAYERS | {"rank": 2},
    (layers, "gaussian_processes"): LAYERS | {"inducing": 2},
    (train, "cifar10"): NETWORK,
    (train, "small"): NETWORK,
    (predict, "ten_samples"): NETWORK,
    (scaling, "over_tokens"): {"dim": 8, "heads": 2, "rank": 2, "inducing": 2},
}
TINY = ["network.dim=20", "network.heads=2", "network.depth=1", "network.mlp_dim=8"]
COMMANDS = {
    "layers": ["--rounds", 2],
    "train": ["--rounds", 1, "--images", 3, *(part for change in TINY for part in ("--set", change))],
    "predict": ["--rounds", 2],
    "scaling": ["--rounds", 1, "--sizes", "8,4", "--limit", 1000],
}
TABLES = {"layers": 2, "train": 3, "predict": 1, "scaling": 1}


@pytest.fixture
def command(monkeypatch, capfd):
    """Runs the command on small sizes: exit code, stdout, stderr. A traceback fails the test."""
    monkeypatch.setitem(flops._SIZES, "cpu", 32)
    for (module, name), sizes in SMALL.items():
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), **sizes))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["probattn", "bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main.main()
        out, err = capfd.readouterr()
        return stopped.value.code, out, err

    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "layers")) for name in COMMANDS]
)
def test_tables_are_printed_and_written(command, tmp_path, name):
    path = tmp_path / "new" / "figures.json"
    code, text, err = command(name, *COMMANDS[name], "--seed", 5, "--json", path)
    assert (code, err) == (0, "")
    assert max(map(len, text.splitlines()[:-2])) <= 100
    assert text.splitlines()[-2].startswith("ratios: to the first case")
    assert f"torch {torch.__version__}" in text.splitlines()[-1]
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["seed"] == 5
    assert content["environment"]["torch"] == torch.__version__
    assert len(content["tables"]) == TABLES[name]
    for table in content["tables"]:
        assert table["title"].split()[0] in text
        for section in table["sections"]:
            assert section["rounds"] >= 1
            for row in section["rows"]:
                assert row["quartiles"][0] <= row["ms"] <= row["quartiles"][1]
                numbers = [f" {row[key]:.3f} " for key in ("ratio", "memory_ratio") if key in row]
                assert any(
                    line.strip().startswith(row["case"] + " ") and all(each in line for each in numbers)
                    for line in text.splitlines()
                )
    if name == "layers":
        check_layers(*content["tables"])


def check_layers(kep_svgp, others):
    """Ratios are to the first case of a section."""
    cases = {section["title"]: [row["case"] for row in section["rows"]] for section in kep_svgp["sections"]}
    assert cases == {
        "batch 2, N 4": ["softmax", "KEP-SVGP concat", "KEP-SVGP add"],
        "batch 1, N 6": ["softmax", "KEP-SVGP add"],
        "batch 1, N 8": ["softmax", "KEP-SVGP add"],
        "KEP-SVGP add, batch 1": ["N 6", "N 8"],
    }
    for section in kep_svgp["sections"] + others["sections"]:
        first = section["rows"][0]
        assert (first["ratio"], first["memory_ratio"]) == (1, 1)
        for row in section["rows"]:
            assert row["baseline"] == first["case"]
            assert row["ratio"] == pytest.approx(row["ms"] / first["ms"])
            assert row["memory_ratio"] == pytest.approx(row["peak_mib"] / first["peak_mib"])
            assert row["rate"] == pytest.approx(1e3 * row["operations"] / row["ms"])


def test_the_same_seed_measures_the_same(command, tmp_path):
    figures = []
    for number in range(2):
        command("predict", "--rounds", 1, "--seed", 3, "--json", tmp_path / f"{number}.json")
        (table,) = json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8"))["tables"]
        figures.append([(row["peak_mib"], row["operations"]) for row in table["sections"][0]["rows"]])
    assert figures[0] == figures[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_measured_or_written_is_refused_before(command, monkeypatch, tmp_path, name):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(flops, "matmul_rates", lambda device: pytest.fail("measured"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, words in (
        (["--json", tmp_path / "file" / "figures.json"], str(tmp_path / "file")),
        (["--json", tmp_path], "--json"),
        (["--device", "cuda"], "PyTorch finds no GPU here; use --device cpu"),
        (["--device", "tpu"], "cpu or cuda, got 'tpu'"),
    ):
        code, out, err = command(name, *arguments)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scaling", "--sizes", "8,many"], "--sizes"),
        (["scaling", "--sizes", "0"], "--sizes"),
        (["train", "--images", 3, "--preset", "digits/softmx"], "did you mean digits/softmax"),
        (["train", "--images", 3, "--set", "train.epoch=3"], "unknown key 'train.epoch'"),
        (["train", "--images", 3, "--preset", "kep-svgp/cola"], "kep-svgp/cola"),
    ],
)
def test_options_that_do_not_fit_are_one_message(command, monkeypatch, arguments, words):
    for name in ("cifar10", "small"):
        monkeypatch.setattr(train, name, lambda *args, **options: pytest.fail("measured"))
    code, out, err = command(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


class Cases:
    """Fake meter that records the cases."""

    device = "cpu"

    def __init__(self):
        self.sections = {}

    def section(self, title, cases, *, rounds):
        self.sections[title] = (list(cases), rounds)
        return {"title": title, "rounds": rounds, "rows": []}


def test_the_layers_of_the_issue_are_the_defaults(monkeypatch):
    built, cases = [], Cases()

    def layer_step(factory, dim, heads, **size):
        built.append((dim, heads, size["batch"], size["tokens"]))

    monkeypatch.setattr(layers, "layer_step", layer_step)
    layers.kep_svgp(cases, rounds=11)
    assert cases.sections["batch 128, N 64"] == (["softmax", "KEP-SVGP concat", "KEP-SVGP add"], 11)
    assert cases.sections["batch 1, N 4096"] == (["softmax", "KEP-SVGP add"], 11)
    assert cases.sections["batch 1, N 16384"] == (["softmax", "KEP-SVGP add"], 3)
    one = [(384, 12, 1, number) for number in (4096, 4096, 16384, 16384, 4096, 16384)]
    assert built == 3 * [(384, 12, 128, 64)] + one


def test_the_networks_of_the_issue_are_the_defaults(monkeypatch):
    built = []
    real = train.vit
    monkeypatch.setattr(train, "vit", lambda *args, **shape: built.append(real(*args, **shape)) or built[-1])
    cases = Cases()
    train.cifar10(cases, rounds=1)
    assert list(cases.sections.values())[-1][0] == [
        "softmax, SVI",
        "softmax, reference loop",
        "KEP-SVGP, SVI",
        "KEP-SVGP, reference loop",
    ]
    train.small(cases, rounds=1)
    assert list(cases.sections.values())[-1][0] == ["KEP-SVGP, reference loop", "KEP-SVGP, SVI"]
    kinds = [[type(block.attention).__name__ for block in model.network.blocks] for model in built]
    below, last = ["SoftmaxAttention"], "KEPSVGPAttention"
    assert kinds == [7 * below, [*6 * below, last], [*3 * below, last]]
    assert [model.network.positions.shape for model in built] == [(64, 384), (64, 384), (64, 64)]
    assert {block.attention.heads for block in built[0].network.blocks} == {12}


def test_pyro_does_not_validate_in_a_training_step(monkeypatch):
    seen = []

    class Listening(Cases):
        def section(self, title, cases, *, rounds):
            seen.append(torch.distributions.Distribution._validate_args)
            return super().section(title, cases, rounds=rounds)

    before = torch.distributions.Distribution._validate_args
    train.small(Listening(), rounds=1, **NETWORK)
    assert (seen, torch.distributions.Distribution._validate_args) == ([False], before)
