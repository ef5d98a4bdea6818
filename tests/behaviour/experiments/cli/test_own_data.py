"""The commands of docs/your-own-data.md on tiny data, and what `train` says about data that cannot
be used."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

PAGE = Path(__file__).parents[4] / "docs" / "your-own-data.md"
COMMANDS = [
    shlex.split(line.removeprefix("probattn "), comments=True)
    for block in re.findall(r"```\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("probattn ")
]
SMALL = (
    "network.dim=16",
    "network.depth=1",
    "network.heads=1",
    "network.mlp_dim=8",
    "train.num_samples=2",
)
KINDS = {
    "reviews": ("texts", "neg", "pos"),
    "from-file": ("texts", "neg", "pos"),
    "diabetes": ("table",),
    "iris": ("table", "x", "y", "z"),
    "balanced": ("images", "cat", "dog", "ship"),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working folder, with the data and the package that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "module.py").write_text(
        "from probattn import SoftmaxAttention as MyAttention\n"
    )
    for name, number in (("cat", 9), ("dog", 5), ("ship", 4)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for seed in range(number):
            pixels = np.random.default_rng(seed).integers(0, 256, (40, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{seed}.png")
    texts = [f"{('bad', 'good')[n % 2]} film, number {n}" for n in range(20)]
    reviews = pd.DataFrame({"text": texts, "label": ["neg", "pos"] * 10})
    reviews.to_csv("reviews.csv", index=False, header=["review", "sentiment"])
    reviews.to_json("reviews.jsonl", orient="records", lines=True)
    numbers = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=[*"abc"])
    numbers.to_csv("new.csv", index=False)
    numbers.assign(target=np.random.default_rng(1).normal(size=30)).to_csv(
        "diabetes.csv", index=False
    )
    numbers.assign(species=[*"xyz"] * 10, site=["north", "south"] * 15).to_csv(
        "iris.csv", index=False
    )
    return tmp_path


def small(arguments):
    """The same command for a tiny network, two epochs and one seed."""
    arguments = ["1" if word == "3" else word for word in arguments]
    changes = (
        [*SMALL]
        if {"sgpa", "softmax", "tabular/csv", "study"} & set(arguments)
        else [*SMALL, "layer.rank=1"]
    )
    tests = (
        ["--method", "none", "--ood", "none", "--no-shift", "--workers", "1"]
        if arguments[0] == "study"
        else []
    )
    return [
        *arguments,
        *tests,
        "--epochs",
        "2",
        *(part for change in changes for part in ("--set", change)),
    ]


@pytest.mark.filterwarnings("ignore::probattn.inference.prediction.predictor.FewExamplesWarning")
@pytest.mark.parametrize("run", [*KINDS, "compared"])
def test_the_commands_of_the_page(command, home, run, request):
    printed = ""
    text = command("presets", "text/csv", "--yaml")[1].replace(
        "text_column: text", "text_column: review"
    )
    (home / "reviews.yaml").write_text(
        text.replace("label_column: label", "label_column: sentiment")
    )
    if run != "diabetes":
        request.getfixturevalue("no_figures")
    for arguments in COMMANDS:
        if f"runs/{run}" in arguments and "--resume" not in arguments:
            code, out, err = command(
                *(small(arguments) if arguments[0] in ("train", "study") else arguments)
            )
            assert code == 0, (arguments, err)
            printed += out
    if run == "compared":
        assert ((home / "runs/compared/results.csv").exists(), "MyAttention" in printed) == (
            True,
            True,
        )
        return
    saved = json.loads((home / "runs" / run / "preprocessing.json").read_text("utf-8"))
    kind, *classes = KINDS[run]
    assert (saved["kind"], saved["classes"]) == (kind, classes)
    if run == "diabetes":
        printed += (home / "runs" / run / "report.html").read_text("utf-8")
        assert [
            words for words in ("RMSE", "90 %", "Predicted and true") if words not in printed
        ] == []


@pytest.mark.usefixtures("no_figures")
@pytest.mark.filterwarnings("ignore::probattn.inference.prediction.predictor.FewExamplesWarning")
@pytest.mark.parametrize("kind", ["reviews.csv", "iris.csv", "pets"])
def test_a_run_and_its_data_move_to_another_machine_where_the_digests_decide(
    refused, succeed, home, monkeypatch, kind
):
    names = {
        "reviews.csv": ("text_column=review", "label_column=sentiment"),
        "iris.csv": ("label_column=species",),
    }
    columns = [part for name in names.get(kind, ()) for part in ("--set", f"data.{name}")]
    preset = {"reviews.csv": "text/csv", "iris.csv": "tabular/csv", "pets": "vit/folder"}[kind]
    arguments = ["train", preset, "--layer", "softmax", *columns]
    succeed(*small([*arguments, "--data", kind, "--out", "run"]))
    there = home / "another" / "machine"
    there.mkdir(parents=True)
    (home / kind).rename(there / f"new-{kind}")
    (home / "run").rename(there / "run")
    monkeypatch.chdir(there)
    succeed("predict", "run", f"new-{kind}")  # the columns are those of training
    for verb in (["evaluate", "run"], ["train", "--out", "run", "--resume", "--epochs", 3]):
        assert kind in refused(*verb)
    before = (there / "run" / "last.pt").read_bytes()
    (there / "other.csv").write_text(
        (there / f"new-{kind}").read_text()[:-30] if kind != "pets" else ""
    )
    refused("train", "--out", "run", "--resume", "--data", "other.csv", "--epochs", 3)
    assert (there / "run" / "last.pt").read_bytes() == before
    succeed("train", "--out", "run", "--resume", "--data", f"new-{kind}", "--epochs", 3)
    succeed("evaluate", "run")  # whose settings have the new place


def test_a_study_goes_on_with_its_data_in_another_place(command, home, no_figures):
    def study(data):
        columns = ["--set", "data.text_column=review", "--set", "data.label_column=sentiment"]
        return command(
            *small(
                [
                    "study",
                    "text/csv",
                    "--layers",
                    "softmax",
                    "--seeds",
                    "1",
                    "--data",
                    data,
                    *columns,
                ]
            )
        )

    assert study("reviews.csv")[0] == 0
    (home / "reviews.csv").rename("moved.csv")
    code, _, err = study("moved.csv")
    assert code == 0, err
