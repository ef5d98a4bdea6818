"""Untrusted files: none of them runs code or unpacks without bounds."""

import ast
import hashlib
import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin
from torchvision.datasets import CIFAR10

import probattn
from probattn import experiments, inference, models
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.corruptions import corrupted_sets
from probattn.experiments.data.images.files import read_pixels
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.images.known_sets import read_cifar

FOLDERS = [Path(module.__file__).parent for module in (probattn, experiments, inference, models)]


@pytest.fixture
def evil(tmp_path):
    """An object that makes a folder where it is unpickled; the folder must never be there."""
    marker = tmp_path / "was-run"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    yield Evil()
    assert not marker.exists()


def test_no_code_of_ours_reads_what_can_hold_code():
    paths = {path.resolve() for folder in FOLDERS for path in folder.rglob("*.py")}
    assert len(paths) > 100
    for path in paths - {
        (FOLDERS[2] / "distributed.py").resolve()
    }:  # messages between ranks of one job
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "pickle" not in {
                    getattr(node, "module", ""),
                    *(alias.name for alias in node.names),
                }, path
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                keywords = {item.arg: ast.unparse(item.value) for item in node.keywords}
                assert name not in ("np.load", "joblib.load", "torch.hub.load"), path
                assert name != "torch.load" or keywords.get("weights_only") == "True", path
                assert not name.endswith(".extractall") or keywords.get("filter") == "'data'", path


@pytest.mark.parametrize("bad", ["data_batch_1", "batches.meta"])
def test_cifars_own_files_are_not_unpickled_with_a_wrong_sum(
    tmp_path, monkeypatch, no_network, evil, bad
):
    """A file is not unpickled if its MD5 sum is wrong, even if those of all others are right."""

    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    content = {
        "data_batch_1": batch,
        "test_batch": batch,
        "batches.meta": {"label_names": ["a", "b"]},
    }
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    for name, value in content.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=2))
    sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in content}
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    assert len(read_cifar("cifar10", tmp_path)[1]) == 2
    (folder / bad).write_bytes(pickle.dumps(evil, protocol=2))
    with pytest.raises(DatasetError, match="CIFAR-10 is not in "):
        read_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["fog", "labels"])
def test_arrays_of_objects_are_not_unpickled(tmp_path, evil, name):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for item in ("fog", "labels"):
        np.save(folder / f"{item}.npy", np.array([evil if item == name else 0]), allow_pickle=True)
    images = Images(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    with pytest.raises(DatasetError, match="CIFAR-10-C"):
        corrupted_sets("cifar10", images, root=tmp_path, corruptions=["fog"])


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"


def huge_png():
    """100,000 × 100,000 pixels in a hundred bytes."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("content", [huge_png(), POSTSCRIPT], ids=["bomb", "postscript"])
def test_images_are_neither_interpreted_nor_unpacked_without_bounds(tmp_path, monkeypatch, content):
    monkeypatch.setattr(
        EpsImagePlugin, "Ghostscript", lambda *arguments, **options: pytest.fail("was interpreted")
    )
    (tmp_path / "image.png").write_bytes(content)
    with pytest.raises(DatasetError, match=r"cannot read .*image\.png"):
        read_pixels(tmp_path / "image.png", (3, 32, 32))
