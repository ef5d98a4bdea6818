"""Errors of CIFAR: each names the problem and the remedy, and leaves the disk unchanged."""

from zlib import crc32

import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.datasets import load

pytestmark = pytest.mark.usefixtures("small_cifar")


def files(folder):
    return sorted(path for path in folder.rglob("*") if ".probattn-cache" not in path.parts)


def fails(root):
    before = files(root)
    with pytest.raises(DatasetError) as error:
        load("cifar10", root=root)
    assert files(root) == before
    return str(error.value)


def test_nothing_there(tmp_path):
    message = fails(tmp_path)
    places = ("cifar10-jpeg", "cifar10", "")
    assert f"in {', '.join(str(tmp_path / place) for place in places)}. " in message
    assert "cifar-10-batches-py (absent)" in message
    assert "no network" in message
    assert "--data" in message
    assert "PROBATTN_DATA" in message


def test_damaged_torchvision_files(tmp_path, write_batches):
    write_batches(tmp_path)
    (tmp_path / CIFAR10.base_folder / "data_batch_1").unlink()
    assert "cifar-10-batches-py (incomplete or damaged)" in fails(tmp_path)


def test_too_few_images(root):
    (root / "cifar10-jpeg" / "train" / "cat" / "0003.png").unlink()
    message = fails(root)
    assert message.startswith(f"{root / 'cifar10-jpeg'} is not a complete CIFAR-10: ")
    assert "train/ holds 199 images in 10 classes, expected 200 in 10, 20 per class (found: cat 19)" in message
    assert "test/" not in message
    assert "Unpack it there again" in message
    assert "--data" in message


def test_one_class_too_many_images_and_another_too_few(root):
    cat, dog = (root / "cifar10-jpeg" / "train" / name for name in ("cat", "dog"))
    (cat / "0003.png").rename(dog / "moved.png")
    assert "(found: cat 19, dog 21)" in fails(root)


def test_a_missing_class(root):
    folder = root / "cifar10-jpeg" / "test" / "dog"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    message = fails(root)
    assert "test/ holds 27 images in 9 classes, expected 30 in 10, 3 per class; test/ lacks dog." in message


def test_classes_of_other_names(root):
    (root / "cifar10-jpeg" / "test" / "dog").rename(root / "cifar10-jpeg" / "test" / "hound")
    assert "train/ lacks hound; test/ lacks dog." in fails(root)


def test_no_test_part(root):
    (root / "cifar10-jpeg" / "test").rename(root / "elsewhere")
    message = fails(root)
    assert "test/ holds 0 images in 0 classes" in message
    assert "test/ lacks airplane, automobile, bird, cat, deer and 5 more" in message


def test_hidden_files_do_not_count(root):
    folder = root / "cifar10-jpeg" / "train"
    (folder / ".thumbnails").mkdir()
    for name in ("._0000.png", "Thumbs.db"):
        (folder / "cat" / name).touch()
    assert len(load("cifar10", root=root).test) == 30


@pytest.mark.parametrize("keep", [0, 0.1, 0.5, 0.8])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_damaged_image_is_named(tmp_path, suffix, keep, write_folders):
    write_folders(tmp_path, suffix)
    path = tmp_path / "test" / "frog" / f"0001{suffix}"
    whole = path.read_bytes()
    path.write_bytes(whole[: round(keep * len(whole))])
    assert f"cannot decode {path}: " in fails(tmp_path)
    assert not (tmp_path / ".probattn-cache").exists()


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        (b"\0\0\0\1IHDR\0" + crc32(b"IHDR\0").to_bytes(4), "Truncated IHDR chunk"),
        (b"\0\0\0\0IDAT\0\0\0\0I?ND", "broken PNG file"),
    ],
    ids=["length", "type"],
)
def test_an_image_with_a_broken_chunk_is_named(root, chunks, reason):
    path = root / "cifar10-jpeg" / "test" / "frog" / "0001.png"
    path.write_bytes(path.read_bytes()[:33] + chunks)  # what follows the signature and the header
    assert f"cannot decode {path}: {reason}" in fails(root)


@pytest.mark.parametrize(
    ("mode", "size", "found"),
    [("RGB", (28, 32), "RGB 28×32"), ("L", (32, 32), "L 32×32"), ("RGBA", (32, 32), "RGBA 32×32")],
)
def test_an_image_of_another_kind_is_named(root, mode, size, found):
    path = root / "cifar10-jpeg" / "train" / "ship" / "0007.png"
    Image.new(mode, size).save(path)
    assert fails(root) == f"{path} is {found}, expected RGB 32×32"
