"""Fixtures shared by tests of several rooms."""

import gc
import os
import sys
from collections import Counter

import pytest

SEED = int(os.environ.get("PROBATTN_TEST_SEED", "0"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The truth comes first, since the rest builds on it; long lists of tests before short ones."""
    numbers = Counter(item.path for item in items)
    items.sort(key=lambda item: ("/tests/truth/" not in str(item.path), -numbers[item.path]))


def pytest_collection_finish():
    """Exempt what the imports have created from garbage collection, which tests of memory call
    often."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process as `main` does: exit code, stdout, stderr. A traceback fails
    the test."""
    from probattn.experiments.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["probattn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main.main()
        return stopped.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def succeed(command):
    """Runs a command that must succeed: its stdout."""

    def run(*arguments):
        code, out, err = command(*arguments)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def refused(command):
    """Runs a command that must fail and print nothing: its stderr."""

    def run(*arguments):
        code, out, err = command(*arguments)
        assert (code, out, "error: " in err) == (1, "", True), err
        return err

    return run


@pytest.fixture
def threads():
    """Sets the number of threads for the rest of a test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def own_state():
    """Each test starts from the random state of the run's seed, and has Pyro's global parameter
    store to itself.

    The seed is the environment variable PROBATTN_TEST_SEED, 0 by default. It is that of PyTorch,
    NumPy and Python.
    """
    import pyro  # here, since the process that distributes the tests needs none of it

    pyro.set_rng_seed(SEED)
    with pyro.get_param_store().scope():  # Pyro's own ELBOs share parameters by name
        yield
