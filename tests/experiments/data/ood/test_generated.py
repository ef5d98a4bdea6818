"""Generated OOD sets: letters and patches."""

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from probattn.experiments.data.images import datasets
from probattn.experiments.data.ood import generated
from probattn.experiments.data.ood.datasets import load

GREY = {"size": 8, "channels": 1, "in_distribution": "digits"}


def test_letters_look_like_digits_as_far_as_numbers_tell():
    digits = datasets.load("digits").test.images.float()
    letters = load("letters", **GREY).images.float()
    assert len(letters) == 360
    # Counts of 0 to 16 dots, as in scikit-learn's digits.
    assert torch.equal(letters.unique(), torch.tensor([round(dots * 255 / 16) for dots in range(17)]).float())
    assert letters.mean() == pytest.approx(digits.mean().item(), rel=0.15)
    # Ink keeps to the middle columns, and is found in every row.
    for images in (digits, letters):
        columns, rows = images.mean((0, 1, 2)), images.mean((0, 1, 3))
        assert columns[[0, 7]].max() < 10
        assert columns[2:6].min() > 80
        assert rows.min() > 50
    assert (letters.amax((1, 2, 3)) > 200).all()


def test_letters_keep_their_form():
    # At 32×32 a bold H is empty above and below its bar, an L at the upper right; all other letters differ.
    letters = load("letters", size=32, channels=3, in_distribution="cifar10").images
    assert (letters[:, 0] == letters[:, 2]).all()
    plain = letters[:60, 0].view(15, 4, 32, 32).float().mean(1) / 255
    middle = dict(zip("ACEFHKLMNPRUVWX", plain, strict=True))
    assert middle["H"][2:8, 14:18].mean() < 0.05
    assert middle["H"][24:30, 14:18].mean() < 0.05
    assert middle["H"][14:19, 14:18].mean() > 0.5
    assert middle["L"][:20, 18:].mean() < 0.05
    assert middle["L"][27:30, 12:20].mean() > 0.5
    assert middle["U"][:16, 14:18].mean() < 0.05


def test_patches_are_cut_from_both_photographs():
    from sklearn.datasets import load_sample_images

    patches = generated.patches(seed=0)
    for number in (0, 99, 180, 359):
        patch, photograph = patches[number], load_sample_images().images[number // 180]
        corners = sliding_window_view(photograph, patch.shape).squeeze(2)[..., 0, :8, :]
        top, left = np.argwhere((corners == patch[0, :8]).all((2, 3)))[0]
        side = len(patch)
        assert 32 <= side <= 160
        assert np.array_equal(photograph[top : top + side, left : left + side], patch)
    assert len({len(patch) for patch in patches}) > 90


@pytest.mark.parametrize("name", ["letters", "patches"])
def test_the_seed_fixes_them(name):
    first, again, other = (load(name, seed=seed, **GREY).images for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.unique(dim=0)) > 350
