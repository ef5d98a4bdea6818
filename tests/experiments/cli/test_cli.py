"""The command, from the arguments to the files and words that a user sees."""

import functools
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from urllib.error import URLError

import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.table import Column, Table
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from probattn import draws
from probattn.experiments.cli import main, terminal
from probattn.experiments.config import presets
from probattn.experiments.config.settings import from_dict
from probattn.experiments.data.images.datasets import DatasetError, load
from probattn.experiments.evaluation import evaluate
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.reporting import report
from probattn.experiments.runs import folder as folder_
from probattn.experiments.runs import train
from probattn.experiments.studies import study
from probattn.functional.errors import NumericalError
from probattn.inference import History
from probattn.inference.methods import features
from probattn.inference.training.step import Step
from probattn.models import ViT

KEP, SOFTMAX, CGP = "digits/kep-svgp", "digits/softmax", "digits/cgp"
TINY = [
    "train.epochs=2",
    "train.warmup_epochs=0",
    "train.log_every=1",
    "data.limit=200",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
]


def assignments(changes):
    return [part for change in changes for part in ("--set", change)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of two finished tiny runs, by preset."""
    folders = {name: tmp_path_factory.mktemp("trained") / name.replace("/", "-") for name in (KEP, SOFTMAX)}
    for name, folder in folders.items():
        settings = presets.preset(name).with_changes(TINY)
        train.train(settings, folder, name=name, progress=False)
    return folders


@pytest.fixture
def kep(trained, tmp_path):
    """A copy of the finished KEP-SVGP run, to do with as a test likes."""
    return shutil.copytree(trained[KEP], tmp_path / "kep")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.fixture
def no_figures(monkeypatch):
    """Spares the seconds that drawing takes, where a test is about numbers."""
    monkeypatch.setattr(report, "save_figures", lambda *arguments: None)
    monkeypatch.setattr(report, "write", lambda *arguments, **options: None)


def contents(folder):
    """Bytes of every file by its path, TensorBoard's apart, which adds an empty one at each start."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def is_one_message(err, *words):
    """Whether stderr holds one error that has all the words, and nothing else."""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert [word for word in words if str(word) not in err] == []
    return True


# Training


def test_train_writes_a_run_and_says_what_came_out(command, tmp_path):
    out = tmp_path / "new" / "run"
    code, text, err = command("train", KEP, "--out", out, *assignments(TINY))
    assert code == 0
    names = {".lock", "settings.json", "last.pt", "best.pt", "log.jsonl", "tensorboard"}
    assert {path.name for path in out.iterdir()} == names
    log = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    epochs = [record for record in log if record["kind"] == "epoch"]
    best = max(epochs, key=lambda record: record["valid/accuracy"])
    assert text == (
        f"best epoch {best['epoch']} of 2, valid accuracy {best['valid/accuracy']:.4f}; next: probattn evaluate {out}\n"
    )
    assert [f"epoch {number}/2" in err for number in (1, 2)] == [True, True]
    assert len(epochs) == 2
    assert all(f"valid/{name}" in epochs[0] for name in ("nll", "ece", "auroc", "log_prob"))
    steps = [record for record in log if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, 9))  # 200 images, 64 a batch, 2 epochs
    for record in steps:
        terms = {key: value for key, value in record.items() if key == "nll" or key.startswith(("kl/", "penalty/"))}
        assert set(terms) == {"nll", "kl/network.blocks.1.attention.u", "penalty/network.blocks.1.attention.ksvd"}
        assert sum(terms.values()) == pytest.approx(record["loss"], rel=1e-4)
    saved = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    assert saved["name"] == KEP
    assert from_dict(saved["settings"]) == presets.preset(KEP).with_changes(TINY)


def test_the_same_seed_gives_the_same_run(command, tmp_path, trained):
    assert command("train", KEP, "--out", tmp_path / "again", *assignments(TINY))[0] == 0
    first, second = (torch.load(out / "best.pt") for out in (trained[KEP], tmp_path / "again"))
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    changes = assignments([*TINY, "train.seed=1"])
    assert command("train", KEP, "--out", tmp_path / "other", *changes)[0] == 0
    other = torch.load(tmp_path / "other" / "best.pt")
    assert not torch.equal(first["model"]["network.head.weight"], other["model"]["network.head.weight"])


def test_a_run_goes_to_runs_by_default(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [*TINY, "train.epochs=1", "data.limit=40"]
    code, text, _ = command("train", SOFTMAX, *assignments(changes))
    assert code == 0
    assert text.endswith("next: probattn evaluate runs/digits/softmax\n")
    assert (tmp_path / "runs/digits/softmax/best.pt").exists()


def test_resuming_a_finished_run_does_nothing_and_says_so(command, kep):
    before = contents(kep)
    code, text, err = command("train", KEP, "--out", kep, "--resume", *assignments(TINY))
    assert code == 0
    assert err == ""
    assert text.startswith(f"{kep} was finished already, after 2 epochs; nothing to do\nbest epoch ")
    assert contents(kep) == before


def test_resume_of_nothing_starts(command, tmp_path):
    changes = assignments([*TINY, "train.epochs=1"])
    code, text, _ = command("train", KEP, "--out", tmp_path / "run", "--resume", *changes)
    assert code == 0
    assert text.startswith("best epoch 1 of 1")


def test_drafts_that_a_killed_process_left_do_no_harm(command, tmp_path, trained):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".settings.json.123").write_text("{", encoding="utf-8")
    assert command("train", KEP, "--out", out, *assignments([*TINY, "train.epochs=1"]))[0] == 0
    (out / ".last.pt.123").write_bytes(b"half")
    (out / ".log.jsonl.123").write_bytes(b"half")
    resumed = command("train", KEP, "--out", out, "--resume", *assignments([*TINY, "train.epochs=1"]))
    assert resumed[0] == 0
    assert "finished already" in resumed[1]


# Warm starts

WARM = [*TINY, "warm_start.epochs=2", "train.num_samples=2"]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """The folder of a finished tiny run of two phases of two epochs, four steps each, and what it said."""
    folder, said = tmp_path_factory.mktemp("warmed") / "run", []
    train.train(presets.preset(CGP).with_changes(WARM), folder, name=CGP, progress=False, say=said.append)
    return folder, "\n".join(said)


def records(folder):
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def assert_same_checkpoint(one, other):
    one, other = (torch.load(path) for path in (one, other))
    assert one["model"].keys() == other["model"].keys()
    assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())
    assert {key: one["extra"][key] for key in ("epoch",)} == {key: other["extra"][key] for key in ("epoch",)}


def test_train_with_a_warm_start_says_what_was_carried_over(command, tmp_path):
    out = tmp_path / "run"
    code, text, err = command("train", CGP, "--out", out, *assignments(WARM))
    assert code == 0
    assert {path.name for path in out.iterdir()} == {
        ".lock",
        "settings.json",
        "last.pt",
        "best.pt",
        "log.jsonl",
        "tensorboard",
        "warm-start",
        "warm-start.json",
    }
    lines = text.splitlines()
    assert lines[0] == "warm start: kernel attention, 2 epochs"
    assert "  network.blocks.*.attention.query_key_value.weight ×2" in lines
    assert "  network.blocks.*.attention.latent.weight ×2" in lines
    assert "cgp attention, 2 epochs" in lines
    assert lines[-1].startswith("best epoch ")
    assert err.count("epoch 2/2") == 2
    report = json.loads((out / "warm-start.json").read_text(encoding="utf-8"))
    assert f"{len(report['carried'])} carried over" in lines
    assert "network.blocks.1.attention.query_key_value.weight" in report["carried"]
    assert "network.blocks.1.attention.latent.weight" in report["fresh"]
    assert report["unused"] == report["reshaped"] == []
    assert [len(records(folder)) for folder in (out / "warm-start", out)] == [10, 10]  # 8 steps and 2 epochs each


def test_the_run_starts_from_the_best_weights_of_the_warm_start(warmed, monkeypatch, tmp_path):
    starts = []
    monkeypatch.setattr(train, "fit", lambda model, guide, *arguments, **options: starts.append((model, options)))
    folder = shutil.copytree(warmed[0], tmp_path / "run")
    for name in ("last.pt", "best.pt", "log.jsonl", "warm-start.json"):
        (folder / name).unlink()
    train.train(presets.preset(CGP).with_changes(WARM), folder, name=CGP, resume=True)
    (first, phase), (model, options) = starts
    assert (phase["out"], phase["epochs"], phase["resume"]) == (folder / "warm-start", 2, True)
    assert (options["out"], options["epochs"], options["alpha_start"]) == (folder, 2, 0.0)
    assert type(first.network.blocks[0].attention).__name__ == "KernelAttention"
    best = torch.load(folder / "warm-start" / "best.pt")["model"]
    report = json.loads((folder / "warm-start.json").read_text(encoding="utf-8"))
    assert (folder / "warm-start.json").read_bytes() == (warmed[0] / "warm-start.json").read_bytes()
    weights = model.state_dict()
    assert set(report["carried"]) == set(best)
    assert [name for name in best if not torch.equal(best[name], weights[name])] == []


@pytest.mark.parametrize("step", [2, 6, 9, 11, 14])
def test_a_run_killed_in_either_phase_goes_on_as_if_it_had_not_been(command, monkeypatch, tmp_path, warmed, step):
    """Steps 1 to 8 are the warm start's, and 9 to 12 the first epoch of the run proper."""
    steps, loss = itertools.count(1), Step._loss

    def killed(self, *arguments):
        if next(steps) == step:
            raise KeyboardInterrupt
        return loss(self, *arguments)

    out = tmp_path / "run"
    monkeypatch.setattr(Step, "_loss", killed)
    code, _, err = command("train", CGP, "--out", out, *assignments(WARM))
    assert code == 130
    assert "--resume goes on" in err
    assert (out / "last.pt").exists() == (step > 12)
    code, text, _ = command("train", CGP, "--out", out, "--resume", *assignments(WARM))
    assert code == 0
    assert ("warm start: " in text) == (step <= 12)
    assert next(steps) == 16 + (step - 1) % 4 + 1 + 1  # those of the killed epoch, the kill and this one on top
    for name in ("best.pt", "last.pt", "warm-start/best.pt", "warm-start/last.pt"):
        assert_same_checkpoint(warmed[0] / name, out / name)
    for folder in ("", "warm-start"):
        assert records(warmed[0] / folder) == records(out / folder)
    assert (warmed[0] / "warm-start.json").read_bytes() == (out / "warm-start.json").read_bytes()


def test_resuming_with_another_warm_start_names_it(command, warmed, tmp_path):
    out = shutil.copytree(warmed[0], tmp_path / "run")
    before = contents(out)
    for change, words in {
        "warm_start.epochs=3": "warm_start.epochs: 2 → 3",
        "warm_start=none": "epochs: 2 → None",
    }.items():
        code, _, err = command("train", CGP, "--out", out, "--resume", *assignments([*WARM, change]))
        assert code == 1
        assert is_one_message(err, out, words)
    assert contents(out) == before


def test_resuming_a_finished_run_of_two_phases_does_nothing(command, warmed, tmp_path):
    out = shutil.copytree(warmed[0], tmp_path / "run")
    before = contents(out)
    code, text, err = command("train", CGP, "--out", out, "--resume", *assignments(WARM))
    assert (code, err) == (0, "")
    assert text.startswith(f"{out} was finished already, after 2 epochs; nothing to do\n")
    assert contents(out) == before


def test_a_layer_that_takes_nothing_over_is_refused_before_the_warm_start(command, tmp_path):
    changes = assignments([*TINY, "warm_start.epochs=1", "layer.rank=4"])
    code, text, err = command("train", KEP, "--out", tmp_path / "run", *changes)
    assert (code, text) == (1, "")
    assert err.startswith(
        "error: no matrix of the KEPSVGPAttention layers in the source has the name and shape of one here:"
    )
    assert "network.blocks.*.attention.query_key.weight" in err
    assert not (tmp_path / "run").exists()


def test_a_run_without_its_warm_start(command, tmp_path):
    code, text, _ = command("train", CGP, "--out", tmp_path / "run", *assignments([*WARM, "warm_start=none"]))
    assert code == 0
    assert text.startswith("best epoch ")
    assert not (tmp_path / "run" / "warm-start").exists()
    assert not (tmp_path / "run" / "warm-start.json").exists()


def test_a_fresh_run_sets_inducing_inputs_from_plain_training_images(monkeypatch, tmp_path):
    """Normalised and not augmented, the same for the same seed, and never again for a run that has weights."""
    data, seen, initialise = load("digits", limit=200), [], ViT.initialise_inducing
    monkeypatch.setattr(train, "load_data", lambda *arguments, **options: replace(data, augment=True))

    def spy(self, images):
        seen.append(images)
        initialise(self, images)

    monkeypatch.setattr(ViT, "initialise_inducing", spy)
    name = "digits/sparse-cgp"
    changes = [*TINY, "warm_start=none", "train.epochs=1", "train.num_samples=2"]
    for number, seed in enumerate((0, 0, 1)):
        settings = presets.preset(name).with_changes([*changes, f"train.seed={seed}"])
        train.train(settings, tmp_path / str(number), name=name, progress=False)
    assert len(seen) == 3
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    pixels = data.train.images.double() / 255
    plain = (pixels - pixels.mean()) / pixels.std(correction=0)
    distances = torch.cdist(seen[0].double().flatten(1), plain.flatten(1)).amin(1)
    assert seen[0].shape == (64, 1, 8, 8)
    assert distances.max() < 1e-4
    train.train(settings, tmp_path / "2", name=name, progress=False, resume=True)
    evaluate.evaluate(tmp_path / "2")
    assert len(seen) == 3


def test_setting_inducing_inputs_leaves_the_random_state_of_the_guide_alone(monkeypatch, tmp_path):
    """The guide's initial values are those that building alone gives, though the network was run before."""
    guides_, name = [], "digits/sgpa"
    settings = presets.preset(name).with_changes([*TINY, "warm_start=none", "layer.init_loc=1"])
    monkeypatch.setattr(train, "fit", lambda model, guide, *arguments, **options: guides_.append(guide))
    train.train(settings, tmp_path / "run", name=name)
    _, plain = train.build(settings, load("digits", limit=200))
    for name, value in guides_[0].state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])


# Evaluation


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("layer", "changes", "sites", "variants"),
    [
        ("kernel", [], 0, 0),
        ("kernel-symmetric", [], 0, 0),
        ("sgpa", ["warm_start=none"], 2, 3),
        ("sgpa", ["layer.inducing=none", "warm_start.epochs=1"], 0, 3),
        ("cgp", ["warm_start.epochs=1"], 0, 3),
        ("cgp", ["warm_start=none", "layer.last=1", "layer.collapsed=false", "layer.guide=learned"], 0, 3),
        ("cgp", ["warm_start=none", "layer.output=mean"], 0, 0),
        ("sparse-cgp", ["warm_start.epochs=1"], 0, 3),
    ],
)
def test_every_layer_is_trained_and_evaluated(command, tmp_path, layer, changes, sites, variants):
    """With and without latent sites: without global ones no posterior, without any that predictions see no variants."""
    out, name = tmp_path / "run", f"digits/{layer}"
    assert command("train", name, "--out", out, *assignments([*TINY, "train.num_samples=3", *changes]))[0] == 0
    code, text, err = command("evaluate", out)
    assert (code, err) == (0, "")
    values = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert f"{100 * values['metrics']['accuracy']:.2f}" in text
    assert all(np.isfinite(value) for value in values["metrics"].values())
    assert len(values["posterior"]) == sites
    assert len(values["variants"]) == variants
    if variants:
        assert values["variants"]["at its mean"] != values["variants"]["drawn from q"] == values["metrics"]
    assert list(values["similarity"]) == [f"network.blocks.{n}.attention" for n in range(2)]
    repeated = evaluate.evaluate(out).result
    assert repeated.metrics == values["metrics"]


def test_an_error_of_the_numerics_in_evaluation_is_one_message(command, kep, monkeypatch):
    def refuse(*arguments, **options):
        raise NumericalError("CGPAttention 'network.blocks.0.attention': 𝒦_o + σ²I is not positive definite")

    monkeypatch.setattr(features, "predict", refuse)
    code, text, err = command("evaluate", kep)
    assert (code, text) == (1, "")
    assert is_one_message(err, "network.blocks.0.attention", "not positive definite")


def test_evaluate_writes_table_metrics_figures_and_report(command, kep):
    code, text, err = command("evaluate", kep)
    assert (code, err) == (0, "")
    values = json.loads((kep / "metrics.json").read_text(encoding="utf-8"))
    for shown in (f"{100 * values['metrics']['accuracy']:.2f}", f"{10 * values['metrics']['nll']:.2f}", KEP, "FPR95"):
        assert shown in text
    assert text.endswith(f"report: {kep / 'report.html'}; all tables: {kep / 'tables'}\n")
    assert {path.suffix for path in (kep / "figures").iterdir()} == {".png"}
    assert {"training", "reliability", "risk_coverage", "confidence", "spectrum", "posterior"} <= {
        path.stem for path in (kep / "figures").iterdir()
    }
    for path in (kep / "figures").iterdir():
        with Image.open(path) as image:
            image.verify()
    page = (kep / "report.html").read_text(encoding="utf-8")
    assert f"probattn train {KEP} --set " in page
    assert values["best_epoch"] == torch.load(kep / "best.pt")["extra"]["epoch"]
    assert (values["run"], values["num_samples"], values["seed"]) == (KEP, 10, 0)


def test_metrics_equal_those_computed_from_the_probabilities_by_hand(kep):
    result = evaluate.evaluate(kep).result
    found = json.loads((kep / "metrics.json").read_text(encoding="utf-8"))["metrics"]
    expected = by_hand(result.probs.double().numpy(), result.labels.numpy())
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert len(result.labels) == 67  # as many of 359 test images as 200 are of 1079 training images


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", [KEP, SOFTMAX])
def test_metrics_equal_those_of_a_network_run_by_hand(command, trained, tmp_path, name):
    """Weights read from the file, images normalised here, u at its posterior mean."""
    folder = shutil.copytree(trained[name], tmp_path / "run")
    assert command("evaluate", folder)[0] == 0
    found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    found = found["variants"]["at its mean"] if name == KEP else found["metrics"]

    data = load("digits", limit=200)
    pixels = data.train.images.double() / 255
    x = ((data.test.images.double() / 255 - pixels.mean()) / pixels.std(correction=0)).float()
    model, _ = train.build(presets.preset(name).with_changes(TINY), data)
    weights = torch.load(folder / "best.pt")
    model.load_state_dict(weights["model"])
    means = {"network.blocks.1.attention.u": weights["guide"].get("network.blocks.1.attention.u.loc")}
    with torch.no_grad(), poutine.condition(data=means if name == KEP else {}):
        probs = model.network.eval()(x).softmax(-1)
    expected = by_hand(probs.double().numpy(), data.test.labels.numpy())
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-4)


def by_hand(probs, labels):
    """Metrics in plain numpy; AURC and ECE as loops."""
    confidence, wrong = probs.max(1), probs.argmax(1) != labels
    risks, errors = [], 0
    for count, index in enumerate(np.argsort(-confidence, kind="stable"), 1):
        errors += wrong[index]
        risks.append(errors / count)
    ece = 0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            ece += inside.mean() * abs(confidence[inside].mean() - (~wrong)[inside].mean())
    return {
        "accuracy": (~wrong).mean(),
        "mcc": matthews_corrcoef(labels, probs.argmax(1)),
        "nll": -np.log(probs[np.arange(len(labels)), labels]).mean(),
        "brier": ((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1).mean(),
        "aurc": np.mean(risks),
        "auroc": roc_auc_score(~wrong, confidence),
        "ece": ece,
    }


@pytest.mark.usefixtures("no_figures")
def test_evaluate_is_repeatable_and_the_seed_matters(command, kep):
    def metrics(*options):
        assert command("evaluate", kep, *options)[0] == 0
        return json.loads((kep / "metrics.json").read_text(encoding="utf-8"))

    first = metrics()
    torch.rand(7)  # whatever else has drawn
    assert metrics() == first
    other = metrics("--seed", 1)
    assert other["seed"] == 1
    assert other["metrics"]["nll"] != first["metrics"]["nll"]
    assert other["variants"]["at its mean"] == first["variants"]["at its mean"]
    few = metrics("--num-samples", 3)
    assert few["num_samples"] == 3
    assert few["metrics"]["nll"] != first["metrics"]["nll"]


def test_ten_draws_are_averaged_as_probabilities(kep):
    """The mean of the draws' probabilities, each draw one function on all images."""
    result = evaluate.evaluate(kep, num_samples=2, seed=5).result
    settings, _ = folder_.read_settings(kep)
    data = load("digits", limit=200)
    model, guide = train.build(settings, data)
    weights = torch.load(kep / "best.pt")
    model.load_state_dict(weights["model"])
    guide.load_state_dict(weights["guide"])
    torch.manual_seed(5)
    with torch.no_grad(), draws(2):
        sites = poutine.trace(guide).get_trace().nodes
    u = sites["network.blocks.1.attention.u"]["value"]
    assert u.shape[:2] == (2, 1)
    (x, _), *_ = train.loaders(settings, data, device="cpu").test
    model.eval()
    each = []
    for draw in u[:, 0]:
        with torch.no_grad(), poutine.condition(data={"network.blocks.1.attention.u": draw}):
            each.append(model.network(x).softmax(-1))
    assert not torch.equal(each[0], each[1])
    torch.testing.assert_close(result.probs[: len(x)], (each[0] + each[1]) / 2, atol=1e-6, rtol=1e-5)


def test_evaluate_needs_no_log(command, kep):
    (kep / "log.jsonl").unlink()
    result = evaluate.evaluate(kep).result
    assert result.steps == result.epochs == []
    assert (kep / "metrics.json").exists()


@pytest.mark.parametrize(
    "changes", [["train.lr=0.01", "layer.merge=add"], ["data.limit=none", "train.clip_norm=1.5"], []]
)
def test_the_reports_command_repeats_the_run(changes):
    settings = presets.preset(KEP).with_changes(changes)
    words = folder_.command(KEP, settings).split()
    assert words[:3] == ["probattn", "train", KEP]
    assert presets.preset(words[2]).with_changes(words[4::2]) == settings
    assert words[3::2] == ["--set"] * len([change for change in changes if change != "data.limit=none"])


@pytest.mark.parametrize("changes", [[], ["warm_start=none"], ["warm_start.epochs=3", "warm_start.kernel=ard"]])
@pytest.mark.parametrize("name", [CGP, "digits/sgpa"])
def test_the_reports_command_repeats_the_warm_start(name, changes):
    changes = changes if name == CGP or changes != ["warm_start=none"] else []
    settings = presets.preset(name).with_changes(changes)
    words = folder_.command(name, settings).split()
    assert presets.preset(words[2]).with_changes(words[4::2]) == settings
    assert words[3::2] == ["--set"] * len(words[4::2])


# The other commands


def test_demo_compares_the_twins_and_goes_on_where_it_stopped(command, tmp_path, monkeypatch):
    for name in (KEP, SOFTMAX):
        monkeypatch.setitem(presets.PRESETS, name, presets.preset(name).with_changes(TINY))
    code, text, _ = command("demo", "--out", tmp_path / "demo", "--epochs", 3)
    assert code == 0
    for word in ("ACC", "MCC", "AURC", "AUROC", "FPR95", "ECE", "NLL", "Brier"):
        assert word in text
    assert text.count(KEP) == text.count(SOFTMAX) == 2  # a heading and a row each
    assert text.endswith(f"report: {tmp_path / 'demo' / 'report.html'}\n")
    assert KEP in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    before = (tmp_path / "demo" / "kep-svgp" / "last.pt").read_bytes()
    monkeypatch.setattr(report, "write", lambda *arguments, **options: None)
    again = command("demo", "--out", tmp_path / "demo", "--epochs", 3)
    assert again[:2] == (0, text)
    assert (tmp_path / "demo" / "kep-svgp" / "last.pt").read_bytes() == before
    code, _, err = command("demo", "--out", tmp_path / "demo", "--epochs", 4)
    assert code == 1
    assert is_one_message(err, "train.epochs: 3 → 4", "choose another folder with --out")


@pytest.mark.usefixtures("no_figures")
def test_demo_of_all_layers_and_of_some(command, tmp_path, monkeypatch):
    names = presets.digits("all")
    for name in names:
        monkeypatch.setitem(presets.PRESETS, name, presets.preset(name).with_changes([*TINY, "train.num_samples=2"]))
    shown = []
    monkeypatch.setattr(report, "write", lambda path, results, **options: shown.append([each.name for each in results]))
    code, text, _ = command("demo", "--out", tmp_path / "demo", "--epochs", 3, "--layers", "all")
    assert code == 0
    assert shown.pop() == names
    assert [name for name in names if text.count(f" {name} ") != 1] == []
    for name in names:
        folder = tmp_path / "demo" / name.partition("/")[2]
        settings, _ = folder_.read_settings(folder)
        assert settings.epochs == 3
        assert train.epochs_done(folder) == settings.train.epochs
        assert (folder / "warm-start.json").exists() == (presets.preset(name).warm_start is not None)
    before = contents(tmp_path / "demo")
    code, text, _ = command("demo", "--out", tmp_path / "demo", "--epochs", 3, "--layers", "cgp,softmax")
    assert code == 0
    assert shown.pop() == [CGP, SOFTMAX]
    assert contents(tmp_path / "demo") == before


def test_demo_of_unknown_layers(command, tmp_path):
    code, text, err = command("demo", "--out", tmp_path / "demo", "--layers", "softmax,gcp")
    assert (code, text) == (1, "")
    assert is_one_message(err, "unknown layers 'gcp'", "all, or some of", "softmax,kep-svgp,kernel")
    assert not (tmp_path / "demo").exists()


def test_presets_show_the_epochs_of_both_phases(command):
    code, text, _ = command("presets")
    assert code == 0
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert " 200 + 400 " in rows["cgp/cifar10"]
    assert " 600 " in rows["cgp/cifar10-softmax"]
    assert "cgp, every block" in rows["cgp/cifar10"]
    assert "kep-svgp, last 1" in rows[KEP]
    assert "warm_start.epochs=N" in text


def test_presets_are_listed_in_full_however_narrow(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, text, _ = command("presets")
    assert code == 0
    assert [name for name in presets.PRESETS if f" {name} " not in text] == []
    assert "…" not in text


@pytest.mark.parametrize("width", [40, 200])
def test_tables_lose_no_cell_on_a_narrow_terminal(monkeypatch, capsys, width):
    monkeypatch.setattr(terminal, "console", Console(width=width, force_terminal=True, color_system=None))
    table = Table(Column("run", overflow="fold"), *(Column(f"metric {n}", no_wrap=True) for n in range(8)))
    table.add_row("a-rather-long-name", *(f"{n}.123456" for n in range(8)))
    terminal.show_table(table)
    text = capsys.readouterr().out
    assert "…" not in text
    assert [n for n in range(8) if f" {n}.123456 " not in text] == []


@pytest.mark.parametrize(
    "arguments", [[], ["train"], ["evaluate"], ["demo"], ["presets"], ["bench"], ["bench", "layers"]]
)
def test_help(command, arguments):
    code, text, err = command(*arguments, "--help")
    assert (code, err) == (0, "")
    assert "Usage: probattn" in text


# Bad input: one message, exit code 1, and what is on disk stays


@pytest.mark.parametrize(
    ("preset", "changes", "words"),
    [
        ("digits/kepsvgp", [], ["unknown preset 'digits/kepsvgp'", "did you mean digits/kep-svgp", "probattn presets"]),
        (KEP, ["train.epoch=3"], ["unknown key 'train.epoch'", "did you mean train.epochs"]),
        (KEP, ["train.epochs=many"], ["train.epochs takes int, got 'many'"]),
        (KEP, ["layer.merge=sum"], ["layer.merge is one of add, concat, concat_lowrank, got 'sum'"]),
        (KEP, ["train.epochs"], ["--set takes key=value, got 'train.epochs'"]),
        (KEP, ["train.epochs=0"], ["epochs=0"]),
        (KEP, ["layer.rank=100"], ["rank", "1..16", "100"]),
        (KEP, ["layer.rank=17", "network.dim=128", "network.patch_size=4"], ["rank 17", "4 tokens"]),
        (KEP, ["network.heads=3"], ["dim=64", "heads=3"]),
        (KEP, ["network.patch_size=3"], ["patch_size 3", "image_size 8"]),
        (KEP, ["network.patch_size=0"], ["patch_size=0"]),
        (KEP, ["network.dropout=2"], ["dropout"]),
        (KEP, ["layer.last=9"], ["last 9 of 4 blocks"]),
        (KEP, ["data.name=mnist"], ["unknown data set 'mnist'", "digits, cifar10, cifar100"]),
        (KEP, ["data.limit=0"], ["limit=0"]),
        (KEP, ["train.accelerator=warp"], ["warp", "cpu"]),
    ],
)
def test_wrong_arguments_of_train(command, tmp_path, preset, changes, words):
    code, text, err = command("train", preset, "--out", tmp_path / "run", *assignments(changes))
    assert (code, text) == (1, "")
    assert is_one_message(err, *words)
    if changes != ["train.accelerator=warp"]:  # known only when training starts
        assert not (tmp_path / "run").exists(), "a run that cannot start must not claim its folder"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu(command, tmp_path):
    code, _, err = command("train", KEP, "--out", tmp_path / "run", "--set", "train.accelerator=cuda")
    assert code == 1
    assert is_one_message(err, "train.accelerator=cuda", "no GPU", "auto or cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_network")
def test_missing_data(command, tmp_path):
    root = tmp_path / "nowhere"
    code, _, err = command("train", "kep-svgp/cifar10", "--data", root, "--out", tmp_path / "run")
    assert code == 1
    assert is_one_message(err, "CIFAR-10", root, "no network", "--data", "PROBATTN_DATA")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_network")
def test_half_written_data(command, tmp_path):
    for part in ("train", "test"):
        (tmp_path / "cifar10" / part / "cat").mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "cifar10" / part / "cat" / "1.png")
    before = contents(tmp_path)
    code, _, err = command("train", "kep-svgp/cifar10", "--data", tmp_path, "--out", tmp_path / "run")
    assert code == 1
    assert is_one_message(err, tmp_path / "cifar10", "CIFAR-10", "expected 50,000")
    assert contents(tmp_path) == before


def test_a_folder_that_holds_a_run(command, kep):
    before = contents(kep)
    code, text, err = command("train", KEP, "--out", kep, *assignments(TINY))
    assert (code, text) == (1, "")
    assert is_one_message(err, kep, "holds a run", "--resume", "--out")
    assert contents(kep) == before


def test_a_folder_that_holds_a_run_of_other_settings(command, kep):
    before = contents(kep)
    changes = assignments([*TINY, "train.epochs=3", "layer.rank=3"])
    code, text, err = command("train", KEP, "--out", kep, "--resume", *changes)
    assert (code, text) == (1, "")
    assert is_one_message(err, kep, "train.epochs: 2 → 3", "layer.rank: 8 → 3", "--out")
    assert contents(kep) == before


def test_a_folder_that_holds_the_twin(command, kep):
    before = contents(kep)
    code, _, err = command("train", SOFTMAX, "--out", kep, "--resume", *assignments(TINY))
    assert code == 1
    assert is_one_message(err, kep, "layer.name: 'kep-svgp' → 'softmax'")
    assert contents(kep) == before


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_folder_that_holds_other_files(command, tmp_path, resume):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = command("train", KEP, "--out", tmp_path, *resume, *assignments(TINY))
    assert code == 1
    assert is_one_message(err, tmp_path, "not an empty folder", "--out")
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_a_file_in_place_of_the_folder(command, tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    code, _, err = command("train", KEP, "--out", tmp_path / "file", *assignments(TINY))
    assert code == 1
    assert is_one_message(err, tmp_path / "file", "--out")
    code, _, err = command("train", KEP, "--out", tmp_path / "file" / "run", *assignments(TINY))
    assert code == 1
    assert is_one_message(err, tmp_path / "file" / "run", "cannot write", "choose another")
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "missing weight"])
def test_a_damaged_checkpoint_is_not_resumed_from(command, kep, damage):
    damage_checkpoint(kep / "last.pt", damage)
    before = contents(kep)
    code, _, err = command("train", KEP, "--out", kep, "--resume", *assignments(TINY))
    assert code == 1
    assert err.startswith("error: ")
    assert str(kep / "last.pt") in err
    assert contents(kep) == before


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "missing weight"])
def test_a_damaged_checkpoint_is_not_evaluated(command, kep, damage):
    damage_checkpoint(kep / "best.pt", damage)
    before = contents(kep)
    code, text, err = command("evaluate", kep)
    assert (code, text) == (1, "")
    assert err.startswith("error: ")
    assert str(kep / "best.pt") in err
    assert contents(kep) == before


def damage_checkpoint(path, damage):
    if damage == "missing weight":
        content = torch.load(path)
        del content["model"]["network.head.bias"]
        torch.save(content, path)
    else:
        whole = path.read_bytes()
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not a checkpoint\n"}[damage])


def test_a_checkpoint_of_another_network_is_not_evaluated(command, kep, trained):
    shutil.copy(trained[SOFTMAX] / "best.pt", kep / "best.pt")
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert err.startswith(f"error: {kep / 'best.pt'} is of another architecture")
    assert "network.blocks.1.attention" in err
    assert not (kep / "metrics.json").exists()


def test_evaluate_of_a_folder_without_a_run(command, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, text, err = command("evaluate", folder)
        assert (code, text) == (1, "")
        assert is_one_message(err, folder, "holds no run", "settings.json")
    assert contents(tmp_path) == {}
    assert not (tmp_path / "nowhere").exists()


def test_evaluate_of_a_run_without_a_whole_epoch(command, kep):
    (kep / "best.pt").unlink()
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
        ("{}", ["settings.json", "'settings'"]),
        ('{"name": "digits/kep-svgp", "settings": {"layer": {"name": "mystery"}}}', ["settings.json", "mystery"]),
        ("\x00\ufffd", ["settings.json"]),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_broken_settings(command, kep, text, words, verb):
    (kep / "settings.json").write_text(text, encoding="utf-8")
    before = contents(kep)
    more = ["--resume", *assignments(TINY)]
    code, _, err = command(*(["evaluate", kep] if verb == "evaluate" else ["train", KEP, "--out", kep, *more]))
    assert code == 1
    assert is_one_message(err, kep, *words)
    assert contents(kep) == before


def test_a_setting_of_the_wrong_kind_is_named(command, kep):
    content = json.loads((kep / "settings.json").read_text(encoding="utf-8"))
    content["settings"]["layer"]["rank"] = "8"
    (kep / "settings.json").write_text(json.dumps(content), encoding="utf-8")
    code, _, err = command("evaluate", kep)
    assert code == 1
    assert is_one_message(err, kep / "settings.json", "layer.rank", "'8'")


# Words on the way out


def test_an_error_is_shown_as_it_is(command, monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise DatasetError("pip install probattn[digits]; [red]x[/red]")

    monkeypatch.setattr(train, "load_data", fail)
    code, _, err = command("train", KEP, "--out", tmp_path / "[bold]run")
    assert code == 1
    assert err == "error: pip install probattn[digits]; [red]x[/red]\n"
    code, _, err = command("evaluate", tmp_path / "[bold]run")
    assert code == 1
    assert is_one_message(err, "[bold]run holds no run")


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(train, "load_data", lambda *arguments, **options: {}["bug"])
    monkeypatch.setattr(sys, "argv", ["probattn", "train", KEP])
    with pytest.raises(KeyError, match="bug"):
        main.main()


@pytest.mark.parametrize(("arguments", "advice"), [(["train", KEP], "--resume"), (["demo"], "same command")])
def test_stopping_by_hand_tells_how_to_go_on(command, monkeypatch, tmp_path, arguments, advice):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", stop)
    code, _, err = command(*arguments, "--out", tmp_path)
    assert code == 130
    assert err.startswith("stopped; ")
    assert advice in err


def test_a_metric_that_was_never_a_number_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "train", lambda *arguments, **options: History())
    code, _, err = command("train", KEP, "--out", tmp_path, "--set", "train.monitor=auroc")
    assert code == 1
    assert is_one_message(err, "auroc", "train.monitor")


def test_the_process_itself(tmp_path):
    """Interrupted in training: no traceback, exit code 130; then an error: exit code 1, stderr alone."""
    start = [sys.executable, "-m", "probattn.experiments"]
    changes = assignments([*TINY, "train.epochs=1000"])
    training = [*start, "train", KEP, "--out", str(tmp_path / "run"), *changes]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    with subprocess.Popen(training, **streams, preexec_fn=heard) as process:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "run" / "last.pt").exists():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "stopped; the same command with --resume goes on after the last whole epoch"
    assert "Traceback" not in err
    done = subprocess.run(training, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert is_one_message(done.stderr, tmp_path / "run", "holds a run", "--resume")


@pytest.fixture
def softmax(trained, tmp_path):
    """A copy of the finished softmax run."""
    return shutil.copytree(trained[SOFTMAX], tmp_path / "softmax")


SHIFT = ("--shift", "--corruptions", "gaussian_noise,fog", "--severities", "1,5")


def test_evaluate_by_methods_on_shifted_and_foreign_images(command, kep, no_figures):
    code, text, err = command("evaluate", kep, *SHIFT, "--ood", "letters", "--method", "temperature,laplace")
    assert (code, err) == (0, "")
    for words in ("temperature scaling", "KFLLLA", "gaussian_noise", "severity 5", "letters, Entropy", "risk ≤ 5 %"):
        assert words in text
    content = json.loads((kep / "metrics.json").read_text())
    assert set(content["methods"]) == {"posterior", "temperature", "laplace"}
    fog = content["methods"]["posterior"]["shift"]["fog"]["5"]["accuracy"]
    assert f"{100 * fog:.2f}" in text
    names = {path.name for path in (kep / "tables").iterdir()}
    assert {"test.md", "shift.tex", "shift-nll-laplace.csv", "ood-temperature.md"} <= names
    rows = (kep / "tables" / "shift-accuracy-posterior.csv").read_text().splitlines()
    assert rows[2].startswith("fog,")
    assert float(rows[2].split(",")[2]) == fog
    assert (kep / "figures" / "shift-accuracy.png").stat().st_size > 1000
    assert content["decisions"]["abstention"]["target"] == 0.05


def test_evaluate_beside_a_baseline(command, kep, softmax, no_figures, monkeypatch):
    code, _, err = command("evaluate", kep, *SHIFT, "--baseline", softmax)
    assert code == 1
    assert is_one_message(err, "was not evaluated under shift", "--shift")
    assert not (kep / "predictions").exists()
    command("evaluate", softmax, *SHIFT)
    drawn, boxes = [], shift_plots.boxes
    monkeypatch.setattr(shift_plots, "boxes", lambda runs, **options: drawn.append(train) or boxes(train, **options))
    code, _, err = command("evaluate", kep, *SHIFT, "--baseline", softmax)
    assert (code, err) == (0, "")
    assert all(list(train) == [SOFTMAX, KEP] for train in drawn)
    assert drawn[0][SOFTMAX] != drawn[0][KEP]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "laplac"], ["laplac", "did you mean laplace"]),
        (["--ood", "lettres"], ["lettres", "letters"]),
        (["--shift", "--severities", "one"], ["severities", "one"]),
        (["--shift", "--severities", "0"], ["0"]),
        (["--shift", "--corruptions", "fogg"], ["fogg", "fog"]),
    ],
)
def test_wrong_arguments_of_evaluate(command, kep, arguments, words):
    code, text, err = command("evaluate", kep, *arguments)
    assert (code, text) == (1, "")
    assert is_one_message(err, *words)
    assert not (kep / "predictions").exists()


def test_compare_prints_and_writes_tables_and_figures(command, kep, softmax, no_figures, tmp_path):
    out = tmp_path / "compared"
    for run in (kep, softmax):
        command("evaluate", run, *SHIFT, "--ood", "letters")
    code, text, err = command("compare", softmax, kep, "--out", out)
    assert (code, err) == (0, "")
    values = {run: json.loads((run / "metrics.json").read_text())["metrics"] for run in (kep, softmax)}
    for words in ("Test data", "Corrupted test images", "AUROC", KEP, SOFTMAX):
        assert words in text
    difference = 100 * (values[kep]["accuracy"] - values[softmax]["accuracy"])
    assert f"{difference:+.2f}" in text.replace("−", "-")
    names = {path.name for path in out.iterdir()}
    assert {"test.md", "test.tex", "test.csv", "shift.md", "ood-letters-auroc.csv", "ood-letters-fpr95_in.tex"} <= names
    assert {"test.png", "shift.png", "shift-accuracy.png", "ood-letters-auroc.png"} <= names
    for path in out.glob("*.png"):
        with Image.open(path) as image:
            image.verify()


def test_compare_of_a_run_that_was_not_evaluated(command, kep, tmp_path):
    code, text, err = command("compare", kep, "--out", tmp_path / "out")
    assert (code, text) == (1, "")
    assert is_one_message(err, "was not evaluated", "probattn evaluate")
    assert not (tmp_path / "out").exists()


def test_a_study_takes_presets_or_layers(command, tmp_path):
    code, out, err = command("study", "digits/cgp", "--layers", "softmax", "--out", tmp_path / "study")
    assert (code, out) == (1, "")
    assert is_one_message(err, "give presets, or --layers", "not both")
    assert not (tmp_path / "study").exists()


def test_study_trains_evaluates_and_compares(command, tmp_path, monkeypatch):
    done = []

    def instead(todo, *, by, workers, say):
        assert by == ["temperature"]
        for job in todo:
            settings = presets.preset(job.preset).with_changes([*TINY, f"train.seed={job.seed}"])
            train.train(settings, job.folder, name=job.preset, progress=False)
            evaluate.evaluate(job.folder)
            done.append((job.preset, job.seed, workers))

    monkeypatch.setattr(study, "run_study", instead)
    code, text, err = command(
        "study", "--out", tmp_path / "study", "--seeds", "2", "--workers", "3", "--method", "temperature"
    )
    assert (code, err) == (0, "")
    assert done == [(name, seed, 3) for seed in (0, 1) for name in (SOFTMAX, KEP)]
    assert "ensemble of 2" in text
    assert (tmp_path / "study" / "comparison" / "test.md").exists()
