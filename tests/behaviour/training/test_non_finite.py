"""A NaN or Inf in training is named with its source and never reaches the disk; other errors are
unchanged."""

import math

import pytest
import torch
from small_fit import build, data, short
from torch import nn

from probattn.functional.errors import NumericalError
from probattn.inference import NonFiniteError, fit
from probattn.inference.io import checkpoint


def poison_inputs(model, guide, batch):
    return [batch[0].clone().index_fill(0, torch.tensor([1]), math.nan), batch[1]]


def poison_weight(model, guide, batch):
    nn.init.constant_(model.network.embed.bias, math.inf)


def poison_guide(model, guide, batch):
    nn.init.constant_(guide.network.attention.u.loc, math.nan)


def poison_gradient(model, guide, batch):
    model.network.head.weight.register_hook(lambda gradient: gradient * math.nan)


def poison_cholesky(model, guide, batch):
    def refuse(module, inputs):
        raise NumericalError("𝒦_o is not positive definite")

    model.network.attention.register_forward_pre_hook(refuse)


POISONS = {
    poison_inputs: r"step 5: .*inputs, rows \[1\]",
    poison_weight: r"step 5: .*network\.embed\.bias of the model",
    poison_guide: r"step 5: .*loc of the guide",
    poison_cholesky: r"step 5: 𝒦_o is not positive definite",
    poison_gradient: r"step [56]: .*network\.head\.weight",
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("options", [{"clip_norm": 1.0}, {"valid": False}], ids=str)
def test_what_is_not_finite_is_named_and_never_reaches_the_disk(tmp_path, poison, options):
    """In an epoch's last batch, after which only the checkpoints are written."""
    model, guide, train, valid = build(**options)
    options = {name: value for name, value in options.items() if name != "valid"}
    files = {}
    train.at = (2, 2)

    def callback(batch):
        files.update({name: (tmp_path / name).read_bytes() for name in ("last.pt", "best.pt")})
        return poison(model, guide, batch)

    train.callback = callback
    with pytest.raises(NonFiniteError, match=f"epoch 2, after {POISONS[poison]}"):
        fit(model, guide, train, valid, out=tmp_path, **short(**options))
    assert files == {name: (tmp_path / name).read_bytes() for name in ("last.pt", "best.pt")}
    content = checkpoint.read(tmp_path / "last.pt")
    assert all(
        value.isfinite().all() for part in ("model", "guide") for value in content[part].values()
    )


def test_an_error_of_the_numerics_in_validation_is_named(tmp_path):
    def refuse(module, inputs):
        if not module.training and (inputs[0].abs() > 100).any():
            raise NumericalError("𝒦_o is not positive definite")

    model, guide, train, _ = build()
    model.network.attention.register_forward_pre_hook(refuse)
    x, y = data().tensors
    with pytest.raises(NonFiniteError, match="epoch 1, after step 3: 𝒦_o"):
        fit(model, guide, train, [(x, y), (1e6 * x, y)], out=tmp_path, **short())
    assert not (tmp_path / "last.pt").exists()


def test_an_error_that_has_nothing_to_do_with_nan_stays_itself():
    model, guide, train, _ = build()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit(model, guide, [(torch.randn(4, 4, 2), torch.zeros(4).long())], **short())

    def refuse(*_):
        raise RuntimeError

    model.network.attention.register_forward_pre_hook(refuse)
    with pytest.raises(RuntimeError) as raised:
        fit(model, guide, train, **short())
    assert type(raised.value) is RuntimeError
