"""Natural-gradient training of guides: conjugate models, correlated Gaussians, tempering, noise,
refusals."""

import pyro.distributions as dist
import pytest
import torch
from conjugate import F64, NOISE, conjugate
from float64 import eye64, zeros64
from pyro.infer.autoguide import AutoNormal
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from probattn import CGPAttention, guides
from probattn.distributions import FullNormal
from probattn.families import Diagonal
from probattn.inference import TrainOptions, fit
from probattn.inference.objective.natural_gradient import NaturalGradientDescent
from probattn.models import Supervised

DATA = 12


def problem(family="full", **shape):
    model, x, y = conjugate(num_data=DATA, **shape)
    model.network.requires_grad_(False)
    model.register_parameter("unused", torch.nn.Parameter(zeros64(1)))
    return model, guides.for_model(model, family).double(), x, y


def posterior(model, x, y, *, kl_weight=1.0):
    """MATH 1(e) for v = Λ⁻¹ u: S = (I + Φᵀ Φ / wσ²)⁻¹ and m = S Φᵀ y / wσ², ``(H, s, s)`` each."""
    layer, weight = model.network, kl_weight * NOISE**2
    with torch.no_grad():
        e, r, _, _ = layer.scores(x)
        features = (e + r).movedim(1, 0).flatten(1, 2)
        covariance = (eye64(layer.rank) + features.mT @ features / weight).inverse()
        targets = y.unflatten(-1, (layer.heads, layer.rank)).movedim(-2, 0).flatten(1, 2)
        return (covariance @ features.mT @ targets / weight).mT, covariance


@pytest.fixture
def exact_expectations(monkeypatch):
    """Replace the noise of multivariate normals by sigma points, whose mean is exact for quadratic
    functions."""

    def points(shape, dtype, device):
        size = shape[-3:].numel()
        if 2 * size not in shape[:-3]:
            return torch.zeros(
                shape, dtype=dtype
            )  # when the trainer tests whether the model broadcasts
        noise = size**0.5 * torch.cat((torch.eye(size), -torch.eye(size))).to(dtype)
        right = len(shape) - 4 - list(shape[:-3]).index(2 * size)
        return noise.reshape(-1, *(1,) * right, *shape[-3:]).expand(shape)

    monkeypatch.setattr(torch.distributions.multivariate_normal, "_standard_normal", points)
    for law in (dist.MultivariateNormal, FullNormal):
        monkeypatch.setattr(law, "rsample", torch.distributions.MultivariateNormal.rsample)


def train(model, guide, batches, **options):
    options = {"guide_optimizer": "ngd", "lr": 1e-12, "min_lr": 0.0, "log_every": 1} | options
    return fit(model, guide, batches, options=TrainOptions(**options), progress=False)


@pytest.mark.usefixtures("exact_expectations")
@pytest.mark.parametrize(
    ("heads", "rank", "kl_weight", "samples_per"),
    [(1, 1, 1.0, "batch"), (1, 3, 0.1, "example"), (2, 2, 3.0, "batch")],
)
def test_steps_of_length_1_on_the_full_batch_reach_the_exact_posterior(
    heads, rank, kl_weight, samples_per
):
    """One step for one Gaussian; for B that are independent, as many as it takes to double the
    length from 1 / B."""
    model, guide, x, y = problem(heads=heads, rank=rank)
    options = {
        "kl_weight": kl_weight,
        "samples_per": samples_per,
        "clip_norm": 1e-3,
        "guide_lr": 1.0,
    }
    epochs = 1 if heads * rank == 1 else 4
    constant = {"schedule": "linear", "min_lr": 1e-12}
    train(
        model,
        guide,
        [(x, y)],
        num_particles=2 * heads * rank**2,
        epochs=epochs,
        **constant,
        **options,
    )
    mean, covariance = posterior(model, x, y, kl_weight=kl_weight)
    q = guide.network.u
    assert_close(q.loc.detach(), mean, rtol=1e-6, atol=1e-6)
    tril = q.scale_tril.detach()
    assert_close(tril @ tril.mT, covariance.unsqueeze(1).expand_as(tril), rtol=1e-6, atol=1e-6)


def test_correlated_gaussians_descend_with_exact_gradients():
    """Steps of the whole length would diverge: the largest eigenvalue of S P is 25 / 4."""
    precision = eye64(8) + 3
    prior = dist.Normal(zeros64(8), 1.0).to_event(1)
    module, losses = Diagonal(prior), []
    optimizer = NaturalGradientDescent([module], scale=1.0)
    for _ in range(100):
        optimizer.zero_grad()
        q = module(prior).expand(())
        error = q.mean - 2
        spread = precision.diagonal() @ q.variance - q.variance.log().sum()
        loss = (error @ precision @ error + spread) / 2
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses) == losses[0]
    q = module(prior)
    assert_close(q.mean.detach(), torch.full((8,), 2.0, dtype=F64), rtol=1e-3, atol=0)
    assert_close(q.variance.detach(), torch.full((8,), 0.25, dtype=F64))


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_a_run_on_shuffled_minibatches_converges(family):
    model, guide, x, y = problem(family, heads=2)
    batches = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    train(model, guide, batches, epochs=40, guide_lr=0.3, num_particles=16)
    mean, covariance = posterior(model, x, y)
    q = guide.network.u(model.network.sites()["u"])
    lam = model.network.scale.unsqueeze(-2)
    inverse = covariance.inverse().diagonal(dim1=-2, dim2=-1).rsqrt()
    expected = covariance.diagonal(dim1=-2, dim2=-1).sqrt() if family == "full" else inverse
    assert (((q.mean / lam - mean) / expected.unsqueeze(-2)).abs() < 0.2).all()
    assert_close(
        (q.stddev / lam).detach(), expected.unsqueeze(-2).expand(2, 2, 2), rtol=0.15, atol=0
    )


def test_guides_without_natural_parameters_are_refused_and_models_without_global_sites_train():
    model, guide, x, y = problem()
    for other in (guides.for_model(model, "lowrank"), AutoNormal(model)):
        with pytest.raises(ValueError, match="this guide lacks"):
            train(model, other, [(x, y)])
    with pytest.raises(ValueError, match="kl_weight"):
        train(model, guide, [(x, y)], kl_weight=0.0)
    model = Supervised(CGPAttention(4, 2), lambda f: dist.Normal(f, NOISE).to_event(2), num_data=2)
    train(model, guides.for_model(model), [(torch.randn(2, 3, 4), torch.randn(2, 3, 4))], epochs=1)
