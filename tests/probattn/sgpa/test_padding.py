"""Padding in SGPA."""

import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import kl_divergence
from torch.testing import assert_close

from probattn import guides
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

F64 = torch.float64
ELBOS = pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
DRAWS = pytest.mark.parametrize("how", ["marginal", "joint"])
FORMS = pytest.mark.parametrize("inducing", [3, None])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@ELBOS
@FORMS
@DRAWS
def test_padding_changes_no_loss(sgpa, how, inducing, elbo):
    """The loss of a padded batch, all sites at their means, is the mean of its sentences alone; padding may be NaN."""
    model, guide = sgpa.build(inducing=inducing, draws=how, bias=True)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    with at_mean():
        alone = [elbo()(model, guide)(x[b : b + 1, MASK[b]], y[b : b + 1]) for b in range(2)]
        together = elbo()(model, guide)(x.where(MASK.unsqueeze(-1), torch.nan), y, MASK)
    assert_close(together, sum(alone) / 2)
    together.backward()
    for name, parameter in [*model.named_parameters(), *guide.named_parameters()]:
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@FORMS
@DRAWS
def test_padding_changes_no_law_of_a_real_token(sgpa, how, inducing):
    layer, u = (
        sgpa.make(inducing=inducing, draws=how, bias=True),
        {} if inducing is None else {"u": randn(2, 3, 3, seed=1)},
    )
    x, g = randn(2, 5, 6), randn(2, 2, 5, 3, seed=2)
    padded = torch.cat((x, 100 * randn(2, 3, 6, seed=4)), dim=1)
    mask = torch.cat((MASK, torch.zeros(2, 3, dtype=torch.bool)), dim=1)
    wide = torch.cat((g, randn(2, 2, 3, 3, seed=5)), dim=2)
    output = sgpa.run(layer, padded, mask, g=wide, **u).nodes["_RETURN"]["value"]
    together = sgpa.law(sgpa.run(layer, padded, mask, **u))
    for b in range(2):
        real = MASK[b]
        alone = sgpa.run(layer, x[b : b + 1, real], g=g[b : b + 1, :, real], **u).nodes["_RETURN"]["value"]
        assert_close(output[b, :5][real], alone[0])
        for whole, part in zip(together, sgpa.law(sgpa.run(layer, x[b : b + 1, real], **u)), strict=True):
            assert_close(whole.mean[b, :, :5][:, real], part.mean[0])
            assert_close(whole.variance[b, :, :5][:, real], part.variance[0])
            if how == "joint":
                tril = whole.covariance.tril[b, :, :5, :5][:, real][:, :, real]
                assert_close(tril, part.covariance.tril[0])
        assert_close(
            kl_divergence(*together[::-1])[b],
            kl_divergence(*sgpa.law(sgpa.run(layer, x[b : b + 1, real], **u))[::-1])[0],
        )


def test_a_supervised_model_of_sentences_takes_the_mask_through_the_layer(sgpa):
    network = sgpa.Pooled(sgpa.make(bias=True), sgpa.make(seed=1)).double()
    model = Supervised(network, Categorical(), num_data=8).double()
    guide = guides.for_model(model)
    with at_mean():
        together = predict(model, guide, [(randn(2, 5, 6), torch.tensor([0, 1]), MASK)], num_samples=1)
        for b in range(2):
            alone = predict(model, guide, randn(2, 5, 6)[b : b + 1, MASK[b]], num_samples=1)
            assert_close(together.probs[b], alone.probs[0])
