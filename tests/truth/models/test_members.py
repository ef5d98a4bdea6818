"""Depth and groups of heads as latent variables, summed out exactly in one pass."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from sampling import randn
from small_vit import small_vit
from torch.testing import assert_close

from probattn import RFFGPAttention, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Classifier, Depths, Members, TabularTransformer, group_heads

LABELS = torch.tensor([0, 2, 1, 1, 0])


def network(depth=3):
    torch.manual_seed(0)
    return small_vit(RFFGPAttention, depth=depth, heads=4).double()


def grouped(of):
    return group_heads(of, 2)


CASES = pytest.mark.parametrize(("wrap", "members"), [(Depths, 3), (grouped, 2)])


@CASES
def test_the_member_is_summed_out_for_each_example(wrap, members):
    """−log Σ_k p(k) p(y | x, k), by Pyro's ELBO and by this library's."""
    inner, x = wrap(network()).double(), randn(5, 1, 4, 4)
    model = Classifier(Members(inner, members), num_data=20).double()
    with torch.no_grad():
        model.network.logits.copy_(torch.arange(members))
    guide = guides.for_model(model)
    prior = model.network.logits.log_softmax(-1).unsqueeze(-1)
    mixed = (prior + dist.Categorical(logits=inner(x)).log_prob(LABELS)).logsumexp(0)
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, guide, x, LABELS)
    assert loss == pytest.approx(-mixed.sum().item() * 20 / 5, rel=1e-9)
    options = TrainOptions(epochs=2, elbo="enum", samples_per="batch")
    history = fit(model, guide, [(x, LABELS)] * 3, options=options, progress=False)
    assert history.steps[0]["loss"] == pytest.approx(-mixed.mean().item(), rel=1e-6)
    assert not torch.equal(model.network.logits, torch.arange(members).double())


@CASES
def test_a_member_may_be_observed_and_is_drawn_in_predictions(wrap, members):
    inner, x = wrap(network()).double(), randn(5, 1, 4, 4)
    model = Classifier(Members(inner, members), num_data=20).double()
    guide, probs = guides.for_model(model), inner(x).softmax(-1)
    for k in range(members):
        with pyro.condition(data={"network.member": torch.full((5,), k)}):
            assert_close(predict(model, guide, x, num_samples=2).probs, probs[k])
    number = 2_000
    drawn = predict(model, guide, x, num_samples=number).probs
    error = probs.var(0, correction=0).sqrt() / number**0.5
    assert ((drawn - probs.mean(0)).abs() <= 5 * error + 1e-9).all()


def test_a_depth_is_the_network_without_the_blocks_above():
    whole, x = network(), randn(5, 1, 4, 4)
    outputs = Depths(whole)(x)
    for depth in range(1, 4):
        tokens = whole.tokens(x)
        for block in list(whole.blocks)[:depth]:
            tokens = block(tokens)
        assert_close(outputs[depth - 1], whole.head(whole.norm(tokens.mean(-2))))
    assert_close(outputs[-1], whole(x))


def test_depths_of_a_table_are_in_the_units_of_the_labels():
    sizes = {"outputs": 1, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8}
    table = TabularTransformer([None, 3], **sizes, units=(10.0, 3.0)).double()
    x = torch.tensor([[0.5, 1.0], [-1.0, 2.0]], dtype=torch.float64)
    assert_close(Depths(table)(x)[-1], table(x))


def test_a_group_depends_on_its_own_heads_and_together_they_are_the_whole():
    whole, inner, x = network(), grouped(network()), randn(5, 1, 4, 4)
    before = inner(x).detach()
    assert before.shape == (2, 5, 3)
    tokens = randn(5, 4, 8)
    parts = inner.blocks[-1].attention(tokens)
    bias = whole.blocks[-1].attention.out.bias
    assert_close(parts.sum(0) - bias, whole.blocks[-1].attention(tokens))
    values = inner.blocks[-1].attention.query_value.weight
    with torch.no_grad():
        values[12:] = 0  # values of the last two heads
    after = inner(x)
    assert_close(after[0], before[0])
    assert (after[1] - before[1]).abs().max() > 1e-6


@pytest.mark.parametrize("groups", [0, 3, 8])
def test_groups_that_do_not_divide_the_heads_are_refused(groups):
    with pytest.raises(ValueError, match="4 heads"):
        group_heads(network(), groups)
