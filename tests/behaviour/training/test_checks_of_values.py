"""Checks of values in training and prediction: few reads of the device, no error lost, the user's
settings kept."""

import math
import warnings
from contextlib import contextmanager

import pyro
import pyro.distributions as dist
import pytest
import torch
from attention_layers import LAYERS
from small_fit import build, data, short, weights
from small_vit import small_vit
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides
from probattn.functional.jitter import JitterWarning
from probattn.inference import Callback, ELBOLoss, NonFiniteError, fit, predict
from probattn.models import Classifier, Supervised, TextTagger
from probattn.models.embeddings import WordEmbedding
from probattn.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    TokenCategorical,
)

KEP = KEPSVGPAttention.partial(rank=2, eta=0.1)
SIZES = {"classes": 3, "dim": 8, "depth": 7, "heads": 2, "mlp_dim": 8}
READS = (
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
)


class Reads(TorchDispatchMode):
    """Counts operations whose result the host waits for on a GPU."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func._schema.name in READS
        return func(*args, **(kwargs or {}))


def reads_per_batch(run, batches):
    """Return the reads of each batch after the first."""
    numbers = []
    for count in (1, 4):
        with Reads() as reads:
            run(batches * count)
        numbers.append(reads.number)
    return (numbers[1] - numbers[0]) / 3


def texts():
    """Words, labels that are none at padding, and a mask."""
    x, mask = torch.randint(1, 9, (4, 6)), torch.arange(6) < torch.tensor([[6], [3], [1], [4]])
    return x, torch.randint(3, (4, 6)).where(mask, -100), mask


def deep(name):
    """Return a model of seven layers, its guide and a batch."""
    if name == "texts":
        model = Supervised(
            TextTagger(WordEmbedding(9, 8), max_length=6, attention=KEP, **SIZES),
            TokenCategorical(),
            num_data=4,
        )
        return model, guides.for_model(model), texts()
    model = Classifier(small_vit(LAYERS[name], depth=7), num_data=4)
    return model, guides.for_model(model), (torch.randn(4, 1, 4, 4), torch.arange(4) % 3)


@pytest.mark.parametrize("name", ["kep-svgp-concat", "sgpa", "cgp", "rff-gpa", "texts"])
def test_a_step_of_seven_layers_waits_for_at_most_twenty_reads(name):
    def run(batches):
        model, guide, _ = deep(name)
        model.num_data = 4 * len(batches)
        fit(model, guide, batches, **short(epochs=1, log_every=1000))

    assert reads_per_batch(run, [deep(name)[2]]) <= 20


@pytest.mark.parametrize("name", ["kep-svgp", "texts"])
def test_a_prediction_of_seven_layers_waits_for_at_most_twenty_reads_a_batch(name):
    model, guide, (x, _, *mask) = deep(name)
    assert (
        reads_per_batch(
            lambda batches: predict(model, guide, batches, num_samples=3), [(x, None, *mask)]
        )
        <= 20
    )


DIVERGING = {
    "kep-svgp": KEP,
    "softmax": SoftmaxAttention,
    "sgpa": SGPAttention.partial(inducing=3),
    "cgp": CGPAttention,
}
X, Y = data(9).tensors


def three_batches(scales=(1, 1, 1), labels=Y):
    rows = [slice(0, 3), slice(3, 6), slice(6, 9)]
    return [(X[part] * scale, labels[part]) for part, scale in zip(rows, scales, strict=True)]


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("name", DIVERGING)
def test_inputs_that_overflow_are_named_by_what_they_break(name, step):
    model, guide, *_ = build(attention=DIVERGING[name], num_data=9)
    scales = [1, 1, 1]
    scales[step] = 1e20
    with pytest.raises(NonFiniteError, match=rf"after step {step}: .*(site |network\.attention)"):
        fit(model, guide, three_batches(scales), **short(epochs=1))


@pytest.mark.parametrize("name", ["kep-svgp", "softmax"])
def test_a_run_that_diverges_names_a_source(name):
    """Here where the only step of an epoch breaks what validation predicts by."""
    model, guide, *_ = build(attention=DIVERGING[name], num_data=9, likelihood=Gaussian())
    batches = [(X, X.sum((1, 2)).unsqueeze(1))]
    with pytest.raises(NonFiniteError, match=r"site |network\.|parameter|outputs"):
        fit(model, guide, batches, batches, **short(lr=1e6, epochs=20))


ONES = torch.ones(9, 1)
BAD_LABELS = {
    "class": (Categorical, Y, 7, "0..2"),
    "half a class": (Categorical, Y.float(), 0.5, "support"),
    "ordinal": (lambda: Ordinal(3), Y, 3, "0..2"),
    "negative count": (Poisson, ONES, -1, "support"),
    "negative binomial": (NegativeBinomial, ONES, -1, "support"),
    "binary": (Bernoulli, ONES, 2, "support"),
    "no class": (Categorical, Y.float(), math.nan, r"labels, rows \[1\]"),
    "no number": (Gaussian, ONES, math.nan, r"labels, rows \[1\]"),
    "infinite": (StudentT, ONES, math.inf, r"labels, rows \[1\]"),
}


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_outside_their_support_are_an_error_in_every_step(name, number):
    likelihood, labels, bad, message = BAD_LABELS[name]
    model, guide, *_ = build(likelihood=likelihood(), num_data=9)
    if labels is ONES or "ordinal" in name:
        model.network.head = nn.Linear(4, 1)
    labels = labels.clone()
    labels[3 * number + 1] = bad
    with pytest.raises((ValueError, NonFiniteError), match=message):
        fit(model, guide, three_batches(labels=labels), **short(epochs=1))


class Rates(nn.Module):
    """Model whose parameter is an input: below 0 the density is finite but none."""

    num_data = 9

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        with pyro.plate("examples", len(x)):
            pyro.sample("y", dist.Gamma(self.scale * x[:, 0, 0], 1.0), obs=y)


class Nothing(nn.Module):
    def forward(self, x, y):
        """Draw no site."""


def test_a_parameter_outside_its_range_is_an_error_in_a_later_step():
    batches = [(torch.full((3, 4, 3), value), torch.ones(3)) for value in (1.5, 2.5, -1.5)]
    assert dist.Gamma(-1.5, 1.0, validate_args=False).log_prob(torch.ones(())).isfinite()
    with pytest.raises(ValueError, match="concentration"):
        fit(Rates(), Nothing(), batches, **short(epochs=1))


def settings():
    """All that Pyro and PyTorch validate."""
    try:
        torch.distributions.Normal(0.0, -1.0)
        of_torch = False
    except ValueError:
        of_torch = True
    return (
        of_torch,
        dist.is_validation_enabled(),
        pyro.infer.is_validation_enabled(),
        pyro.poutine.is_validation_enabled(),
    )


@contextmanager
def chosen(of_pyro, of_torch):
    with pyro.validation_enabled(of_pyro):
        torch.distributions.Distribution.set_default_validate_args(of_torch)
        try:
            yield
        finally:
            torch.distributions.Distribution.set_default_validate_args(True)


@pytest.mark.parametrize(("of_pyro", "of_torch"), [(True, False), (False, True)])
def test_what_the_user_has_set_stays_and_callbacks_see_it(of_pyro, of_torch):
    seen = []

    class Looking(Callback):
        def on_train_step_end(self, trainer, outputs):
            seen.append(settings())

    with chosen(of_pyro, of_torch):
        before = settings()
        model, guide, *_ = build(num_data=9)
        fit(
            model, guide, three_batches(), three_batches(), callbacks=[Looking()], **short(epochs=1)
        )
        predict(model, guide, three_batches(), num_samples=3)
        with pytest.raises(NonFiniteError):
            fit(model, guide, three_batches((1, 1e20, 1)), callbacks=[Looking()], **short(epochs=1))
        with pytest.raises(ValueError, match="outputs"):
            predict(model, guide, three_batches((1, 1e20, 1)), num_samples=3)
        assert {*seen, settings()} == {before}


def test_what_the_user_does_not_validate_is_not():
    """Half a count has a density, and passes where the user says so."""
    model, guide, *_ = build(likelihood=Poisson(), num_data=9)
    model.network.head = nn.Linear(4, 1)
    with pyro.validation_enabled(False):
        fit(model, guide, three_batches(labels=ONES / 2), **short(epochs=1))


def test_a_warning_of_the_model_is_shown_once_in_a_run():
    model, guide, *_ = build(num_data=9)
    model.network.head.register_forward_pre_hook(
        lambda *_: warnings.warn("of the model", UserWarning, stacklevel=1)
    )
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        fit(model, guide, three_batches(), **short(epochs=2))
    assert [str(warning.message) for warning in shown] == ["of the model"]


def steps_by_hand(model, guide, batches):
    loss_of = ELBOLoss(model, guide)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        with draws("example"):
            (loss_of(*batch) / 9).backward()
        optimizer.step()


def steps_by_fit(model, guide, batches):
    constant = {"lr": 0.01, "min_lr": 0.01, "decoupled_weight_decay": False, "weight_decay": 0.0}
    fit(model, guide, batches, **short(epochs=1, **constant))


def test_a_step_that_needs_jitter_is_the_step_by_hand():
    """In the second batch, whose equal tokens have a singular covariance without noise."""
    first, (x, y), last = [(x.double(), y) for x, y in three_batches()]
    batches = [first, (x[:, :1].expand_as(x).contiguous(), y), last]
    runs = []
    for steps in (steps_by_hand, steps_by_fit):
        model, guide, *_ = build(attention=CGPAttention.partial(noisy_output=False), num_data=9)
        torch.manual_seed(0)
        with pytest.warns(JitterWarning):
            steps(model.double(), guide.double(), batches)
        runs.append(weights(model, guide))
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=1e-6, atol=1e-8, msg=name)
