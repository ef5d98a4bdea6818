"""Batches of images: normalisation, order, crops and flips, and the state that fixes them."""

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from probattn.experiments.data.batch_loader import ImageLoader, crop_flip
from probattn.experiments.data.images.image_datasets import Images

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)


def noise(count=23):
    pixels = torch.randint(1, 256, (count, 3, 5, 5), generator=torch.Generator().manual_seed(7))
    return Images(pixels.to(torch.uint8), torch.arange(count))


def loader(data=None, **options):
    data = noise() if data is None else data
    return ImageLoader(data.images, data.labels, **{"batch_size": 5, "mean": MEAN, "std": STD} | options)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def epoch(batches):
    x, y = zip(*batches, strict=True)
    return torch.cat(x), torch.cat(y)


def every_crop(image, padding):
    """All crops of one image by torchvision, in the order of (top, left), then all of them mirrored."""
    padded, span = tv.pad(image, [padding]), range(2 * padding + 1)
    crops = [tv.crop(padded, top, left, *image.shape[-2:]) for top in span for left in span]
    return torch.stack(crops + [tv.horizontal_flip(crop) for crop in crops])


def test_batches_are_torchvisions_normalisation_in_the_order_of_the_data():
    data = noise()
    expected = torch.stack([tv.normalize(tv.to_dtype(i, torch.float32, scale=True), MEAN, STD) for i in data.images])
    x, y = epoch(loader(data))
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, expected)
    assert torch.equal(y, data.labels)
    assert [len(y) for _, y in loader(data)] == [5, 5, 5, 5, 3]


def test_shuffle_yields_each_image_once_with_its_own_label():
    data = noise()
    x, y = epoch(loader(data, shuffle=True, generator=seeded()))
    assert not torch.equal(y, data.labels)
    assert torch.equal(y.sort().values, data.labels)
    torch.testing.assert_close(x, epoch(loader(data.select(y)))[0])


def test_augmented_images_are_crops_and_flips_made_before_normalisation():
    x, y = epoch(loader(shuffle=True, augment=True, generator=seeded()))
    for image, label in zip(x, y, strict=True):
        crops = every_crop(noise().images[label], 4)
        normalised = epoch(loader(Images(crops, torch.zeros(len(crops), dtype=torch.long))))[0]
        assert torch.isclose(normalised, image).flatten(1).all(1).any()


def test_crops_and_flips_are_torchvisions_and_uniform():
    image, padding, count = noise(1).images, 1, 2000
    out = crop_flip(image.expand(count, -1, -1, -1), padding=padding, generator=seeded())
    matches = (out[:, None] == every_crop(image[0], padding)).flatten(2).all(-1)
    assert (matches.sum(1) == 1).all()
    counts, mean = matches.sum(0), count / 18
    assert ((counts - mean) ** 2 / mean).sum() < 41  # chi-square with 17 degrees of freedom, p = 0.001


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
        x, y = epoch(resumed)
        assert torch.equal(x, result[0])
        assert torch.equal(y, result[1])
    assert torch.equal(torch.get_rng_state(), elsewhere)
