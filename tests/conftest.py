"""What tests of several rooms share."""

import sys

import pyro
import pytest
import torch


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
def own_param_store():
    """Each test has Pyro's global parameter store to itself: Pyro's own ELBOs share parameters by name."""
    with pyro.get_param_store().scope():
        yield
