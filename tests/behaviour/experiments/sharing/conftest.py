"""Tiny runs of images, texts and tables with a calibration, and files to predict."""

import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from probattn.experiments.config import presets
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.runs import sources, train
from probattn.experiments.runs.load import open_run
from probattn.inference import predict

SENTENCES = ("a good film", "a bad film", "good good story", "bad bad story") * 6
KEP = "digits/kep-svgp"


def calibrate(folder):
    """Store the calibration of a run, as ``probattn evaluate`` does; return it."""
    run = open_run(folder, trust_code=True)
    valid = predict(run.model, run.guide, run.batches(run.dataset.valid), num_samples=10, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the validation examples are few
        calibration = Calibration.fit(valid, weights=run.weights, num_samples=10, seed=0)
    calibration.save(folder)
    return calibration


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory, trained):
    """The folder of a calibrated run on digits."""
    folder = shutil.copytree(trained[KEP], tmp_path_factory.mktemp("digits") / "run")
    calibrate(folder)
    return folder


@pytest.fixture(scope="session")
def text_run(tmp_path_factory, tiny):
    """The folder of a finished run on two dozen sentences, without a calibration."""
    whole = Texts(SENTENCES, torch.tensor([1, 0] * 12))
    classes, folder = ("negative", "positive"), tmp_path_factory.mktemp("texts") / "run"
    changes = [change for change in tiny if not change.startswith("data.limit")] + [
        "network.max_length=16"
    ]
    settings = presets.preset("kep-svgp/imdb").with_changes(
        [*changes, "data.batch_size=8", "layer.rank=4"]
    )
    parts = ("imdb", classes, whole, whole, whole)
    dataset = sources.text_dataset.from_parts(*parts, network=settings.network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "load_data", lambda settings, root: dataset)
        train.train(settings, folder, name="kep-svgp/imdb", progress=False)
    return folder


@pytest.fixture(scope="session")
def table_rows():
    """Sixty rows whose price grows with the size, and whose noise does so, too."""
    generator = torch.Generator().manual_seed(0)
    size, colour = torch.rand(60, generator=generator), torch.randint(3, (60,), generator=generator)
    noise = 20 * size * torch.randn(60, generator=generator)
    return [
        {
            "size": f"{each:.4f}",
            "colour": ("red", "green", "blue")[code],
            "price": f"{100 * each + more:.2f}",
        }
        for each, code, more in zip(size.tolist(), colour.tolist(), noise.tolist(), strict=True)
    ]


@pytest.fixture(scope="session")
def train_table(tmp_path_factory, table_rows):
    """Function that trains a calibrated run on the table with changed settings and returns its
    folder."""

    def run(*changes):
        folder = tmp_path_factory.mktemp("table")
        pd.DataFrame(table_rows).to_csv(folder / "table.csv", index=False)
        small = [
            "data.valid_share=0.3",
            "network.dim=8",
            "network.heads=2",
            "network.depth=1",
            "layer.rank=2",
        ]
        changes = [f"data.path={folder / 'table.csv'}", *small, *changes]
        settings = presets.preset("tabular/csv").with_changes(changes).with_total_epochs(8)
        train.train(settings, folder / "run", name="tabular/csv", progress=False)
        calibrate(folder / "run")
        return folder / "run"

    return run


@pytest.fixture
def photos(tmp_path):
    """A folder with two images, one of them in a folder of its own, and a file that is no image."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "wide.png")
    Image.fromarray(pixels[:8, :8, 0]).save(folder / "more" / "fits.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder
