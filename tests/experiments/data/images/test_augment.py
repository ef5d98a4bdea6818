import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from probattn.experiments.data.images.augment import crop_flip, random_crop, random_flip


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(*shape, dtype=torch.uint8):
    """Images without a zero pixel or a mirror image of themselves, to tell every crop from every other."""
    return torch.randint(1, 256, shape, generator=seeded(99), dtype=torch.uint8).to(dtype)


def every_crop(image, padding):
    """All crops of one image by torchvision, in the order of (top, left)."""
    padded = tv.pad(image, [padding])
    span = range(2 * padding + 1)
    return torch.stack([tv.crop(padded, top, left, *image.shape[-2:]) for top in span for left in span])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crop_is_one_of_torchvisions_crops_of_that_image(dtype, padding):
    images = noise(12, 3, 6, 7, dtype=dtype)
    crops = random_crop(images, padding=padding, generator=seeded())
    assert crops.dtype == dtype
    assert crops.is_contiguous()
    offsets = []
    for image, crop in zip(images, crops, strict=True):
        (match,) = [i for i, one in enumerate(every_crop(image, padding)) if torch.equal(one, crop)]
        offsets.append(match)
    assert padding == 0 or len(set(offsets)) > 1, "the images of a batch share one offset"


def test_crop_offsets_are_uniform_over_every_pair_in_range():
    image, padding, count = noise(1, 4, 5), 2, 5000
    crops = random_crop(image.expand(count, -1, -1, -1), padding=padding, generator=seeded())
    matches = (crops[:, None] == every_crop(image, padding)).flatten(2).all(-1)
    assert (matches.sum(1) == 1).all()
    counts, mean = matches.sum(0), count / 25
    assert ((counts - mean) ** 2 / mean).sum() < 52  # chi-square with 24 degrees of freedom, p = 0.001


def test_flip_is_torchvisions_for_about_half_of_the_images():
    images = noise(1000, 2, 3, 4)
    flipped = random_flip(images, generator=seeded())
    mirrored = 0
    for before, after in zip(images, flipped, strict=True):
        assert torch.equal(after, before) != torch.equal(after, tv.horizontal_flip(before))
        mirrored += not torch.equal(after, before)
    assert abs(mirrored - 500) < 53  # p = 0.001


def test_crop_flip_crops_then_flips():
    images, generator = noise(16, 3, 8, 8), seeded()
    expected = random_flip(random_crop(images, padding=2, generator=generator), generator=generator)
    assert torch.equal(crop_flip(images, padding=2, generator=seeded()), expected)
    assert not torch.equal(random_crop(images, padding=2, generator=seeded()), expected)


@pytest.mark.parametrize("augment", [lambda x, generator: random_crop(x, padding=2, generator=generator), random_flip])
def test_generator_state_fixes_the_result_and_the_global_generator_is_left_alone(augment):
    images, generator = noise(32, 1, 5, 5), seeded()
    kept, state, elsewhere = images.clone(), generator.get_state(), torch.get_rng_state()
    first, second = augment(images, generator=generator), augment(images, generator=generator)
    generator.set_state(state)
    assert torch.equal(first, augment(images, generator=generator))
    assert not torch.equal(first, second)
    assert torch.equal(images, kept)
    assert torch.equal(torch.get_rng_state(), elsewhere)


def test_non_contiguous_images_and_batches_of_none_and_one():
    images = noise(6, 7, 5, 3).permute(0, 3, 1, 2)
    expected = crop_flip(images.contiguous(), padding=1, generator=seeded())
    assert torch.equal(crop_flip(images, padding=1, generator=seeded()), expected)
    assert crop_flip(images[:0], padding=1, generator=seeded()).shape == (0, 3, 7, 5)
    assert (crop_flip(images[:1], padding=0, generator=seeded()).sum() == images[:1].sum()).all()


def test_negative_padding_is_refused():
    with pytest.raises(ValueError, match="padding must not be negative, got -1"):
        random_crop(noise(1, 1, 3, 3), padding=-1, generator=seeded())
