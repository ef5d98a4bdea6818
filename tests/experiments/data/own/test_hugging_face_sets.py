"""Hugging Face data sets on disk; skipped without the package."""

import builtins

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.images import read_hub_images
from probattn.experiments.data.own.rows import read_hub_texts
from probattn.inference.imports import MissingExtraError

COMMON = {
    "label_column": "label",
    "subset": None,
    "shares": {"valid": 0.1, "test": 0.2},
    "seed": 0,
    "limit": None,
}


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


@pytest.fixture
def texts(datasets, tmp_path):
    """Save data sets of texts with names of classes, one without parts, and return the folder of the other.

    Its test split has no labels.
    """
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    train = {"text": [f"text {n}" for n in range(20)], "label": [n % 2 for n in range(20)]}
    test = {"text": ["a", "b"], "label": [-1, -1]}
    parts = {"train": train, "test": test}
    saved = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict(part, features=features) for name, part in parts.items()}
    )
    saved.save_to_disk(str(tmp_path / "saved"))
    saved["train"].save_to_disk(str(tmp_path / "whole"))
    return tmp_path / "saved"


def test_texts_have_the_names_of_their_classes(texts, tmp_path):
    found = read_hub_texts(tmp_path / "whole", text_column="text", **COMMON)
    assert found[0] == ("no", "yes")
    assert [len(part) for part in found[1:]] == [14, 2, 4]
    for part in found[1:]:
        assert [int(text.split()[1]) % 2 for text in part.texts] == part.labels.tolist()


def test_a_missing_label_and_a_missing_column_are_named(texts):
    with pytest.raises(DatasetError, match="test part, row 0: 'label' is nan"):
        read_hub_texts(texts, text_column="text", **COMMON)
    with pytest.raises(DatasetError, match="no column 'sentence'"):
        read_hub_texts(texts, text_column="sentence", **COMMON)


def test_splits_have_other_usual_names_too(datasets, tmp_path, caplog):
    def texts(name, number):
        return {"text": [f"{name} {n}" for n in range(number)], "label": ["ab"[n % 2] for n in range(number)]}

    sizes = {"Training": 10, "DEV": 4, "Testing": 6, "extra": 2}
    parts = {name: datasets.Dataset.from_dict(texts(name, number)) for name, number in sizes.items()}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    data = read_hub_texts(tmp_path / "saved", text_column="text", **COMMON)
    assert [len(part) for part in data[1:]] == [10, 4, 6]
    assert data[2].texts[0] == "DEV 0"
    assert "'extra' have no name of a part" in caplog.text


def test_images_are_decoded_and_broken_ones_named(datasets, tmp_path):
    for n in range(12):
        pixels = np.random.default_rng(n).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        pixels[..., 0] = n
        Image.fromarray(pixels).save(tmp_path / f"{n}.png")
    files = [str(tmp_path / f"{n}.png") for n in range(12)]
    content = {"image": files, "label": ["ab"[n % 2] for n in range(12)]}

    def save(name):
        saved = datasets.Dataset.from_dict(content).cast_column("image", datasets.Image())
        saved.save_to_disk(str(tmp_path / name))
        return tmp_path / name

    found = read_hub_images(save("good"), image_column="image", image_size=4, **COMMON)
    assert found[0] == ("a", "b")
    for part in found[1:]:
        assert (part.images[:, 0, 0, 0].long() % 2 == part.labels).all()
    (tmp_path / "3.png").write_bytes(b"broken")
    with pytest.raises(DatasetError, match="cannot read .*row 3: "):
        read_hub_images(save("bad"), image_column="image", image_size=4, **COMMON)
    content["image"][3] = None
    with pytest.raises(DatasetError, match="cannot read .*row 3: "):
        read_hub_images(save("none"), image_column="image", image_size=4, **COMMON)


def test_the_missing_package_is_named_with_its_extra(monkeypatch):
    original = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "datasets":
            raise ModuleNotFoundError(name, name=name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"pip install 'probattn\[huggingface\]'"):
        read_hub_texts("anything", text_column="text", **COMMON)
