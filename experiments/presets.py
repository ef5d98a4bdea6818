"""The presets: the papers' settings (KEP-SVGP paper, appendix D.1) and small ones on digits, each with its twin."""

from dataclasses import replace
from difflib import get_close_matches

from probattn.experiments.settings import (
    DataSettings,
    KEPSVGPSettings,
    NetworkSettings,
    Settings,
    SettingsError,
    SoftmaxSettings,
)
from probattn.inference import TrainOptions

_DIGITS = Settings(
    data=DataSettings(name="digits", batch_size=64),
    network=NetworkSettings(patch_size=2, dim=64, depth=4, heads=4, mlp_dim=128),
    layer=KEPSVGPSettings(rank=8),
    train=TrainOptions(epochs=40, lr=1e-3, min_lr=1e-5, warmup_epochs=2, monitor="accuracy", log_every=5),
)

_CIFAR10 = Settings(
    data=DataSettings(name="cifar10", batch_size=128),
    network=NetworkSettings(patch_size=4, dim=384, depth=7, heads=12, mlp_dim=384),
    layer=KEPSVGPSettings(),
    train=TrainOptions(
        epochs=300, lr=1e-3, min_lr=1e-5, warmup_epochs=5, weight_decay=5e-5, monitor="accuracy", num_draws=10
    ),
)


def _twin(settings: Settings) -> Settings:
    return replace(settings, layer=SoftmaxSettings())


_CIFAR100 = replace(_CIFAR10, data=replace(_CIFAR10.data, name="cifar100"))

PRESETS: dict[str, Settings] = {
    "digits/kep-svgp": _DIGITS,
    "digits/softmax": _twin(_DIGITS),
    "kep-svgp/cifar10": _CIFAR10,
    "kep-svgp/cifar10-softmax": _twin(_CIFAR10),
    "kep-svgp/cifar100": _CIFAR100,
    "kep-svgp/cifar100-softmax": _twin(_CIFAR100),
}


def preset(name: str) -> Settings:
    """The settings of that name.

    Raises:
        SettingsError: an unknown name, with the ones that are near.
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known presets: {', '.join(PRESETS)};"
        raise SettingsError(f"unknown preset {name!r}; {hint} `probattn presets` lists all")
    return PRESETS[name]
