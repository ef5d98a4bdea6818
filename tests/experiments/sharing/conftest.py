"""A tiny evaluated run of images, one of texts, and files to predict."""

import numpy as np
import pytest
import torch
from PIL import Image

from probattn.experiments.config import presets
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.data.text.tokens import fit
from probattn.experiments.runs import train

SENTENCES = ("a good film", "a bad film", "good good story", "bad bad story") * 6


@pytest.fixture(scope="session")
def text_run(tmp_path_factory, tiny):
    """The folder of a finished run on two dozen sentences."""
    labels = torch.tensor([1, 0] * 12)
    whole = Texts(SENTENCES, labels)
    settings = presets.preset("kep-svgp/imdb").with_changes(["network.max_length=16"])
    tokens = fit(settings.network, whole, cache=tmp_path_factory.mktemp("cache"))
    dataset = TextDataset("imdb", ("negative", "positive"), whole, whole, whole, tokens, {})
    folder = tmp_path_factory.mktemp("texts") / "run"
    changes = [each for each in tiny if not each.startswith("data.limit")] + ["network.max_length=16"]
    settings = presets.preset("kep-svgp/imdb").with_changes([*changes, "data.batch_size=8", "layer.rank=4"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "load_data", lambda settings, root: dataset)
        train.train(settings, folder, name="kep-svgp/imdb", progress=False)
    return folder


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
