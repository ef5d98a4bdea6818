"""A check that nothing touches Pyro."""

import pyro
import pytest
from pyro.poutine.messenger import Messenger


@pytest.fixture
def no_pyro(monkeypatch):
    """Function after whose call every use of Pyro's handlers or parameter store is an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("this touches Pyro")

    def enable():
        for module in (pyro.poutine.runtime, pyro.primitives):
            monkeypatch.setattr(module, "apply_stack", refuse)
        monkeypatch.setattr(Messenger, "__enter__", refuse)
        for name in ("scope", "__setitem__", "setdefault"):
            monkeypatch.setattr(type(pyro.get_param_store()), name, refuse)

    yield enable
    monkeypatch.undo()
