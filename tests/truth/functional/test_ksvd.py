"""KSVD against brute force and the identities of the exact singular value decomposition, in float64."""

import exact_ksvd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from probattn.functional import ksvd


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def exact():
    """Exact triplets of full rank (s = d) and of rank below it, for features of 9 tokens in 5 dimensions."""
    phi_q, phi_k = ksvd.cosine_features(randn(2, 9, 5)), ksvd.cosine_features(randn(2, 9, 5, seed=1))
    return phi_q, phi_k


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_objective_vanishes_with_its_gradient_at_exact_triplets(exact, rank):
    phi_q, phi_k = (phi[:1] for phi in exact)
    w_e, w_r, values, _, _ = (t.squeeze(0).requires_grad_() for t in exact_ksvd.singular_triplets(phi_q, phi_k, rank))
    e, r = phi_q[0] @ w_e, phi_k[0] @ w_r
    objective = ksvd.objective(e, r, w_e, w_r, values)
    assert abs(objective.item()) < 1e-10
    grad_e, grad_r, grad_values = torch.autograd.grad(objective, (w_e, w_r, values))
    assert_close(grad_e, torch.zeros_like(grad_e))
    assert_close(grad_r, torch.zeros_like(grad_r))
    assert_close(grad_values, torch.ones_like(grad_values))


def test_objective_is_its_definition_by_traces():
    e, r, w_e, w_r = randn(2, 3, 7, 4), randn(2, 3, 7, 4, seed=1), randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
    lam = randn(3, 4, seed=4).exp()
    value = ksvd.objective(e, r, w_e, w_r, lam)
    for b in range(2):
        for h in range(3):
            inverse = torch.diag(1 / lam[h])
            expected = (
                -0.5 * torch.trace(e[b, h] @ inverse @ e[b, h].T)
                - 0.5 * torch.trace(r[b, h] @ inverse @ r[b, h].T)
                + torch.trace(w_e[b, h].T @ w_r[b, h])
            )
            assert_close(value[b, h], expected)


def test_penalty_squares_each_head_and_example_per_token():
    e, r, w_e, w_r = randn(2, 3, 7, 4), randn(2, 3, 7, 4, seed=1), randn(3, 5, 4, seed=2), randn(3, 5, 4, seed=3)
    lam, lengths = randn(3, 4, seed=4).exp(), torch.tensor([[7], [3]])
    value = ksvd.penalty(e, r, w_e, w_r, lam, lengths)
    for b in range(2):
        heads = [ksvd.objective(e[b, h], r[b, h], w_e[h], w_r[h], lam[h]) / lengths[b, 0] for h in range(3)]
        assert_close(value[b], torch.stack(heads).square().mean())


def test_penalty_of_mean_is_the_authors_form():
    e, r, w_e, w_r = randn(2, 3, 7, 4), randn(2, 3, 7, 4, seed=1), randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
    lam = randn(3, 4, seed=4).exp()
    variances = 0.5 * ((e.square() + r.square()) / lam.unsqueeze(-2)).sum(-1).mean()
    trace = (w_e.mT @ w_r).diagonal(dim1=-2, dim2=-1).sum(-1).mean()
    assert_close(ksvd.penalty_of_mean(e, r, w_e, w_r, lam, 7), (variances - trace).square().expand(2))


def test_authors_form_is_solved_by_singular_values_over_the_number_of_tokens(exact):
    phi_q, phi_k = (phi[:1] for phi in exact)
    w_e, w_r, values, _, _ = exact_ksvd.singular_triplets(phi_q, phi_k, 3)
    e, r = ((phi @ w).unsqueeze(1) for phi, w in ((phi_q, w_e), (phi_k, w_r)))
    weights = w_e.unsqueeze(1), w_r.unsqueeze(1)
    assert_close(ksvd.penalty_of_mean(e, r, *weights, values / 9, 9), torch.zeros(1, dtype=torch.float64))
    assert ksvd.penalty_of_mean(e, r, *weights, values, 9).item() > 0.1


def test_zero_rows_stay_zero_with_finite_gradients():
    x = randn(1, 1, 3, 5)
    x[0, 0, 1] = 0
    x.requires_grad_()
    weights = randn(1, 5, 2, seed=1)
    value = ksvd.scores(x, weights)
    assert value[0, 0, 1].eq(0).all()
    assert ksvd.cosine_features(x)[0, 0, 1].eq(0).all()
    value.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_scores_do_not_depend_on_the_length_of_a_row_in_float32(scale):
    x, weights = randn(1, 1, 4, 5).float(), randn(1, 5, 2, seed=1).float()
    assert_close(ksvd.scores(x * scale, weights), ksvd.scores(x, weights))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), count=st.integers(1, 12), seed=st.integers(0, 1000))
def test_spaced_rows_take_evenly_spaced_real_tokens(lengths, count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = max(lengths)
    x = torch.randn(len(lengths), tokens, 2, generator=generator)
    mask = torch.stack([torch.randperm(tokens, generator=generator) < n for n in lengths])
    rows = ksvd.spaced_rows(x, count, mask)
    for b, n in enumerate(lengths):
        used = min(n, count)
        real = x[b, mask[b]]
        index = [j * (n - 1) // max(used - 1, 1) for j in range(used)]
        assert_close(rows[b, :used], real[index])
        assert rows[b, used:].eq(0).all()
