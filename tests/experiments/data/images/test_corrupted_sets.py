import hashlib
import io
import shutil
import sys
import tarfile
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch
from pytorch_ood.dataset.img import CIFAR10C

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import cifar
from probattn.experiments.data.images import corrupted_sets as module
from probattn.experiments.data.images.corrupted_sets import corrupted_sets
from probattn.experiments.data.images.corruptions import CORRUPTIONS, STANDARD, corrupt
from probattn.experiments.data.images.labelled_images import Images

TEST = 30
"""Images of the small CIFAR-10 of these tests, three a class."""
NAMES = ("gaussian_noise", "fog", "pixelate")
LABELS = np.arange(TEST, dtype=np.uint8) % 10


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch):
    monkeypatch.setitem(cifar.CIFAR, "cifar10", cifar.CIFAR["cifar10"]._replace(num_test=TEST))


@pytest.fixture(autouse=True)
def offline(no_network):
    """The official files are not downloaded."""


@pytest.fixture
def test_images():
    images = torch.randint(0, 256, (TEST, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Images(images, torch.arange(TEST) % 10)


@pytest.fixture
def folder(tmp_path):
    """Small official files: each image tells its corruption, severity, number and position."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        np.save(folder / f"{name}.npy", numbered_images(number))
    np.save(folder / "labels.npy", np.tile(LABELS, 5))
    return folder


def numbered_images(number):
    pixels = np.zeros((5 * TEST, 32, 32, 3), dtype=np.uint8)
    pixels[:, 0, 0, 0] = number
    pixels[:, 0, 0, 1] = np.arange(5 * TEST) // TEST
    pixels[:, 0, 0, 2] = np.arange(5 * TEST) % TEST
    pixels[:, 1, 0] = 77
    return pixels


def found(folder, test_images, **options):
    return corrupted_sets("cifar10", test_images, root=folder.parent, corruptions=NAMES, **options)


def test_official_files_are_read_by_corruption_and_severity(folder, test_images):
    sets = found(folder, test_images)
    assert sets.source == "official files of CIFAR-10-C, 30 of 30 images"
    assert list(sets) == [(name, severity) for name in NAMES for severity in range(1, 6)]
    for name, severity in sets:
        images = sets.images(name, severity)
        expected = torch.tensor([[NAMES.index(name), severity - 1, number] for number in range(TEST)])
        assert torch.equal(images.images[:, :, 0, 0].long(), expected)
        assert (images.images[:, :, 1, 0] == 77).all()
        assert (images.images[:, :, 0, 1] == 0).all()
        assert torch.equal(images.labels, torch.from_numpy(LABELS).long())


def test_a_limited_run_takes_as_many_official_images(folder, test_images):
    small = test_images.select(torch.arange(20))
    sets = found(folder, small)
    assert sets.source == "official files of CIFAR-10-C, 20 of 30 images"
    parts = [sets.images(name, severity) for name, severity in sets]
    numbers = parts[0].images[:, 2, 0, 0].long()
    assert numbers.unique().tolist() == numbers.tolist()
    assert parts[0].labels.bincount().tolist() == [2] * 10
    for part in parts:
        assert torch.equal(part.images[:, 2, 0, 0].long(), numbers)
        assert torch.equal(part.labels, numbers % 10)
    again = found(folder, small, seed=1).images("fog", 1)
    assert not torch.equal(again.images[:, 2, 0, 0].long(), numbers)


def test_only_the_files_asked_for_are_needed(folder, test_images):
    (folder / "fog.npy").unlink()
    sets = corrupted_sets("cifar10", test_images, root=folder.parent, corruptions=["pixelate"], severities=[3, 3, 5])
    assert list(sets) == [("pixelate", 3), ("pixelate", 5)]
    with pytest.raises(ValueError, match="no set 'fog' of severity 3: there is pixelate of severity 3, 5"):
        sets.images("fog", 3)
    with pytest.raises(ValueError, match="no set 'pixelate' of severity 4"):
        sets.images("pixelate", 4)


def test_without_the_folder_the_run_s_own_images_are_corrupted(tmp_path, test_images):
    sets = corrupted_sets("cifar10", test_images, root=tmp_path, seed=4)
    assert sets.source.startswith("generated from 30 test images")
    assert sets.corruptions == STANDARD
    assert sets.severities == (1, 2, 3, 4, 5)
    part = sets.images("motion_blur", 3)
    assert torch.equal(part.images, corrupt(test_images.images, "motion_blur", 3, seed=4))
    assert part.labels is test_images.labels


@pytest.mark.parametrize(("folder_there", "reason"), [(True, "CIFAR-10-C.tar is out of reach"), (False, "is missing")])
def test_the_source_says_why_there_are_no_official_files(tmp_path, test_images, folder_there, reason):
    root = tmp_path if folder_there else tmp_path / "elsewhere"
    source = corrupted_sets("cifar10", test_images, root=root, corruptions=["fog"]).source
    assert "; there are no official files of CIFAR-10-C: " in source
    assert source.endswith(reason)


def test_without_pytorch_ood_the_source_says_how_to_download(tmp_path, test_images, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_ood.dataset.img", None)
    source = corrupted_sets("cifar10", test_images, root=tmp_path, corruptions=["fog"]).source
    assert source.endswith("pip install 'probattn[ood]' to download them")


def test_an_archive_in_the_folder_of_the_data_is_unpacked_without_a_network(folder, test_images, monkeypatch):
    archive = folder.parent / "CIFAR-10-C.tar"
    with tarfile.open(archive, "w") as opened:
        opened.add(folder, folder.name)
    shutil.rmtree(folder)
    damaged = corrupted_sets("cifar10", test_images, root=folder.parent, corruptions=["fog"]).source
    assert damaged.endswith("CIFAR-10-C.tar is damaged, or its download failed")  # not of the official checksum
    monkeypatch.setattr(CIFAR10C, "md5hash", hashlib.md5(archive.read_bytes()).hexdigest())
    sets = found(folder, test_images)
    assert sets.source == "official files of CIFAR-10-C, 30 of 30 images"
    assert len(sets.images("fog", 2).images) == TEST


def test_where_the_server_answers_the_official_files_are_downloaded(folder, test_images, monkeypatch):
    elsewhere = folder.parent / "data"
    elsewhere.mkdir()
    calls = []

    def download(url, root, *, filename, md5):
        calls.append((url, filename, md5))
        folder.rename(root / folder.name)

    monkeypatch.setattr(module, "is_reachable", lambda url: True)
    monkeypatch.setattr(module, "download_and_extract", download)
    sets = corrupted_sets("cifar10", test_images, root=elsewhere, corruptions=NAMES)
    assert sets.source.startswith("official files of CIFAR-10-C")
    assert calls == [(CIFAR10C.url, "CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499")]


def digests(sets):
    return {pair: sets.digest(*pair) for pair in sets}


def test_official_images_have_another_digest_where_a_pixel_or_label_differs(folder, test_images):
    before = digests(found(folder, test_images))
    assert len(set(before.values())) == len(before)
    pixels = np.load(folder / "fog.npy")
    pixels[2 * TEST, 5, 5, 1] += 1  # severity 3
    np.save(folder / "fog.npy", pixels)
    after = digests(found(folder, test_images))
    assert [pair for pair in before if before[pair] != after[pair]] == [("fog", 3)]
    labels = np.load(folder / "labels.npy")
    np.save(folder / "labels.npy", 9 - labels)
    assert not set(after.values()) & set(digests(found(folder, test_images)).values())


def test_the_part_of_official_images_has_a_digest_of_its_own(folder, test_images):
    small = test_images.select(torch.arange(20))
    parts = [found(folder, test_images), found(folder, small), found(folder, small, seed=1)]
    assert len({part.digest("fog", 1) for part in parts}) == 3


def test_generated_images_have_another_digest_where_what_they_are_generated_from_differs(
    folder, test_images, tmp_path, monkeypatch
):
    def fog(images=test_images, severity=1, **options):
        root = tmp_path / "nothing"
        sets = corrupted_sets("cifar10", images, root=root, corruptions=["fog"], severities=[1, 2], **options)
        return sets.digest("fog", severity)

    other = Images(test_images.images.clone(), test_images.labels)
    other.images[3, 1, 7, 7] += 1
    relabelled = Images(test_images.images, test_images.labels.flip(0))
    seen = {
        fog(),
        fog(severity=2),
        fog(seed=1),
        fog(other),
        fog(relabelled),
        found(folder, test_images).digest("fog", 1),
    }
    before = fog()
    with monkeypatch.context() as patch:
        changed = replace(CORRUPTIONS["fog"], severities=CORRUPTIONS["fog"].severities[::-1])
        patch.setitem(CORRUPTIONS, "fog", changed)
        seen.add(fog())
    for library in module.LIBRARIES:
        with monkeypatch.context() as patch:
            patch.setattr(module, "version", lambda name, library=library: "9" if name == library else version(name))
            seen.add(fog())
    assert len(seen) == 7 + len(module.LIBRARIES)
    assert fog() == before


def test_a_digest_is_of_these_sets_only(folder, test_images):
    with pytest.raises(ValueError, match="no set 'frost' of severity 3"):
        found(folder, test_images).digest("frost", 3)


def test_other_data_sets_are_always_generated(folder, test_images):
    digits = Images(test_images.images[:, :1, :8, :8], test_images.labels)
    assert corrupted_sets("digits", digits, root=folder.parent).source.startswith("generated")


def test_the_root_is_that_of_the_data_sets(folder, test_images, monkeypatch, tmp_path):
    monkeypatch.setenv("PROBATTN_DATA", str(folder.parent))
    assert corrupted_sets("cifar10", test_images, corruptions=NAMES).source.startswith("official")
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path / "elsewhere"))
    assert corrupted_sets("cifar10", test_images, corruptions=NAMES).source.startswith("generated")
    monkeypatch.delenv("PROBATTN_DATA")
    monkeypatch.chdir(tmp_path)
    folder.parent.joinpath("data").mkdir()
    folder.rename(tmp_path / "data" / "CIFAR-10-C")
    assert corrupted_sets("cifar10", test_images, corruptions=NAMES).source.startswith("official")


def test_half_of_a_data_set_is_missing(folder, test_images):
    (folder / "fog.npy").unlink()
    (folder / "labels.npy").unlink()
    with pytest.raises(DatasetError, match=r"CIFAR-10-C lacks 2 of 4 files: fog\.npy, labels\.npy\. Unpack the whole"):
        found(folder, test_images)


def test_an_empty_folder_lacks_everything(tmp_path, test_images):
    (tmp_path / "CIFAR-10-C").mkdir()
    with pytest.raises(DatasetError, match=r"lacks 16 of 16 files: gaussian_noise\.npy, .*, labels\.npy"):
        corrupted_sets("cifar10", test_images, root=tmp_path)


@pytest.mark.parametrize("kept", [0, 3, 60, 127, 128, 200, 5 * TEST * 3072 + 127])
def test_a_truncated_file(folder, test_images, kept):
    path = folder / "fog.npy"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        DatasetError, match=r"fog\.npy is damaged or no \.npy file: .*Download fog\.npy of CIFAR-10-C again"
    ):
        found(folder, test_images)


def test_damaged_headers(folder, test_images):
    path = folder / "fog.npy"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, 100, size=2):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            found(folder, test_images)
        except DatasetError:
            refused += 1
    assert refused > 200  # damage to the padding of a header is none


def archive():
    buffer = io.BytesIO()
    np.savez(buffer, numbered_images(1))
    return buffer.getvalue()


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}, "x"], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"<html>404</html>", b"PK\x03\x04 broken", archive(), pickled()])
def test_something_else_under_that_name(folder, test_images, content):
    (folder / "fog.npy").write_bytes(content)
    with pytest.raises(DatasetError, match=r"fog\.npy is damaged or no \.npy file"):
        found(folder, test_images)


@pytest.mark.parametrize(
    ("array", "found_text"),
    [
        (numbered_images(1).astype(np.float32), r"float32 \(150, 32, 32, 3\)"),
        (numbered_images(1).astype(np.int8), r"int8 \(150, 32, 32, 3\)"),
        (numbered_images(1)[:TEST], r"uint8 \(30, 32, 32, 3\)"),
        (numbered_images(1)[..., :1], r"uint8 \(150, 32, 32, 1\)"),
        (numbered_images(1).transpose(0, 3, 1, 2), r"uint8 \(150, 3, 32, 32\)"),
        (np.zeros((150, 64, 64, 3), np.uint8), r"uint8 \(150, 64, 64, 3\)"),
    ],
)
def test_images_of_another_size_or_kind(folder, test_images, array, found_text):
    np.save(folder / "fog.npy", array)
    with pytest.raises(DatasetError, match=rf"fog\.npy holds {found_text}, expected uint8 \(150, 32, 32, 3\)"):
        found(folder, test_images)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.tile(LABELS, 5)[:-1], r"holds uint8 \(149,\), expected integer \(150,\)"),
        (np.tile(LABELS, 5).astype(float), "holds float64"),
        (np.tile(LABELS + 1, 5), "10 different labels from 1 to 10, but CIFAR-10 has each of 0 to 9"),
        (np.tile(LABELS.astype(int) - 1, 5), "10 different labels from -1 to 8"),
        (np.tile(LABELS % 9, 5), "9 different labels from 0 to 8"),
        (np.repeat(LABELS, 5), "labels of the five severities differ"),
    ],
)
def test_wrong_labels(folder, test_images, labels, message):
    np.save(folder / "labels.npy", labels)
    with pytest.raises(DatasetError, match=rf"labels\.npy:? .*{message}|labels\.npy {message}"):
        found(folder, test_images)


def test_labels_of_another_integer_type_are_fine(folder, test_images):
    np.save(folder / "labels.npy", np.tile(LABELS, 5).astype(np.int32))
    assert found(folder, test_images).images("fog", 2).labels.tolist() == LABELS.tolist()


def test_refused_before_any_file_is_opened(tmp_path, test_images):
    with pytest.raises(ValueError, match="unknown corruption 'frog': choose one of fog, frost"):
        corrupted_sets("cifar10", test_images, root=tmp_path, corruptions=["fog", "frog"])
    with pytest.raises(ValueError, match="severity must be an integer from 1 to 5, got 6"):
        corrupted_sets("cifar10", test_images, root=tmp_path, severities=[1, 6])
    for nothing in ({"corruptions": []}, {"severities": []}):
        with pytest.raises(ValueError, match="at least one corruption and one severity"):
            corrupted_sets("cifar10", test_images, root=tmp_path, **nothing)
    four = Images(torch.zeros(2, 4, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="with 1 or 3 channels, got"):
        corrupted_sets("folder", four, root=tmp_path)
