"""Batches of images and of texts: normalisation, order, padding, crops and flips, and the state
that fixes them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close
from torchvision.transforms.v2 import functional as tv

from probattn.experiments.config.presets import preset
from probattn.experiments.data.batch_loader import ImageLoader, TextLoader, shift
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.runs.sources import load_data

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)


def noise(count=23):
    pixels = torch.randint(1, 256, (count, 3, 5, 5), generator=torch.Generator().manual_seed(7))
    return Images(pixels.to(torch.uint8), torch.arange(count))


def loader(data=None, **options):
    data = noise() if data is None else data
    return ImageLoader(
        data.images, data.labels, **{"batch_size": 5, "mean": MEAN, "std": STD} | options
    )


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def epoch(batches):
    x, y = zip(*batches, strict=True)
    return torch.cat(x), torch.cat(y)


def every_crop(image, padding):
    """All crops of one image by torchvision, in the order of (top, left), then all of them
    mirrored."""
    padded, span = tv.pad(image, [padding]), range(2 * padding + 1)
    crops = [tv.crop(padded, top, left, *image.shape[-2:]) for top in span for left in span]
    return torch.stack(crops + [tv.horizontal_flip(crop) for crop in crops])


def test_batches_are_torchvisions_normalisation_in_the_order_of_the_data():
    data = noise()
    expected = torch.stack(
        [tv.normalize(tv.to_dtype(i, torch.float32, scale=True), MEAN, STD) for i in data.images]
    )
    x, y = epoch(loader(data))
    assert_close(x, expected)
    assert torch.equal(y, data.labels)
    assert [len(y) for _, y in loader(data)] == [5, 5, 5, 5, 3]


def test_crops_and_flips_are_torchvisions_and_uniform():
    image, padding, count = noise(1).images, 1, 2000
    out = shift(image.expand(count, -1, -1, -1), padding=padding, generator=seeded())
    matches = (out[:, None] == every_crop(image[0], padding)).flatten(2).all(-1)
    assert (matches.sum(1) == 1).all()
    counts, mean = matches.sum(0), count / 18
    assert (
        (counts - mean) ** 2 / mean
    ).sum() < 41  # chi-square with 17 degrees of freedom, p = 0.001
    upright = shift(image.expand(50, -1, -1, -1), padding=padding, flip=False, generator=seeded())
    assert (upright[:, None] == every_crop(image[0], padding)[:9]).flatten(2).all(-1).any(1).all()


@pytest.mark.parametrize("flip", [True, False])
def test_images_of_your_own_are_mirrored_only_on_request(tmp_path, flip):
    """The right half alone is bright: a shift by four of 32 pixels leaves it there."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, 16:] = 150
    for name, level in (("a", 0), ("b", 25)):
        (tmp_path / name).mkdir()
        for number in range(20):
            image = Image.fromarray(pixels + np.uint8(level + number))
            image.save(tmp_path / name / f"{number}.png")
    changes = ["data.flip=true"] if flip else []
    own, _ = preset("vit/folder").with_changes(changes).with_data(tmp_path)
    dataset = load_data(own, None)
    x, _ = epoch(dataset.training(batch_size=64, generator=seeded()))
    is_mirrored = x[..., :10].mean((1, 2, 3)) > x[..., 22:].mean((1, 2, 3))
    assert is_mirrored.any() == flip


@pytest.mark.parametrize("options", [{"shuffle": True}, {"augment": True}])
def test_state_at_the_start_fixes_the_epoch(options):
    batches = loader(generator=seeded(), **options)
    elsewhere = torch.get_rng_state()
    epoch(batches)
    state = batches.generator.get_state()
    second, third = epoch(batches), epoch(batches)
    assert not torch.equal(second[0], third[0])
    resumed = loader(generator=seeded(1), **options)
    resumed.generator.set_state(state)
    for result in (second, third):
        assert_close(epoch(resumed), result, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), elsewhere)


def sequences(lengths, *, width=None):
    """Sequence i holds i + 1 in every place (with a width: counts on from it), so that none is like
    another."""
    if width is None:
        return [torch.full((length,), index + 1) for index, length in enumerate(lengths)]
    return [
        torch.arange(1, 1 + length * width).view(length, width) + index
        for index, length in enumerate(lengths)
    ]


def text_loader(lengths, *, width=None, **options):
    return TextLoader(
        sequences(lengths, width=width), torch.arange(len(lengths)), **{"batch_size": 3} | options
    )


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 30), min_size=1),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, 1, 3]),
)
def test_every_example_once_with_its_label_padded_by_zeros(lengths, batch_size, shuffle, width):
    data = sequences(lengths, width=width)
    batches = text_loader(lengths, width=width, batch_size=batch_size, shuffle=shuffle)
    seen = []
    for x, y, mask in batches:
        longest = max(lengths[index] for index in y)
        assert mask.shape == (len(y), longest)
        for row, index, real in zip(x, y.tolist(), mask, strict=True):
            length = lengths[index]
            assert real.tolist() == [True] * length + [False] * (longest - length)
            assert torch.equal(row[:length], data[index])
            assert (row[length:] == 0).all()
        seen.append(y)
    assert len(seen) == len(batches) == -(-len(lengths) // batch_size)
    order = torch.cat(seen).tolist()
    assert sorted(order) == list(range(len(lengths)))
    assert shuffle or order == sorted(order)
    assert sorted(map(len, seen))[1:] == [batch_size] * (len(seen) - 1)


def test_by_length_the_longest_come_first_and_order_says_which_sequence_is_where():
    lengths = (
        (2 + 60 * torch.rand(400, generator=seeded(5)) ** 4).long().tolist()
    )  # many short, few long
    batches = text_loader(lengths, batch_size=7, by_length=True)
    seen, shortest = torch.cat([y for _, y, _ in batches]), max(lengths)
    assert torch.equal(seen, batches.order)
    assert seen.tolist() == sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for _, y, mask in batches:
        assert mask.shape[1] <= shortest
        shortest = min(lengths[index] for index in y)
