"""Digests and the preprocessing of a run: what is read is what was written, or an error."""

import pytest
import torch

from probattn.experiments.data.dataset import digest, read_preprocessing
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset, Images

VALUES = [
    (), (None,), (True,), (1,), (1.0,), ("1",), ("",), ([],), ([1, 2],), ([2, 1],), (1, 2), ([[1], 2],), (["ab", "c"],),
    (["a", "bc"],), (-0.0,), (0.0,), (torch.zeros(2),), (torch.zeros(2, 1),), (torch.zeros(2).double(),),
    (torch.zeros(2), torch.zeros(2)), (torch.zeros(4),), (torch.tensor([0, 1]),), (torch.zeros(0),), ("\ud800",),
]  # fmt: skip


def test_digests_are_equal_where_values_are():
    assert len({digest(*values) for values in VALUES}) == len(VALUES)
    matrix = torch.randn(3, 4)
    assert digest(matrix.T, (1, 2)) == digest(matrix.T.contiguous(), [1, 2])


def test_the_preprocessing_comes_back_and_a_damaged_file_is_refused(tmp_path):
    data = Images(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.arange(2))
    dataset = ImageDataset("mine", ("α\n\ud800", "b"), data, data, data, (1e-300,), (2.5,), augment=True)
    dataset.save_preprocessing(tmp_path)
    content = {"classes": ["α\n\ud800", "b"], "kind": "images", "shape": [1, 8, 8], "mean": [1e-300], "std": [2.5]}
    assert read_preprocessing(tmp_path) == content
    assert [path.name for path in tmp_path.iterdir()] == ["preprocessing.json"]
    for damage in (b"", b"[1]", b'{"a"', b"\xff"):
        (tmp_path / "preprocessing.json").write_bytes(damage)
        with pytest.raises(DatasetError, match=r"preprocessing\.json is missing or damaged"):
            read_preprocessing(tmp_path)
