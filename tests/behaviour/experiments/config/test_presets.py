"""Presets: every one builds, and twins differ in the layer alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from twins import twin

from probattn.experiments.config.layers import layer_class
from probattn.experiments.config.presets import PRESETS
from probattn.experiments.data.images.image_datasets import ImageDataset, Images
from probattn.experiments.data.tables.table_dataset import read
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import from_parts
from probattn.experiments.runs.build import build
from probattn.inference import warm_start
from probattn.inference.objective import guide_checks

WITH_TWINS = [name for name in PRESETS if twin(name) not in (None, name)]


@pytest.mark.parametrize("name", WITH_TWINS)
def test_twins_differ_in_the_layer_and_its_training_alone(name):
    """As many epochs in all, the same data, network, learning rates and seed; weights of the
    objective may differ."""
    ours, theirs = PRESETS[name], PRESETS[twin(name)]
    assert ours.epochs == theirs.epochs
    objective = {"alpha_start": 1.0, "alpha_end": 1.0, "kl_weight": 1.0, "local_kl_weight": 1.0}
    objective |= {"monitor": theirs.train.monitor, "guide_lr": None}
    train = replace(ours.train, epochs=theirs.train.epochs, **objective)
    softmax = layer_class("softmax")(last=theirs.layer.last)
    assert replace(ours, layer=softmax, train=train, warm_start=None) == theirs


def made_up_data(settings, folder):
    """Return a few examples of the preset's kind."""
    kind = settings.data.name
    if settings.network.kind == "text":
        part = Texts(("one word", "and another"), torch.arange(2))
        return from_parts("made up", ("a", "b"), part, part, part, network=settings.network)
    if kind == "table-csv":
        frame = pd.DataFrame(
            {"a": range(20), "b": [*"xy"] * 10, "c": np.arange(20) % 4, "label": [*"nnyy"] * 5}
        )
        frame.to_csv(folder / "table.csv", index=False)
        shares = {"valid": 0.2, "test": 0.2}
        return read(
            folder / "table.csv",
            label_column="label",
            task="classes",
            shares=shares,
            seed=0,
            limit=None,
        )
    sizes = {"digits": (1, 8, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}
    channels, size, classes = sizes.get(kind, (3, 32, 3))
    part = Images(
        torch.zeros(classes, channels, size, size, dtype=torch.uint8), torch.arange(classes)
    )
    statistics = ((0.5,) * channels, (0.5,) * channels)
    return ImageDataset(
        kind, tuple(map(str, range(classes))), part, part, part, *statistics, augment=False
    )


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith("finetune/")])
def test_every_preset_builds_and_its_warm_start_fits(name, tmp_path):
    """The layers take the network's tokens, and the attention's projections are carried over."""
    settings = PRESETS[name].with_changes(["network.depth=2"])
    dataset = made_up_data(settings, tmp_path)
    model, guide = build(settings, dataset)
    guide_checks.check(model, guide)
    if settings.warm_start is not None and settings.network.kind != "text":
        report = warm_start(model, build(settings.first_phase(), dataset)[0].state_dict())
        assert report["unused"] == []
        projection = "query_value" if "sgpa" in name else "query_key_value"
        assert {f"network.blocks.{n}.attention.{projection}.weight" for n in range(2)} <= set(
            report["carried"]
        )
        assert all(".attention." in fresh for fresh in report["fresh"])
