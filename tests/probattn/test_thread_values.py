"""Values of which each thread has its own: where they are set, in other threads, and in compiled functions."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from probattn.thread_values import ThreadValue


def test_a_value_is_replaced_inside_and_restored_after_an_error():
    value = ThreadValue(1)
    with value.replaced(2):
        assert value.value == 2
        with pytest.raises(ZeroDivisionError), value.replaced(0):
            1 / value.value
        assert value.value == 2
    assert value.value == 1


def test_another_thread_has_the_initial_value():
    value = ThreadValue("initial")
    with ThreadPoolExecutor(1) as other, value.replaced("here"):
        assert other.submit(lambda: value.value).result() == "initial"
        there = value.replaced("there")
        other.submit(there.__enter__).result()
        assert other.submit(lambda: value.value).result() == "there"
        assert value.value == "here"


def test_a_compiled_function_follows_the_value_without_a_graph_break():
    factor = ThreadValue(None)

    @torch.compile(backend="eager", fullgraph=True)
    def scaled(x):
        return x if factor.value is None else x * factor.value

    one = torch.ones(())
    assert scaled(one) == 1
    with factor.replaced(3):
        assert scaled(one) == 3
        with ThreadPoolExecutor(1) as other:
            assert other.submit(scaled, one).result() == 1
    assert scaled(one) == 1
