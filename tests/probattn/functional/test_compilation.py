"""Functions that are compiled in a context: where they are, how often, and what they return."""

import pytest
import torch

from probattn.functional.compilation import compilable, compiled


@pytest.fixture
def compilations(monkeypatch):
    """Names of the functions that were given to torch.compile, which returns the double of what they return."""
    names = []

    def double(function):
        names.append(function.__name__)
        return lambda *args, **kwargs: 2 * function(*args, **kwargs)

    monkeypatch.setattr(torch, "compile", double)
    return names


def total(x, *, weight):
    return weight * x.sum()


def test_a_function_is_compiled_once_and_in_the_context_alone(compilations):
    run = compilable(total)
    assert (run(torch.ones(3), weight=2), compilations) == (6, [])
    for _ in range(2):
        with compiled():
            assert run(torch.ones(3), weight=2) == 12
    assert (run(torch.ones(3), weight=2), compilations) == (6, ["total"])


def test_an_error_ends_the_context(compilations):
    with pytest.raises(ZeroDivisionError), compiled():
        raise ZeroDivisionError
    assert (compilable(total)(torch.ones(3), weight=2), compilations) == (6, [])
