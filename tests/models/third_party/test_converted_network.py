"""Converted networks: padding, training, dropout, and the number of draws."""

from contextlib import ExitStack

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from elbos import TraceMeanField_ELBO
from fitted_methods import mc_dropout
from torch import nn
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    draws,
    guides,
    local_posteriors,
)
from probattn.inference import predict
from probattn.models import Classifier, replace_attention

KEP = KEPSVGPAttention.partial(rank=2)
STOCHASTIC = {
    "kep": KEP,
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-standard": SGPAttention.partial(inducing=None),
    "cgp": CGPAttention,
}
LAYERS = [
    SoftmaxAttention,
    KernelAttention,
    *STOCHASTIC.values(),
    CGPAttention.partial(output="mean", collapsed=True),
    SparseCGPAttention.partial(inducing=3),
    SparseCGPAttention.partial(inducing=3, output="mean"),
]


class Block(nn.Module):
    """A user's own, whose attention wants its batch second, or is called with three tensors that are equal."""

    def __init__(self, *, second=True):
        super().__init__()
        self.norm, self.mlp, self.second = nn.LayerNorm(8), nn.Linear(8, 8), second
        self.attention = nn.MultiheadAttention(8, 2, batch_first=not second)

    def attend(self, x):
        if not self.second:
            return x + self.attention(self.norm(x), self.norm(x), self.norm(x))[0]
        turned = self.norm(x).transpose(0, 1)
        return x + self.attention(turned, turned, turned)[0].transpose(0, 1)

    def forward(self, x):
        x = self.attend(x)
        return x + self.mlp(x)


class Own(nn.Module):
    """A user's own network of blocks, which runs them or their halves."""

    def __init__(self, *, halves=False, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(**options) for _ in range(3))
        self.head, self.halves = nn.Linear(8, 3), halves

    def forward(self, x):
        for block in self.blocks:
            x = block.attend(x) if self.halves else block(x)
            x = x + block.mlp(x) if self.halves else x
        return self.head(x.mean(1))


@pytest.mark.parametrize("attention", [KEP, KernelAttention, CGPAttention.partial(output="mean", collapsed=True)])
def test_padding_order_and_the_rest_of_the_batch_change_no_real_token(
    latents, modelled, outputs_of, run, third_party, masked_name, attention
):
    given = third_party(masked_name)
    model = modelled(given, attention=attention, layers=[1, 2])
    values = {name: node["value"] for name, node in latents(run(model, 3, given.x, given.mask)).items()}
    assert bool(values) == (attention is KEP)
    log = outputs_of(model)

    def real(x, mask, shown=None):
        """Outputs of real tokens, or of examples, behind the draws."""
        log.clear()
        with torch.no_grad(), draws(3):
            poutine.condition(model, data=values)(x, None, mask if shown is None else shown)
        output = log[0] if values else log[0].unsqueeze(0)
        return output[:, mask] if output.shape[2] == mask.shape[1] else output

    expected = real(given.x, given.mask)
    wider, mask = torch.cat([given.x, given.x[:, :2]], 1), F.pad(given.mask, (0, 2))
    wider[~mask] = wider[0, 0].clone()
    assert_close(real(wider, mask), expected, atol=1e-10, rtol=0)
    parts = [real(given.x[part], given.mask[part]) for part in (slice(1), slice(1, 4))]
    assert_close(torch.cat(parts, 1), expected, atol=1e-10, rtol=0)
    rows, back = torch.tensor([2, 0, 3, 1]), [1, 3, 0, 2]
    reordered = real(given.x[rows], given.mask[rows])
    lengths = given.mask[rows].sum(1).tolist() if reordered.shape[1] > 4 else [1] * 4
    reordered = torch.cat([reordered.split(lengths, 1)[row] for row in back], 1)
    assert_close(reordered, expected, atol=1e-10, rtol=0)
    assert not torch.allclose(real(given.x, given.mask, torch.ones_like(given.mask)), expected, atol=1e-6)


def test_particles_per_example_in_training(modelled, outputs_of, third_party, name):
    """draws("example") around draws(S): a draw of its own for each particle and example, and gradients in all of u."""
    given = third_party(name)
    model = modelled(given, layers=[1, 2])
    guide = guides.for_model(model)
    shape = given.original(given.network, given.x, None).shape
    y = torch.zeros(shape[:-1], dtype=torch.long)
    log = outputs_of(model)
    with draws("example"), draws(2):
        TraceMeanField_ELBO()(model, guide)(given.x, y, given.mask).backward()
    assert log[0].shape == (2, *shape)
    for parameter in guide.parameters():
        assert parameter.grad.abs().sum() > 0


def test_one_particle_in_training_is_the_plain_pass(modelled, outputs_of, third_party, name):
    """With dropout everywhere, whose masks are drawn once."""
    given = third_party(name, dropout=0.4)
    model = modelled(given, layers=[1, 2]).train()
    log, outputs = outputs_of(model), []
    for number in (None, 1):
        torch.manual_seed(3)
        with ExitStack() as stack:
            if number:
                stack.enter_context(draws(number))
            model(given.x, None, given.mask)
        outputs.append(log.pop())
    assert_close(outputs[1], outputs[0].unsqueeze(0), atol=1e-10, rtol=0)


@pytest.mark.parametrize("number", [1, 3])
def test_a_stem_sees_a_batch_once_in_training(number):
    class Stem(Own):
        def __init__(self):
            super().__init__()
            self.stem = nn.BatchNorm1d(5)

        def forward(self, x):
            return super().forward(self.stem(x))

    model = Classifier(replace_attention(Stem(), attention=KEP), num_data=4)
    with draws(number):
        TraceMeanField_ELBO()(model, guides.for_model(model))(torch.randn(4, 5, 8), torch.zeros(4, dtype=torch.long))
    assert model.network.wrapped.stem.num_batches_tracked == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_stochastic_where_draws_reach_its_output(layer):
    layer = layer(8, 2)
    with draws(3), local_posteriors():
        assert layer(torch.randn(4, 5, 8)).shape == ((3, 4, 5, 8) if layer.is_stochastic() else (4, 5, 8))


def test_without_draws_the_shape_is_the_networks(modelled, outputs_of, third_party, name):
    given = third_party(name)
    model = modelled(given, layers="all")
    log = outputs_of(model)
    model(given.x, None, given.mask)
    assert log[0].shape == given.original(given.network, given.x, None).shape


def test_draws_that_nobody_announced_are_refused(modelled, third_party):
    given = third_party("torchvision")
    model = modelled(given)
    (site,) = dict(guides.latent_sites(model))
    with pytest.raises(ValueError, match=r"several draws at once need `with draws\(number\)`"):
        poutine.condition(model, data={site: torch.zeros(3, 1, 2, 2, 2).double()})(given.x)


def test_an_output_without_the_batch_is_refused():
    class Pooled(nn.Sequential):
        def forward(self, x):
            return super().forward(x).mean(0, keepdim=True)

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    converted = replace_attention(Pooled(layer), attention=KEP)
    with draws(3), pytest.raises(RuntimeError, match=r"\[3, 4\] don't multiply up"):
        converted(torch.randn(4, 5, 8))


@pytest.mark.parametrize("attention", [KEP, SoftmaxAttention])
def test_dropout_draws_masks_of_their_own_for_each_draw_and_example(modelled, outputs_of, third_party, name, attention):
    """Equal inputs would give equal outputs; at rate 0 the prediction is the one without dropout."""
    given = third_party(name, dropout=0.4)
    given = given._replace(x=given.x[:1].repeat(4, *[1] * (given.x.dim() - 1)))
    model = modelled(given, attention=attention)
    model.eval()
    guide = guides.for_model(model)
    masks = None if given.mask is None else torch.ones_like(given.mask)
    batch, log = [(given.x, None, masks)], outputs_of(model)
    mc_dropout(model, guide, num_samples=3).predict(batch)
    outputs = torch.stack(log).flatten(0, 1)
    assert outputs.shape[0] == 12
    for i in range(12):
        for j in range(i):
            assert not torch.allclose(outputs[i], outputs[j], atol=1e-6), (i, j)
    assert not any(module.training for module in model.modules())
    torch.manual_seed(2)
    without = mc_dropout(model, guide, num_samples=3, rate=0).predict(batch)
    torch.manual_seed(2)
    plain = predict(model, guide, batch, num_samples=3, vectorize=False)
    assert_close(without.probs, plain.probs, atol=1e-10, rtol=0)
