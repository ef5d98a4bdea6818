"""KSVD against brute force and the identities of the exact singular value decomposition, in
float64."""

import exact_ksvd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling import randn
from torch.testing import assert_close

from probattn.functional import ksvd


@pytest.fixture
def problem():
    """E, R, W_e, W_r and λ of two examples and three heads."""
    scores, weights = randn(2, 2, 3, 7, 4), randn(2, 2, 3, 5, 4, seed=2)
    return *scores, *weights, randn(3, 4, seed=4).exp()


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_objective_vanishes_with_its_gradient_at_exact_triplets(rank):
    """Of full rank (s = d) and of rank below it, for features of 9 tokens in 5 dimensions."""
    phi_q, phi_k = ksvd.cosine_features(randn(9, 5)), ksvd.cosine_features(randn(9, 5, seed=1))
    w_e, w_r, values = (
        t.requires_grad_() for t in exact_ksvd.singular_triplets(phi_q, phi_k, rank)[:3]
    )
    objective = ksvd.objective(phi_q @ w_e, phi_k @ w_r, w_e, w_r, values)
    assert abs(objective.item()) < 1e-10
    gradients = torch.autograd.grad(objective, (w_e, w_r, values))
    assert_close(gradients, (torch.zeros_like(w_e), torch.zeros_like(w_r), torch.ones_like(values)))


def test_objective_and_both_penalties_are_their_definitions_by_traces(problem):
    """The penalty squares each head and example per token; the authors' the mean over them, its
    coupling whole."""
    e, r, w_e, w_r, lam = problem
    scores = problem[:4]
    variances = 0.5 * sum(
        torch.einsum("bhns,hs,bhns->bh", score, 1 / lam, score) for score in (e, r)
    )
    coupling, lengths = torch.einsum("bhds,bhds->bh", w_e, w_r), torch.tensor([[7], [3]])
    assert_close(ksvd.objective(*problem), coupling - variances)
    assert_close(
        ksvd.penalty(scores, lam, lengths), ((coupling - variances) / lengths).square().mean(-1)
    )
    assert_close(
        ksvd.penalty_of_mean(scores, lam, 7), (coupling - variances / 7).mean().square().expand(2)
    )


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_scores_do_not_depend_on_the_length_of_a_row_in_float32(scale):
    x, weights = randn(1, 1, 4, 5).float(), randn(1, 5, 2, seed=1).float()
    assert_close(ksvd.scores(x * scale, weights), ksvd.scores(x, weights))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    count=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_spaced_rows_take_evenly_spaced_real_tokens(lengths, count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = max(lengths)
    x = torch.randn(len(lengths), tokens, 2, generator=generator)
    mask = torch.stack([torch.randperm(tokens, generator=generator) < n for n in lengths])
    rows = ksvd.spaced_rows(x, count, mask)
    for b, n in enumerate(lengths):
        used = min(n, count)
        index = [j * (n - 1) // max(used - 1, 1) for j in range(used)]
        assert_close(rows[b, :used], x[b, mask[b]][index])
        assert rows[b, used:].eq(0).all()
