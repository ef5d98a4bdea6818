"""Values at padding have no influence on training and prediction, and are never called broken data."""

import math

import pytest
import torch
from elbos import TraceMeanField_ELBO
from export_cases import KEP, LAYERS
from small_fit import assert_same, weights
from torch import nn

from probattn import guides
from probattn.inference import TrainOptions, fit, predict
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.models import Supervised, TextTagger, TextTransformer
from probattn.models.likelihoods import Categorical, TokenCategorical

pytestmark = pytest.mark.filterwarnings("ignore::probattn.functional.jitter.JitterWarning")  # few tokens in float32
FILLS = [math.nan, math.inf, 1e30]
MASK = torch.tensor([[True, True, False, True], [True, False, False, False], [True] * 4])
ALL_LAYERS = pytest.mark.parametrize("layer", LAYERS)


def build(layer, *, tokens=False):
    torch.manual_seed(0)
    sizes = {"classes": 3, "dim": 4, "depth": 2, "heads": 2, "mlp_dim": 6, "max_length": 4}
    network = (TextTagger if tokens else TextTransformer)(nn.Linear(2, 4), attention=LAYERS[layer], **sizes)
    model = Supervised(network, TokenCategorical() if tokens else Categorical(), num_data=3)
    return model, guides.for_model(model)


def batch(fill, *, tokens=False):
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([[0, 1, 2, 1]] * 3) if tokens else torch.tensor([0, 1, 2])
    return x.where(MASK.unsqueeze(-1), fill), y, MASK


def loss_and_gradients(model, guide, data):
    torch.manual_seed(2)
    loss = TraceMeanField_ELBO()(model, guide)(*data)
    model.zero_grad(), guide.zero_grad()
    loss.backward()
    parts = {"model": model, "guide": guide}
    return {"loss": loss.detach()} | {
        f"{part}.{name}": parameter.grad
        for part, module in parts.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("tokens", [False, True])
@ALL_LAYERS
def test_values_and_gradients_of_the_elbo_do_not_depend_on_padding(layer, tokens):
    model, guide = build(layer, tokens=tokens)
    expected = loss_and_gradients(model, guide, batch(0.5, tokens=tokens))
    assert all(value.isfinite().all() for value in expected.values())
    for fill in FILLS:
        assert_same(loss_and_gradients(model, guide, batch(fill, tokens=tokens)), expected)


@pytest.mark.parametrize("tokens", [False, True])
@ALL_LAYERS
def test_predictions_do_not_depend_on_padding(layer, tokens):
    model, guide = build(layer, tokens=tokens)
    found = []
    for fill in (0.5, *FILLS):
        torch.manual_seed(2)
        found.append(predict(model, guide, [batch(fill, tokens=tokens)], num_samples=3))
    for prediction in found[1:]:
        assert torch.equal(prediction.probs, found[0].probs)
        assert torch.equal(prediction.expected_entropy, found[0].expected_entropy)


@pytest.mark.parametrize("layer", ["softmax", "kep-svgp", "cgp"])
def test_a_fit_does_not_depend_on_padding(layer):
    found = []
    for fill in (0.5, *FILLS):
        model, guide = build(layer)
        fit(model, guide, [batch(fill)], options=TrainOptions(epochs=2, lr=0.01), progress=False)
        found.append(weights(model, guide))
    for each in found[1:]:
        assert_same(each, found[0])


@pytest.mark.parametrize("fill", [math.nan, math.inf])
def test_the_same_at_a_real_token_is_refused_in_training_and_prediction(fill):
    model, guide = build("kep-svgp")
    x, y, mask = batch(fill)
    x[2, 1, 0] = fill
    with pytest.raises(ValueError, match="NaN or Inf in the inputs of batch 0"):
        predict(model, guide, [(x, y, mask)])
    with pytest.raises(NonFiniteError, match=r"NaN or Inf in the inputs, rows \[2\] of the batch"):
        fit(model, guide, [(x, y, mask)], options=TrainOptions(epochs=1), progress=False)
    without_mask, _, _ = batch(fill)
    with pytest.raises(ValueError, match="NaN or Inf in the inputs of batch 0"):
        predict(model, guide, [without_mask])


def test_padding_is_not_named_as_the_source_of_a_nan():
    x, _, mask = batch(math.nan)
    y = torch.zeros(3, 4).where(mask, math.nan)
    assert find_non_finite((x, y, mask), {}, ()) is None
    assert "the inputs" in find_non_finite((x, y), {}, ())


@pytest.mark.parametrize("layer", ["softmax", "kep-svgp", "cgp"])
def test_a_mask_of_floats_is_refused_in_batches_and_by_the_layer(layer):
    model, guide = build(layer)
    x, y, mask = batch(0.5)
    with pytest.raises(ValueError, match=r"must be boolean or of integers, 0 or 1, got torch\.float32"):
        predict(model, guide, [(x, y, mask.float())])
    message = r"takes a boolean mask of shape \(batch, tokens\) = \(3, 4\), got torch\.float32"
    with pytest.raises(ValueError, match=message):
        TraceMeanField_ELBO()(model, guide)(x, y, mask.float())


class Scores(nn.Module):
    """A network whose mask is of integers, as those of transformers are."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x, mask):
        return (self.head(x) * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("fill", FILLS)
def test_networks_that_take_integer_masks_do_not_see_padding_either(fill):
    model = Supervised(Scores(), Categorical(), num_data=3)
    results = []
    for value in (0.0, fill):
        x, y, mask = batch(value)
        model.zero_grad()
        TraceMeanField_ELBO()(model, guides.for_model(model))(x, y, mask.long()).backward()
        results.append(
            [predict(model, None, [(x, y, mask.long())]).probs, *(p.grad.clone() for p in model.parameters())]
        )
    for found, expected in zip(*reversed(results), strict=True):
        assert torch.equal(found, expected)


def test_token_ids_and_images_are_left_alone():
    """A network may derive positions from the ids of padding, and an image has no tokens for a mask to index."""
    seen = []

    class Recorder(nn.Module):
        def forward(self, x, mask):
            seen.append(x)
            return torch.zeros(len(x), 3)

    model = Supervised(Recorder(), Categorical(), num_data=3)
    for x in (torch.full((3, 4), 7), torch.full((3, 1, 4, 4), 7.0)):
        model(x, None, MASK)
        assert torch.equal(seen[-1], x)


def test_layers_alone_ignore_padding():
    """A user's own program calls a layer without :class:`Supervised`."""
    layer = KEP(4, 2)
    x = torch.randn(3, 4, 4)
    results = []
    for fill in (0.0, *FILLS):
        given = x.where(MASK.unsqueeze(-1), fill).requires_grad_()
        torch.manual_seed(0)
        output = layer(given, MASK)[MASK]
        output.sum().backward()
        results.append((output.detach(), given.grad))
    for output, gradient in results[1:]:
        assert torch.equal(output, results[0][0])
        assert torch.equal(gradient, results[0][1])
        assert not gradient[~MASK].any()
