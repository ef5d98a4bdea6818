"""The commands of docs/your-own-data.md on tiny data, and what `train` says about data that cannot be used."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from probattn.experiments.data.sealed_files import read_preprocessing
from probattn.experiments.runs import train
from probattn.inference.io import checkpoint

PAGE = Path(__file__).parents[3] / "docs" / "your-own-data.md"
COMMANDS = [
    shlex.split(line.removeprefix("probattn "), comments=True)
    for block in re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("probattn ")
]
SMALL = ("network.dim=8", "network.depth=1", "network.heads=1", "network.mlp_dim=8", "train.num_samples=2")
FEW = {"warm_start.epochs=1", "train.epochs=1", "train.warmup_epochs=0"}


def noise(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 32, 3), dtype=np.uint8))


def table(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working folder, with the data that the page names."""
    monkeypatch.chdir(tmp_path)
    for name, number in (("cat", 9), ("dog", 5), ("ship", 4)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for seed in range(number):
            noise(seed).save(tmp_path / "pets" / name / f"{seed}.png")
    texts = [(f"{'good' if n % 2 else 'bad'} film, number {n}", ("neg", "pos")[n % 2]) for n in range(20)]
    table(tmp_path / "reviews.csv", [("review", "sentiment"), *texts])
    lines = (json.dumps({"text": text, "label": label}) for text, label in texts)
    (tmp_path / "reviews.jsonl").write_text("\n".join(lines), encoding="utf-8")
    numbers = np.random.default_rng(0).normal(size=(30, 4))
    table(tmp_path / "diabetes.csv", [("a", "b", "c", "target"), *numbers.tolist()])
    table(tmp_path / "new.csv", [("a", "b", "c"), *numbers[:, :3].tolist()])
    flowers = [(*row[:3], "xyz"[at % 3], ("north", "south")[at % 2]) for at, row in enumerate(numbers.tolist())]
    table(tmp_path / "iris.csv", [("a", "b", "c", "species", "site"), *flowers])
    return tmp_path


def small(arguments, *more):
    changes = [*SMALL, *more]
    if not {"sgpa", "cgp", "softmax", "tabular/csv"} & set(arguments):
        changes.append("layer.rank=2")
    return [*arguments, *(part for change in changes for part in ("--set", change))]


def without_epochs(arguments):
    """Drop the number of epochs of the page."""
    at = arguments.index("--epochs") if "--epochs" in arguments else len(arguments)
    return arguments[:at] + arguments[at + 2 :]


def test_the_page_has_commands_for_every_preset():
    named = {word for arguments in COMMANDS for word in arguments}
    assert {"vit/folder", "text/csv", "text/jsonl", "tabular/csv", "text/hf", "image/hf"} <= named


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("run", ["pets", "reviews", "reviews-sgpa", "diabetes", "iris"])
def test_the_commands_of_the_page_train_and_evaluate(command, home, run):
    printed = ""
    for arguments in COMMANDS:
        if f"runs/{run}" not in arguments or "--resume" in arguments:
            continue
        if arguments[0] == "train":
            arguments = [*small(without_epochs(arguments)), "--epochs", "2"]
        code, out, err = command(*arguments)
        assert code == 0, err
        printed += out
    saved = read_preprocessing(home / "runs" / run)
    kind = {"pets": "images", "diabetes": "table", "iris": "table"}.get(run, "texts")
    classes = {"pets": ["cat", "dog", "ship"], "diabetes": [], "iris": ["x", "y", "z"]}.get(run, ["neg", "pos"])
    assert (saved["kind"], saved["classes"]) == (kind, classes)
    if run == "diabetes":
        metrics = json.loads((home / "runs/diabetes/metrics.json").read_text(encoding="utf-8"))
        assert {"rmse", "crps", "pit_error"} <= metrics["metrics"].keys()
        assert metrics["sizes"]["test"] == 6
        assert "RMSE" in printed
        assert "conformal 90 % intervals" in printed
        assert max(len(line) for line in printed.splitlines() if line[:1] in "┃│") <= 80
    if run == "pets":
        assert "n = 3." in printed  # a fifth of each of three classes, one at least


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_regression_has_its_metrics_and_no_panels_of_classes(command, home, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(home)
    monkeypatch.setattr("sys.argv", ["probattn"])
    train = ["train", "tabular/csv", "--data", "diabetes.csv", "--out", "run", "--epochs", "1"]
    train += ["--set", "data.label_column=target", "--set", "data.task=regression", "--layer", "softmax"]
    assert command(*small(train))[0] == 0
    code, _, err = command("evaluate", "run", "--no-convergence")
    assert code == 0, err
    report = (home / "run/report.html").read_text(encoding="utf-8")
    assert "Predicted and true numbers" in report
    assert "regression" in report
    assert "Reliability diagram" not in report
    assert "--shift" not in report
    assert (home / "run/figures/quantiles.svg").exists()
    code, _, err = command("evaluate", "run", "--method", "laplace")
    assert code == 1
    assert "predicts numbers" in err


@pytest.mark.usefixtures("no_figures")
def test_regressions_are_compared_over_seeds_and_those_of_other_data_refused(command, home, is_one_message):
    train = ["train", "tabular/csv", "--data", "diabetes.csv", "--out", "runs", "--epochs", "1", "--seeds", "2"]
    train += ["--set", "data.label_column=target", "--set", "data.task=regression", "--layer", "softmax"]
    assert command(*small(train))[0] == 0
    for seed in (0, 1):
        assert command("evaluate", f"runs/seed-{seed}", "--no-convergence")[0] == 0
    code, out, err = command("compare", "runs/seed-0", "runs/seed-1", "--out", "compared")
    assert code == 0, err
    assert "CRPS" in out
    assert "n = 6." in out
    assert "ensemble" not in out
    lines = (home / "diabetes.csv").read_text(encoding="utf-8").splitlines()
    (home / "other.csv").write_text("\n".join([*lines, "1,2,3,4"]), encoding="utf-8")
    train = [*train[:3], "other.csv", "--out", "other", "--epochs", "1", *train[train.index("--set") :]]
    assert command(*small(train))[0] == 0
    assert command("evaluate", "other", "--no-convergence")[0] == 0
    code, _, err = command("compare", "runs/seed-0", "other", "--out", "compared")
    assert code == 1
    assert is_one_message(err, "trained with another data.path", "compare runs on the same data")


def test_a_resumed_run_has_its_settings_from_its_folder_and_may_have_more_epochs(command, home):
    start = ["train", "tabular/csv", "--data", "diabetes.csv", "--out", "run", "--epochs", "2", "--layer", "softmax"]
    start += ["--set", "data.label_column=target", "--set", "data.task=regression"]
    assert command(*small(start))[0] == 0
    code, out, err = command("train", "--out", "run", "--resume")
    assert code == 0, err
    assert "finished already, after 2 epochs" in out
    code, out, err = command("train", "--out", "run", "--resume", "--epochs", "3")
    assert code == 0, err
    assert " of 3, valid nll" in out
    saved = json.loads((home / "run/settings.json").read_text(encoding="utf-8"))["settings"]
    assert saved["train"]["epochs"] == 3
    assert saved["data"]["path"] == str(home / "diabetes.csv")
    code, _, err = command("train", "--out", "run", "--resume", "--epochs", "1")
    assert code == 1
    assert "train.epochs: 3 → 1" in err
    code, _, err = command("train", "--out", "run", "--resume", "--set", "network.dim=16")
    assert code == 1
    assert "network.dim: 8 → 16" in err


def test_a_run_that_ended_early_goes_on_with_more_patience(command, home):
    start = ["train", "tabular/csv", "--data", "diabetes.csv", "--epochs", "4", "--layer", "softmax"]
    start += ["--set", "data.label_column=target", "--set", "data.task=regression"]
    start = small(start, "train.lr=0.5", "train.warmup_epochs=0")

    def losses(name):
        lines = map(json.loads, (home / name / "log.jsonl").read_text(encoding="utf-8").splitlines())
        return [(line["epoch"], line["train_loss"], line["valid/nll"]) for line in lines if line["kind"] == "epoch"]

    assert command(*start, "--out", "whole")[0] == 0
    assert command(*start, "--out", "run", "--set", "train.patience=1")[0] == 0
    assert losses("run") == losses("whole")[: len(losses("run"))]
    assert len(losses("run")) < 4
    code, out, err = command("train", "--out", "run", "--resume", "--set", "train.patience=none")
    assert code == 0, err
    assert "run: train.patience: 1 → None" in out
    assert losses("run") == losses("whole")
    whole, run = (checkpoint.read(home / name / "last.pt")["model"] for name in ("whole", "run"))
    assert whole.keys() == run.keys()
    assert all(torch.equal(whole[name], run[name]) for name in whole)
    code, _, err = command("train", "--out", "run", "--resume", "--set", "train.patience=2")
    assert code == 1
    assert "train.patience: None → 2" in err


def test_settings_with_which_no_epoch_was_done_are_not_recorded(command, home, monkeypatch):
    start = ["train", "tabular/csv", "--data", "diabetes.csv", "--epochs", "1", "--layer", "softmax", "--out", "run"]
    start += ["--set", "data.label_column=target", "--set", "data.task=regression", "--set", "train.patience=2"]
    assert command(*small(start))[0] == 0
    saved = (home / "run/settings.json").read_bytes()
    code, out, err = command("train", "--out", "run", "--resume", "--set", "train.patience=5")
    assert code == 0, err
    assert "nothing to do" in out
    assert (home / "run/settings.json").read_bytes() == saved

    def refuse(*parts, **options):
        raise checkpoint.CheckpointError("last.pt is of another run")

    monkeypatch.setattr(train, "fit", refuse)
    assert command("train", "--out", "run", "--resume", "--epochs", "2")[0] == 1
    assert (home / "run/settings.json").read_bytes() == saved


def test_data_that_have_moved_are_named_and_changed_ones_refused(command, home):
    start = ["train", "text/csv", "--data", "reviews.csv", "--out", "run", "--epochs", "1", "--layer", "softmax"]
    start += ["--set", "data.text_column=review", "--set", "data.label_column=sentiment"]
    assert command(*small(start))[0] == 0
    (home / "reviews.csv").rename(home / "moved.csv")
    assert command("predict", "run", "moved.csv")[0] == 0  # the column is that of training
    code, _, err = command("evaluate", "run")
    assert code == 1
    assert "reviews.csv does not exist" in err
    lines = (home / "moved.csv").read_text(encoding="utf-8").splitlines()
    table(home / "changed.csv", csv.reader(lines[:-1]))
    code, _, err = command("evaluate", "run", "--data", home / "changed.csv")
    assert code == 1
    assert "is not the one that run was trained with" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vit/folder"], ["name your data with --data PATH"]),
        (["vit/folder", "--data", "nowhere"], ["nowhere does not exist", "--data"]),
        (["vit/folder", "--data", "reviews.csv"], ["reviews.csv is no folder"]),
        (["digits/softmax", "--data", "nowhere"], ["nowhere does not exist"]),
        (["digits/softmax", "--data", "iris.csv"], ["iris.csv is a file", "--data"]),
        (["text/csv", "--data", "reviews.csv"], ["no column 'text'", "'review', 'sentiment'", "data.text_column=NAME"]),
        (["tabular/csv", "--data", "iris.csv"], ["no column 'label'", "'species'", "data.label_column=NAME"]),
        (["vit/folder", "--layer", "kep-svg"], ["unknown layer 'kep-svg'", "did you mean kep-svgp?"]),
        (["vit/folder", "--data", "pets", "--set", "network.kind=text"], ["data.name=image-folder does not suit"]),
        ([], ["no preset", "--config FILE", "probattn presets"]),
        (["--config", "nowhere.yaml"], ["cannot read nowhere.yaml", "--config"]),
        (["--resume", "--out", "nowhere"], ["nowhere holds no run", "name a preset"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_is_wrong_with_the_arguments_is_said(command, home, arguments, words, is_one_message):
    code, out, err = command("train", *arguments)
    assert (code, out) == (1, "")
    assert is_one_message(err, *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.epochs=0", ["epochs=0"]),
        ("train.lr=-1", ["lr=-1.0"]),
        ("train.monitor=foo", ["monitor='foo'"]),
        ("layer.merge=foo", ["'add', 'concat' or 'concat_lowrank'"]),
    ],
)
def test_errors_of_settings_say_what_is_allowed(command, home, change, words, is_one_message):
    code, _, err = command("train", "vit/folder", "--data", "pets", "--set", change)
    assert code == 1
    assert is_one_message(err, *words)


def test_a_file_of_settings_is_printed_and_read(command, home):
    code, text, _ = command("presets", "text/csv", "--yaml")
    assert code == 0
    (home / "reviews.yaml").write_text(text.replace("text_column: text", "text_column: review"), encoding="utf-8")
    run = ["train", "--config", "reviews.yaml", "--data", "reviews.csv", "--out", "run", "--epochs", "1"]
    code, _, err = command(*run)
    assert code == 1
    assert "no column 'label'" in err
    code, _, err = command(*small([*run, "--set", "data.label_column=sentiment"]))
    assert code == 0, err
    settings = json.loads((home / "run/settings.json").read_text(encoding="utf-8"))
    assert settings["name"] == "text/csv"
    assert settings["settings"]["data"]["text_column"] == "review"


def test_a_preset_lists_its_settings_with_their_choices(command):
    code, out, _ = command("presets", "tabular/csv")
    assert code == 0
    for words in ("data.categorical_columns", "classes, regression", "kep-svgp", "cosine, linear"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = command("presets")
    assert max(map(len, out.splitlines()[:-2])) <= 80


def test_the_version(command):
    code, out, _ = command("--version")
    assert code == 0
    assert re.fullmatch(r"probattn \d+\.\d+\S*\n", out)
