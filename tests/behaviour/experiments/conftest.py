"""Tiny runs, and checks of the files that a command writes."""

import shutil
import urllib.request
from urllib.error import URLError

import pytest

from probattn.experiments.config import presets
from probattn.experiments.evaluation import evaluate
from probattn.experiments.reporting import report
from probattn.experiments.runs import train

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
NETWORK = ("network.dim=16", "network.depth=2", "network.heads=2", "network.mlp_dim=16")
TINY = ("train.epochs=2", "train.warmup_epochs=0", "train.log_every=1", "data.limit=200", *NETWORK)


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
    folders = {
        name: tmp_path_factory.mktemp("trained") / name.replace("/", "-") for name in (KEP, SOFTMAX)
    }
    for name, folder in folders.items():
        train.train(presets.preset(name).with_changes(TINY), folder, name=name, progress=False)
    return folders


@pytest.fixture(scope="session")
def evaluated(trained, tmp_path_factory):
    """Folders of the same runs, evaluated on two corruptions at severities 1 and 5 and on letters
    (OOD), by preset."""
    folders = {
        name: tmp_path_factory.mktemp("evaluated") / folder.name for name, folder in trained.items()
    }
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
