"""Values at padding have no influence on training and prediction, and are never called broken
data."""

import math

import pytest
import torch
from elbos import TraceMeanField_ELBO, loss_and_gradients
from export_cases import LAYERS
from small_fit import assert_same
from torch import nn

from probattn import guides
from probattn.inference import TrainOptions, fit, predict
from probattn.inference.non_finite import NonFiniteError
from probattn.models import Supervised, TextTagger, TextTransformer
from probattn.models.likelihoods import Categorical, TokenCategorical

pytestmark = pytest.mark.filterwarnings(
    "ignore::probattn.functional.jitter.JitterWarning"
)  # few tokens in float32
MASK = torch.tensor([[True, True, False, True], [True, False, False, False], [True] * 4])
BAD = torch.tensor([math.nan, math.inf, 1e30, -math.inf]).expand(3, 4).unsqueeze(-1)


def build(layer, *, tokens=False):
    torch.manual_seed(0)
    sizes = {"classes": 3, "dim": 4, "depth": 2, "heads": 2, "mlp_dim": 6, "max_length": 4}
    network = (TextTagger if tokens else TextTransformer)(
        nn.Linear(2, 4), attention=LAYERS[layer], **sizes
    )
    model = Supervised(network, TokenCategorical() if tokens else Categorical(), num_data=3)
    return model, guides.for_model(model)


def batch(fill, *, tokens=False):
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([[0, 1, 2, 1]] * 3) if tokens else torch.tensor([0, 1, 2])
    return x.where(MASK.unsqueeze(-1), fill), y, MASK


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [*((name, False) for name in LAYERS), ("kep-svgp", True), ("sgpa", True), ("cgp", True)],
)
def test_loss_gradients_and_predictions_do_not_depend_on_padding(layer, tokens):
    model, guide = build(layer, tokens=tokens)
    results = []
    for fill in (0.5, BAD):
        data = batch(fill, tokens=tokens)
        values = loss_and_gradients(TraceMeanField_ELBO(), model, guide, data)
        prediction = predict(model, guide, [data], num_samples=2)
        results.append(values | {"probs": prediction.probs, "entropy": prediction.expected_entropy})
    assert all(value.isfinite().all() for value in results[0].values())
    assert_same(*results)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_same_at_a_real_token_is_refused_in_training_and_prediction(value):
    model, guide = build("kep-svgp")
    x, y, mask = batch(0.0)
    x[2, 1, 0] = value
    for data in ((x, y, mask), batch(BAD)[0]):
        with pytest.raises(ValueError, match="inputs of batch 0"):
            predict(model, guide, [data])
    with pytest.raises(NonFiniteError, match=r"inputs, rows \[2\]"):
        fit(model, guide, [(x, y, mask)], options=TrainOptions(epochs=1), progress=False)


class Scores(nn.Module):
    """A network whose mask is of integers, as those of transformers are."""

    def __init__(self):
        super().__init__()
        self.head, self.seen = nn.Linear(2, 3), []

    def forward(self, x, mask):
        self.seen.append(x)
        if x.shape[-1] != 2:  # token ids, and images
            return torch.zeros(len(x), 3)
        return (self.head(x) * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


def test_networks_that_take_integer_masks_do_not_see_padding_either_but_token_ids_and_images():
    """A network may derive positions from the ids of padding, and an image has no tokens for a mask
    to index."""
    model = Supervised(Scores(), Categorical(), num_data=3)
    results = []
    for fill in (0.0, BAD):
        x, y, mask = batch(fill)
        model.zero_grad()
        TraceMeanField_ELBO()(model, guides.for_model(model))(x, y, mask.long()).backward()
        probs = predict(model, None, [(x, y, mask.long())]).probs
        results.append(
            {"probs": probs} | {name: p.grad.clone() for name, p in model.named_parameters()}
        )
    assert_same(*results)
    for x in (torch.full((3, 4), 7), torch.full((3, 1, 4, 4), 7.0)):
        model(x, None, MASK)
        assert torch.equal(model.network.seen[-1], x)
