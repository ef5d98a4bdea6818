"""Settings with another layer, and what that layer needs of the training."""

from dataclasses import replace

from probattn.experiments.config.kinds import class_of
from probattn.experiments.config.layers import (
    CGPSettings,
    KernelSettings,
    LayerSettings,
    SGPASettings,
    SparseCGPSettings,
)
from probattn.experiments.config.networks import EncoderSettings, TabularSettings, TextSettings
from probattn.experiments.config.settings import Settings, WarmStartSettings

_STARTS = {"sgpa": 0.375, "cgp": 0.25, "sparse-cgp": 0.25}
"""Share of the epochs that a warm start with kernel attention takes where tokens are images' patches or columns."""


def with_layer(settings: Settings, name: str) -> Settings:
    """Return settings with another layer, as presets on digits, CoLA and IMDB have it, for the same total of epochs.

    The learning rate of the guide is that of KEP-SVGP's presets, CGP's regulariser rises from 0, and SGPA and CGP start
    from kernel attention except on texts.

    Args:
        settings: of a preset.
        name: name of a layer.

    Raises:
        SettingsError: an unknown name.
    """
    if class_of("layer", name) is type(settings.layer):
        return settings
    network = settings.network
    is_text = isinstance(network, TextSettings | EncoderSettings)
    layer = _layer(name, is_text=is_text, few=isinstance(network, TabularSettings))
    if isinstance(network, EncoderSettings):
        layer = replace(layer, last=1) if name != "softmax" else layer
    is_cgp = name in ("cgp", "sparse-cgp")
    total = settings.epochs
    train = replace(
        settings.train,
        epochs=total,
        guide_lr=0.03 if name == "kep-svgp" else None,
        alpha_start=0.0 if is_cgp else 1.0,
        alpha_end=1.0,
    )
    start = 0 if is_text else round(_STARTS.get(name, 0.0) * total)
    if not start or start >= total:
        return replace(settings, layer=layer, train=train, warm_start=None)
    kernel = {"variance": layer.variance, "symmetric": True} if name == "sgpa" else {}
    warm = WarmStartSettings(epochs=start, kernel="ard" if name == "sgpa" else "rbf", **kernel)
    changed = replace(settings, layer=layer, train=replace(train, epochs=total - start), warm_start=warm)
    return changed if train.warmup_epochs < total - start else changed.with_total_epochs(total)


def _layer(name: str, *, is_text: bool, few: bool) -> LayerSettings:
    """Return the layer's settings for texts, or for images or tables, which have few tokens."""
    if name in ("kep-svgp", "kep-svgp-authors"):
        return class_of("layer", name)(rank=4 if few else 10, merge="add" if is_text or few else "concat")
    if name == "kernel":
        return KernelSettings(kernel="exponential" if is_text else "ard")
    if name == "sgpa":
        return SGPASettings(kernel="exponential", variance=0.1) if is_text else SGPASettings(inducing=4, variance=0.02)
    if name == "cgp":
        return CGPSettings(collapsed=True, noise=0.5 if is_text else 0.1)
    if name == "sparse-cgp":
        return SparseCGPSettings(collapsed=True, noise=0.5 if is_text else 0.1, inducing=4 if few else 8)
    return class_of("layer", name)()
