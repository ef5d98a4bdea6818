"""Corrupted test sets: CIFAR-C's own files where they are, else generated images."""

import numpy as np
import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.corruptions import corrupt, corrupted_sets
from probattn.experiments.data.images.image_datasets import Images

TEST = 30
"""Images of the small CIFAR-10 of these tests, three a class."""
NAMES = ("gaussian_noise", "fog", "pixelate")
LABELS = np.arange(TEST, dtype=np.uint8) % 10


@pytest.fixture
def test_images():
    images = torch.randint(0, 256, (TEST, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Images(images, torch.arange(TEST) % 10)


def numbered_images(number):
    pixels = np.zeros((5 * TEST, 32, 32, 3), dtype=np.uint8)
    pixels[:, 0, 0, 0] = number
    pixels[:, 0, 0, 1] = np.arange(5 * TEST) // TEST
    pixels[:, 0, 0, 2] = np.arange(5 * TEST) % TEST
    pixels[:, 1, 0] = 77
    return pixels


@pytest.fixture
def folder(tmp_path):
    """Small official files: each image tells its corruption, severity, number and position."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        np.save(folder / f"{name}.npy", numbered_images(number))
    np.save(folder / "labels.npy", np.tile(LABELS, 5))
    return folder


def official(folder, test_images):
    return corrupted_sets("cifar10", test_images, root=folder.parent, corruptions=NAMES)


def test_official_files_are_read_by_corruption_and_severity(folder, test_images):
    source, images = official(folder, test_images)
    assert source == "official files of CIFAR-10-C"
    for name in NAMES:
        for severity in range(1, 6):
            part = images(name, severity)
            expected = torch.tensor([[NAMES.index(name), severity - 1, number] for number in range(TEST)])
            assert torch.equal(part.images[:, :, 0, 0].long(), expected)
            assert (part.images[:, :, 1, 0] == 77).all()
            assert (part.images[:, :, 0, 1] == 0).all()
            assert part.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(("name", "root"), [("cifar10", "elsewhere"), ("digits", ".")])
def test_without_official_files_the_test_images_are_corrupted(folder, test_images, name, root):
    options = {"root": folder.parent / root, "corruptions": ["fog", "snow", "motion_blur"]}
    source, images = corrupted_sets(name, test_images, **options)
    assert source.startswith("generated here from 30 test images")
    part = images("motion_blur", 3)
    assert torch.equal(part.images, corrupt(test_images.images, "motion_blur", 3))
    assert part.labels is test_images.labels


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("fog", None),
        ("fog", b"<html>404</html>"),
        ("fog", numbered_images(1)[:TEST]),
        ("fog", numbered_images(1).transpose(0, 3, 1, 2)),
        ("labels", np.tile(LABELS + 1, 5)),
        ("labels", np.tile(LABELS % 9, 5)),
    ],
)
def test_other_content_is_refused_before_a_long_computation(folder, test_images, file, content):
    path = folder / f"{file}.npy"
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(DatasetError, match="CIFAR-10-C.*unpack"):
        official(folder, test_images)


def test_unknown_names_and_severities_are_refused(tmp_path, test_images):
    with pytest.raises(ValueError, match="unknown corruption 'frog'; .*fog"):
        corrupted_sets("cifar10", test_images, root=tmp_path, corruptions=["fog", "frog"])
    with pytest.raises(ValueError, match="severities are .* 1, 6"):
        corrupted_sets("cifar10", test_images, root=tmp_path, corruptions=["fog"], severities=[1, 6])


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_all_but_the_standard_ones_are_read_from_official_files_only(folder, test_images, name):
    np.save(folder / "spatter.npy", numbered_images(9))
    options = {"corruptions": ["fog", "spatter"], "root": folder.parent}
    _, images = corrupted_sets("cifar10", test_images, **options)
    assert images("spatter", 2).images[0, 0, 0, 0] == 9
    with pytest.raises(DatasetError, match="spatter needs the files"):
        corrupted_sets(name, test_images, **options | {"root": folder})
