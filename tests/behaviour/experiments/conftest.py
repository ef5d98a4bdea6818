"""Tiny runs, results of synthetic runs, and checks of the files that a command writes."""

import shutil
import urllib.request
from dataclasses import replace
from urllib.error import URLError

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.evaluation import evaluate
from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting import report
from probattn.experiments.runs import train
from probattn.inference import Prediction, metrics
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.diagnostics.convergence import SiteConvergence

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
TINY = (
    "train.epochs=2",
    "train.warmup_epochs=0",
    "train.log_every=1",
    "data.limit=200",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
)


@pytest.fixture(scope="session")
def tiny():
    """Changes of settings that make a run on digits take a second."""
    return TINY


@pytest.fixture(scope="session")
def assignments():
    """Function that returns the options ``--set`` of some changes."""
    return lambda changes: [part for change in changes for part in ("--set", change)]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Folders of two finished tiny runs, by preset; tests work on copies."""
    folders = {name: tmp_path_factory.mktemp("trained") / name.replace("/", "-") for name in (KEP, SOFTMAX)}
    for name, folder in folders.items():
        train.train(presets.preset(name).with_changes(TINY), folder, name=name, progress=False)
    return folders


@pytest.fixture(scope="session")
def evaluated(trained, tmp_path_factory):
    """Folders of the same runs, evaluated on two corruptions at severities 1 and 5 and on letters (OOD), by preset."""
    folders = {name: tmp_path_factory.mktemp("evaluated") / folder.name for name, folder in trained.items()}
    for name, folder in folders.items():
        shutil.copytree(trained[name], folder)
        shifts = {"shift": True, "corruptions": ("gaussian_noise", "fog"), "severities": (1, 5)}
        evaluate.evaluate(folder, ood=("letters",), **shifts)
    return folders


@pytest.fixture
def kep(trained, tmp_path):
    """A copy of the finished KEP-SVGP run."""
    return shutil.copytree(trained[KEP], tmp_path / "kep")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.fixture
def no_figures(monkeypatch):
    """Skip the seconds that drawing takes, where a test is about numbers."""
    monkeypatch.setattr(report, "figures", lambda result: {})
    monkeypatch.setattr(report, "save_figures", lambda *arguments: [])
    monkeypatch.setattr(report, "write", lambda *arguments, **options: None)


@pytest.fixture(scope="session")
def contents():
    """Function that returns the bytes of every file in a folder by its path."""

    def read(folder):
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    return read


@pytest.fixture(scope="session")
def is_one_message():
    """Function that asserts that stderr holds one error of one line with all of some words."""

    def check(err, *words):
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert [word for word in words if str(word) not in err] == []
        return True

    return check


def make_result(name="softmax", *, n=60, classes=4, channels=1, seed=0, probs=None, labels=None, **changes):
    generator = torch.Generator().manual_seed(seed)
    if probs is None:
        probs = (2 * torch.randn(n, classes, generator=generator)).softmax(-1)
    if labels is None:
        others = torch.randint(0, classes, (n,), generator=generator)
        labels = torch.where(torch.rand(n, generator=generator) < 0.7, probs.argmax(-1), others)
        labels[0] = (probs[0].argmax() + 1) % classes  # at least one wrong answer
    ramp = torch.arange(n, dtype=torch.uint8)[:, None, None, None]
    given = {
        "name": name,
        "command": f"probattn train {name}",
        "settings": {"epochs": 2, "optimiser.lr": 1e-3},
        "metrics": metrics.evaluate(probs, labels),
        "steps": [
            {"step": t, "epoch": t // 4, "loss": 3.5 - t / 4, "nll": 2.5 - t / 4, "kl/a.u": 1.0, "lr": 0.1}
            for t in range(8)
        ],
        "epochs": [{"epoch": e, "step": 4, "valid/accuracy": 0.5 + e / 4, "valid/nll": 1 - e / 4} for e in (0, 1)],
        "test": Prediction(probs=probs, labels=labels),
        "data": Images(ramp.expand(n, channels, 5, 5).contiguous(), labels),  # image i is filled with i
        "classes": tuple(f"class {c}" for c in range(classes)),
        "spectra": {},
        "posterior": [],
        "variants": {},
    }
    return RunResult(**(given | changes))


def make_probabilistic(name="kep-svgp", n=60, **changes):
    values, scale = torch.tensor([[4.0, 2, 1], [3, 1, 0.5]]), torch.tensor([[4.0, 2]] * 2)
    shares = {"captured": torch.tensor([0.75, 0.85]), "best": torch.tensor([0.95, 0.99])}
    spectra = {"network.blocks.0.attention": Spectrum(values, scale, **shares)}
    posterior = [
        SiteConvergence(site=site, size=size, num_data=100, kl=kl, std_ratio=(std, std, std))
        for site, size, kl, std in (
            ("network.blocks.0.attention.u", 120, 60.0, 0.25),
            ("network.blocks.1.attention.u", 12, 3.0, 1.5),
        )
    ]
    base = make_result(name, seed=1, n=n)
    variants = {
        "at its mean": base.metrics,
        "drawn from q": base.metrics,
        "drawn from the prior": dict.fromkeys(DISPLAY, 0.4321),
    }
    similarity = {"network.blocks.0.attention": 0.25, "network.blocks.1.attention": 0.75}
    given = {"spectra": spectra, "posterior": posterior, "variants": variants, "similarity": similarity}
    return replace(base, **(given | changes))


@pytest.fixture
def result():
    """Function that builds the result of a softmax run: n predictions, some wrong, where image i is filled with i."""
    return make_result


@pytest.fixture
def probabilistic():
    """Function that builds the result of a run with latent sites."""
    return make_probabilistic
