"""fit: what it learns, reproducibility, modes, precision, draws, and silent mistakes that it
refuses."""

import math

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from small_fit import Network, assert_same, build, data, short, untimed, weights
from torch import nn

from probattn import guides
from probattn.inference import fit
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian


@pytest.mark.parametrize("guide", ["full", AutoNormal])
def test_the_same_seed_gives_the_same_weights_bit_by_bit(guide):
    """Without one, the state of PyTorch's generator decides."""
    results = []
    for seed, state in ((0, 1), (0, 2), (1, 2), (None, 1), (None, 1), (None, 2)):
        model, its_guide, train, valid = build(guide=guide, dropout=0.3)
        torch.manual_seed(state)
        history = fit(model, its_guide, train, valid, **short(epochs=1, seed=seed))
        results.append((weights(model, its_guide), untimed(history.steps)))
    records = [record for _, record in results]
    assert_same(results[0][0], results[1][0])
    assert records[0] == records[1] != records[2]
    assert records[3] == records[4] != records[5]


def test_what_would_silently_be_wrong_is_refused():
    model, guide, train, _ = build()
    with pytest.raises(ValueError, match="another model"):
        fit(model, build(1)[1], train, **short())
    with pytest.raises(ValueError, match="Encoder"):
        fit(model, guide, train, **short(lr_scale={"Encoder.*": 1.0}))
    x, y = data().tensors
    with pytest.raises(ValueError, match="labels must lie in 0..2"):
        fit(model, guide, [(x, y + 2)], **short())

    class FromTheLeft(Network):
        def forward(
            self, x
        ):  # fine in training, which has no dimension of samples that it could confuse
            return self.head(self.attention(self.embed(x))[:, 0])

    model = Supervised(FromTheLeft(), Categorical(), num_data=8)
    with pytest.raises(ValueError, match="index from the right"):
        fit(model, guides.for_model(model), [(x, y)], [(x, y)], **short())


@pytest.mark.parametrize("scale", [None, 2.0])
def test_noise_starts_at_the_deviation_of_the_labels_unless_it_was_given(scale):
    model, guide, _, _ = build(likelihood=Gaussian(scale) if scale else Gaussian())
    x, y = torch.randn(8, 4, 3), 50 * torch.randn(8, 1) + 300
    fit(model, guide, [(x, y)], **short(epochs=1, lr=1e-6, min_lr=0.0))
    assert model.likelihood.log_scale.exp().item() == pytest.approx(
        scale or y.std(correction=0).item(), rel=1e-4
    )


@pytest.mark.parametrize("samples_per", ["example", "batch"])
@pytest.mark.parametrize("particles", [1, 2])
def test_samples_are_per_example_or_per_batch_and_particles_a_dimension(samples_per, particles):
    """A network of equal inputs has equal outputs where an example shares its sample."""
    model, guide, _, _ = build()
    outputs = []
    model.network.attention.register_forward_hook(
        lambda module, inputs, output: outputs.append(output.detach())
    )
    batch = (torch.randn(1, 4, 3).expand(3, 4, 3).contiguous(), torch.arange(3))
    options = short(epochs=1, samples_per=samples_per, num_particles=particles, vectorize=True)
    model.num_data = 3
    fit(model, guide, [batch], **options)
    assert outputs[0].shape == ((2,) if particles == 2 else ()) + (3, 4, 4)
    assert torch.allclose(outputs[0][..., 0, :, :], outputs[0][..., 1, :, :]) == (
        samples_per == "batch"
    )


class WithNorm(Network):
    def __init__(self):
        super().__init__(dropout=0.5)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        if self.training:
            self.modes = [module.training for module in self.modules()]
        return super().forward(self.norm(x.mT).mT)


@pytest.mark.parametrize("evaluated", ["norm", "dropout", None])
def test_submodules_in_evaluation_mode_stay_there_and_a_model_as_a_whole_is_trained(evaluated):
    network = WithNorm()
    (network if evaluated is None else network.get_submodule(evaluated)).eval()
    before = [module.training for module in network.modules()]
    mean = network.norm.running_mean.clone()
    model = Supervised(network, Categorical(), num_data=8)
    _, _, train, valid = build()
    fit(model, guides.for_model(model), train, valid, **short(epochs=1))
    expected = before if evaluated else [True] * len(before)
    assert network.modes == [module.training for module in network.modules()] == expected
    assert math.isclose(0.0, (network.norm.running_mean - mean).abs().max()) == (
        evaluated == "norm"
    )
