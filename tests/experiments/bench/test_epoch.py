"""Epochs are those of `fit`, on the given number of images, without the first of each run."""

import pytest
import torch

from probattn.experiments.bench import epoch, flops
from probattn.experiments.bench.meter import Meter
from probattn.experiments.config.validation import SettingsError
from probattn.inference import History

KEP, SOFTMAX = "kep-svgp/cifar10", "kep-svgp/cifar10-softmax"
TINY = ["network.dim=20", "network.depth=1", "network.heads=2", "network.mlp_dim=8", "data.batch_size=2"]


@pytest.fixture
def meter(monkeypatch):
    monkeypatch.setattr(flops, "matmul_rates", lambda device: {"float32": 1e9})
    return Meter("cpu")


def test_twins_differ_in_the_layer_alone():
    both = epoch.twins(KEP, ["data.batch_size=7"], device="cpu")
    assert list(both) == [SOFTMAX, KEP]
    flat = [
        {k: v for k, v in each.flat().items() if not k.startswith(("layer", "train.guide"))} for each in both.values()
    ]
    assert flat[0] == flat[1]
    assert (flat[0]["train.accelerator"], flat[0]["data.batch_size"], flat[0]["network.depth"]) == ("cpu", 7, 7)
    assert [each.layer.name for each in both.values()] == ["softmax", "kep-svgp"]
    assert epoch.twins("cgp/cifar10", [], device="cpu")["cgp/cifar10"].warm_start is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("kep-svgp/cifar1", [], "did you mean"),
        ("kep-svgp/cola", [], "kep-svgp/cola is not a preset of images"),
        (SOFTMAX, [], "not a preset of images with a softmax baseline"),
        (KEP, ["train.epoch=1"], "unknown key"),
    ],
)
def test_what_has_no_twin_or_does_not_fit_is_refused(name, changes, words):
    with pytest.raises(SettingsError, match=words):
        epoch.twins(name, changes, device="cpu")


def test_an_epoch_sees_every_image_once(meter, monkeypatch):
    seen, real = [], epoch.fit

    def fit(model, guide, train, **options):
        batches = [x for x, _ in train]
        seen.append((len(torch.cat(batches)), batches[0].shape, batches[0].device.type, model.num_data))
        return real(model, guide, train, **options)

    monkeypatch.setattr(epoch, "fit", fit)
    result = epoch.epoch(meter, rounds=2, both=epoch.twins(KEP, TINY, device="cpu"), images=5)
    assert seen == 4 * [(5, (2, 3, 32, 32), "cpu", 5)]
    (section,) = result["sections"]
    assert (section["title"], section["rounds"]) == ("5 images", 4)
    assert [row["case"] for row in section["rows"]] == [SOFTMAX, KEP]
    assert result["settings"][KEP]["network.dim"] == 20
    assert all("peak_mib" not in row for row in section["rows"])


def test_runs_take_turns_and_their_first_epoch_does_not_count(meter, monkeypatch):
    order = []

    def fit(model, guide, train, **options):
        order.append(type(model.network.blocks[-1].attention).__name__)
        seconds = {"SoftmaxAttention": [90, 1, 3], "KEPSVGPAttention": [90, 4, 4]}[order[-1]]
        return History([], [{"seconds": each} for each in seconds], 1, None)

    monkeypatch.setattr(epoch, "fit", fit)
    result = epoch.epoch(meter, rounds=2, both=epoch.twins(KEP, TINY, device="cpu"), images=5)
    assert order == 2 * ["SoftmaxAttention", "KEPSVGPAttention"]
    softmax, kep = result["sections"][0]["rows"]
    assert (softmax["ms"], softmax["least"], kep["ms"], kep["ratio"]) == (2000, 1000, 4000, 2)


def test_as_many_images_as_the_device_can_take_by_default(meter, monkeypatch):
    numbers = []
    monkeypatch.setattr(epoch, "epochs", lambda settings, dataset, device: numbers.append(len(dataset.train)) or [1, 1])
    monkeypatch.setattr(epoch, "DEFAULT_IMAGES", {"cpu": 6, "cuda": 45_000})
    epoch.epoch(meter, rounds=1, both=epoch.twins(KEP, TINY, device="cpu"))
    assert numbers == [6, 6]
