"""The presets are the papers' settings, written out here, and twins differ in the layer alone."""

from dataclasses import replace

import pytest

from probattn.experiments.presets import PRESETS, preset
from probattn.experiments.settings import SettingsError, SoftmaxSettings

TWINS = [name for name in PRESETS if f"{name}-softmax" in PRESETS]
FURTHER_OPTIONS = {
    "clip_norm": None,
    "elbo": "mean_field",
    "posterior_draws": "example",
    "particles": 1,
    "kl_weight": 1.0,
    "kl_anneal_epochs": 0,
    "monitor": "accuracy",
    "patience": None,
    "num_draws": 10,
    "precision": "32",
    "accelerator": "auto",
    "devices": 1,
    "seed": 0,
}
CIFAR_TRAINING = FURTHER_OPTIONS | {
    "epochs": 300,
    "lr": 1e-3,
    "min_lr": 1e-5,
    "warmup_epochs": 5,
    "weight_decay": 5e-5,
    "log_every": 10,
}
DIGITS_TRAINING = CIFAR_TRAINING | {"epochs": 40, "warmup_epochs": 2, "weight_decay": 0.0, "log_every": 5}
CIFAR_NETWORK = {"patch_size": 4, "dim": 384, "depth": 7, "heads": 12, "mlp_dim": 384, "dropout": 0.1}
DIGITS_NETWORK = {"patch_size": 2, "dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128, "dropout": 0.1}
KEP_SVGP = {
    "name": "kep-svgp",
    "last": 1,
    "rank": 10,
    "merge": "concat",
    "projection": "data",
    "multiple": 10,
    "prior": "normal",
    "eta": 10.0,
    "penalty": "example",
    "scale": 1.0,
    "learn_scale": True,
    "guide": "full",
}
SOFTMAX = {"name": "softmax"}


def flat(**parts):
    return {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}


def data(name, batch_size):
    return {"name": name, "batch_size": batch_size, "limit": None, "seed": 0}


@pytest.mark.parametrize("classes", ["cifar10", "cifar100"])
@pytest.mark.parametrize(("suffix", "layer"), [("", KEP_SVGP), ("-softmax", SOFTMAX)])
def test_cifar_presets_are_the_papers(classes, suffix, layer):
    expected = flat(data=data(classes, 128), network=CIFAR_NETWORK, layer=layer, train=CIFAR_TRAINING)
    assert PRESETS[f"kep-svgp/{classes}{suffix}"].flat() == expected


@pytest.mark.parametrize(("name", "layer"), [("kep-svgp", KEP_SVGP | {"rank": 8}), ("softmax", SOFTMAX)])
def test_digits_presets(name, layer):
    expected = flat(data=data("digits", 64), network=DIGITS_NETWORK, layer=layer, train=DIGITS_TRAINING)
    assert PRESETS[f"digits/{name}"].flat() == expected


def test_there_are_no_other_presets():
    assert set(PRESETS) == {
        "digits/kep-svgp",
        "digits/softmax",
        "kep-svgp/cifar10",
        "kep-svgp/cifar10-softmax",
        "kep-svgp/cifar100",
        "kep-svgp/cifar100-softmax",
    }
    assert len(TWINS) == 2


@pytest.mark.parametrize(
    ("name", "twin"), [("digits/kep-svgp", "digits/softmax"), *((name, f"{name}-softmax") for name in TWINS)]
)
def test_twins_differ_in_the_layer_alone(name, twin):
    assert PRESETS[name] != PRESETS[twin]
    assert replace(PRESETS[name], layer=SoftmaxSettings()) == PRESETS[twin]


def test_preset_by_name():
    assert preset("kep-svgp/cifar10") is PRESETS["kep-svgp/cifar10"]


def test_a_near_miss_is_guessed():
    with pytest.raises(SettingsError, match=r"unknown preset 'kep-svgp/cifar'; did you mean .*kep-svgp/cifar10\b.*\?"):
        preset("kep-svgp/cifar")


def test_a_far_miss_gets_the_whole_list():
    with pytest.raises(SettingsError) as caught:
        preset("zebra")
    assert all(name in str(caught.value) for name in ("zebra", *PRESETS))
