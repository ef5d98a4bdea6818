"""Masks of other libraries against masks written down by hand."""

import pytest
import torch
from torch import Tensor

from probattn.models.third_party.adapters import token_mask

REAL = torch.tensor([[True, True, False], [True, True, True]])
X = torch.zeros(2, 3, 4)
ADDED = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "mask",
    [
        REAL,
        REAL.long(),
        ADDED,
        REAL[:, None, None],
        REAL[:, None, None].expand(2, 1, 3, 3),
        ADDED[:, None, None].expand(2, 4, 3, 3),
        ADDED[:, None, None].clamp(min=torch.finfo(torch.float32).min),
        ADDED[:, None, None].clamp(min=-1e4),
    ],
)
def test_every_form_of_padding_is_the_mask_of_tokens(mask):
    assert torch.equal(token_mask(mask, X), REAL)


def test_one_mask_for_the_whole_batch():
    assert torch.equal(token_mask(REAL[:1, None, None], X), REAL[:1].expand(2, 3))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3, 3).tril().bool()[None, None], "differs between queries or heads"),
        (torch.stack([REAL, ~REAL], 1)[:, :, None], "differs between queries or heads"),
        (torch.tensor([0.0, -1.0, 0.0]).expand(2, 1, 1, 3), "adds numbers other than 0"),
        (torch.tensor([0.0, 1.0, 0.0]).expand(2, 1, 1, 3), "adds numbers other than 0"),
        (torch.tensor([0.0, torch.nan, 0.0]).expand(2, 1, 1, 3), "adds numbers other than 0"),
    ],
)
def test_more_than_padding_is_refused(mask: Tensor, message):
    with pytest.raises(ValueError, match=message):
        token_mask(mask, X)


@pytest.mark.parametrize("mask", [REAL[:, None], REAL[:, :2], object()])
def test_another_shape_is_refused(mask):
    with pytest.raises((RuntimeError, AttributeError)):
        token_mask(mask, X)
