"""The dense layer alone: the paper's forms without noise."""

import pytest
import torch
from torch.testing import assert_close

DIM, TOKENS = 6, 5
GUIDES = ["posterior", "prior", "learned"]
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True, False, False, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{"noisy_canonical": False}, {"noisy_output": False}], ids=str)
@pytest.mark.parametrize("guide", GUIDES)
def test_regulariser_of_the_papers_forms(dense, guide, options):
    layer, x = dense.make(canonical_guide=guide, regulariser_norm="example", **options), randn(2, TOKENS, DIM)
    r = dense.r_of(layer, x)
    for b, _, heads in dense.loops(layer, x):
        assert_close(r[b], sum(head.bound(guide) for head in heads))


@pytest.mark.parametrize("options", [{"noisy_canonical": False}, {"noisy_output": False}], ids=str)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_the_papers_forms_are_loops_over_examples_and_heads(dense, layer_is_loops, options, mask):
    layer_is_loops(dense, options, randn(3, TOKENS, DIM), mask)


@pytest.mark.parametrize("option", ["noisy_canonical", "noisy_output"])
def test_the_signature_holds_the_papers_forms(dense, option):
    assert dense.make().signature() != dense.make(**{option: False}).signature()
