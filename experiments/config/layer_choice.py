"""Settings with another layer, and what that layer needs of the training."""

from dataclasses import replace
from typing import Any

from probattn.experiments.config.layers import layer_class
from probattn.experiments.config.settings import Settings

STARTS = {"sgpa": 0.375, "cgp": 0.25, "sparse-cgp": 0.25}
"""Share of the epochs that a warm start with kernel attention takes where tokens are images' patches or columns."""


def with_layer(settings: Settings, name: str) -> Settings:
    """Return settings with another layer, as presets on digits, CoLA and IMDB have it, for the same total of epochs.

    The learning rate of the guide is that of KEP-SVGP's presets, CGP's regulariser rises from 0, and SGPA and CGP start
    from kernel attention except on texts. A layer of your own has its constructor's defaults.

    Args:
        settings: of a preset.
        name: name of a layer, or ``package.module:Class``.

    Raises:
        SettingsError: an unknown name.
    """
    if name == settings.layer.name:
        return settings
    kind, total = settings.network.kind, settings.epochs
    options = _options(name, is_text=kind in ("text", "encoder"), few=kind == "tabular")
    if kind == "encoder":
        options |= {"last": 0 if name == "softmax" else 1}
    layer = layer_class(name)(**options)
    alpha_start = 0.0 if name in ("cgp", "sparse-cgp") else 1.0
    guide_lr = None if name in ("softmax", "kernel", "sgpa", "cgp", "sparse-cgp", "kep-svgp-authors") else 0.03
    train = replace(settings.train, epochs=total, guide_lr=guide_lr, alpha_start=alpha_start, alpha_end=1.0)
    changed = replace(settings, layer=layer, train=train, warm_start=None)
    start = 0 if kind in ("text", "encoder") else round(STARTS.get(name, 0.0) * total)
    if not start or start >= total:
        return changed
    kernel = {"kernel": "ard", "variance": layer.variance, "symmetric": True} if name == "sgpa" else {}
    is_short = train.warmup_epochs >= total - start
    train = replace(train, epochs=total - start, warmup_epochs=0.0 if is_short else train.warmup_epochs)
    return replace(changed, train=train).merged({"warm_start": {"epochs": start, **kernel}})


def _options(name: str, *, is_text: bool, few: bool) -> dict[str, Any]:
    """Return the layer's options for texts, or for images or tables, which have few tokens."""
    if name in ("kep-svgp", "kep-svgp-authors"):
        return {"rank": 4 if few else 10, "merge": "add" if is_text or few else "concat"}
    if name == "kernel":
        return {"kernel": "exponential" if is_text else "ard"}
    if name == "sgpa":
        return {"kernel": "exponential", "variance": 0.1} if is_text else {"inducing": 4, "variance": 0.02}
    if name in ("cgp", "sparse-cgp"):
        inducing = {"inducing": 4 if few else 8} if name == "sparse-cgp" else {}
        return {"collapsed": True, "noise": 0.5 if is_text else 0.1, **inducing}
    return {}
