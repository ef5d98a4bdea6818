"""Fixtures shared by tests of several rooms."""

import gc
import sys

import pyro
import pytest
import torch


def pytest_collection_finish():
    """Exempt what the imports have created from garbage collection, which tests of memory call often."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process as `main` does: exit code, stdout, stderr. A traceback fails the test."""
    from probattn.experiments.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["probattn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main.main()
        return stopped.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def threads():
    """Sets the number of threads for the rest of a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def own_state():
    """Each test starts from the same random state, and has Pyro's global parameter store to itself."""
    torch.manual_seed(0)
    with pyro.get_param_store().scope():  # Pyro's own ELBOs share parameters by name
        yield
