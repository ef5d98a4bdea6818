"""A NaN or Inf in training is named with epoch and batch and never reaches the disk; other errors are unchanged."""

import math

import pytest
import torch
from small_fit import build, data, short

from probattn.functional.errors import NumericalError
from probattn.inference import NonFiniteError, fit
from probattn.inference.io import checkpoint
from probattn.models.likelihoods import Gaussian


def poison_inputs(model, guide):
    return lambda batch: [batch[0].clone().index_fill(0, torch.tensor([1]), math.nan), batch[1]]


def poison_weight(model, guide):
    def poison(batch):
        with torch.no_grad():
            model.network.embed.bias[0] = math.inf

    return poison


def poison_guide(model, guide):
    def poison(batch):
        with torch.no_grad():
            guide.network.attention.u.loc[0, 0, 0] = math.nan

    return poison


def poison_gradient(model, guide):
    def poison(batch):
        model.network.head.weight.register_hook(lambda gradient: gradient * math.nan)

    return poison


def poison_cholesky(model, guide):
    def poison(batch):
        def refuse(module, inputs):
            raise NumericalError("CGPAttention 'network.attention': 𝒦_o + σ²I is not positive definite")

        model.network.attention.register_forward_pre_hook(refuse)

    return poison


def poison_cholesky_and_inputs(model, guide):
    def poison(batch):
        poison_cholesky(model, guide)(batch)
        return poison_inputs(model, guide)(batch)

    return poison


POISONS = {
    poison_inputs: r"epoch 2, after step 4: NaN or Inf in the inputs, rows \[1\] of the batch",
    poison_weight: r"epoch 2, after step 4: NaN or Inf in parameter network\.embed\.bias of the model",
    poison_guide: r"epoch 2, after step 4: NaN or Inf in parameter network\.attention\.u\.loc of the guide",
    poison_cholesky: r"^epoch 2, after step 4: CGPAttention 'network.attention': 𝒦_o \+ σ²I is not positive definite$",
    poison_cholesky_and_inputs: r"after step 4: NaN or Inf in the inputs, rows \[1\] of the batch.*CGPAttention",
    poison_gradient: r"after step [456]: NaN or Inf in (parameter |the gradient of model\.)network\.head\.weight",
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 1),
        ({"clip_norm": 1.0}, 2),
        ({"valid": False}, 2),
        pytest.param({}, 2, marks=pytest.mark.slow),
        pytest.param({"clip_norm": 1.0}, 1, marks=pytest.mark.slow),
        pytest.param({"valid": False}, 1, marks=pytest.mark.slow),
    ],
)
def test_what_is_not_finite_is_named_and_never_reaches_the_disk(tmp_path, poison, batch, options):
    """Also in an epoch's last batch, after which only the checkpoints are written."""
    model, guide, train, valid = build(**options)
    options = {name: value for name, value in options.items() if name != "valid"}
    train.at, files = (2, batch), {}

    then = poison(model, guide)

    def callback(batch):
        files.update({name: (tmp_path / name).read_bytes() for name in ("last.pt", "best.pt")})
        return then(batch)

    train.callback = callback
    with pytest.raises(NonFiniteError, match=POISONS[poison].replace("step 4", f"step {3 + batch}")):
        fit(model, guide, train, valid, out=tmp_path, **short(**options))
    for name, content in files.items():
        assert (tmp_path / name).read_bytes() == content
    assert len(files) == 2
    content = checkpoint.read(tmp_path / "last.pt")
    assert all(value.isfinite().all() for part in ("model", "guide") for value in content[part].values())


def test_an_error_of_the_numerics_in_validation_is_named(tmp_path):
    def refuse(module, inputs):
        if not module.training and (inputs[0].abs() > 100).any():
            raise NumericalError("CGPAttention 'network.attention': 𝒦_o + σ²I is not positive definite")

    model, guide, train, _ = build()
    model.network.attention.register_forward_pre_hook(refuse)
    x, y = data().tensors
    words = r"^epoch 1, after step 3: CGPAttention 'network.attention': 𝒦_o \+ σ²I is not positive definite$"
    with pytest.raises(NonFiniteError, match=words):
        fit(model, guide, train, [(x, y), (1e6 * x, y)], out=tmp_path, **short())
    assert not (tmp_path / "last.pt").exists()


def test_an_error_without_a_message_stays_itself():
    def refuse(*_):
        raise RuntimeError

    model, guide, train, _ = build()
    model.network.attention.register_forward_pre_hook(refuse)
    with pytest.raises(RuntimeError) as raised:
        fit(model, guide, train, **short())
    assert type(raised.value) is RuntimeError
    assert str(raised.value).partition("\n")[0] == ""
    with torch.no_grad():
        model.network.head.weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"head\.weight of the model: .* \(RuntimeError\)"):
        fit(model, guide, train, **short())


def test_broken_regression_labels_are_named():
    model, guide, _, _ = build(likelihood=Gaussian())
    x, y = torch.randn(4, 4, 3), torch.tensor([[0.0], [1.0], [math.nan], [2.0]])
    with pytest.raises(NonFiniteError, match=r"epoch 1, after step 0: NaN or Inf in the labels, rows \[2\]"):
        fit(model, guide, [(x, y)], **short())


def test_an_error_that_has_nothing_to_do_with_nan_stays_itself():
    model, guide, _, _ = build()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit(model, guide, [(torch.randn(4, 4, 2), torch.zeros(4).long())], **short())
