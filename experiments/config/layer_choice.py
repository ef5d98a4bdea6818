"""Settings with another layer, and what that layer needs of the training."""

from dataclasses import replace

from probattn.experiments.config.layers import layer_class
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.yaml_files import packaged

# Learning rate of the guide of layers without another one.
GUIDE_LR = 0.03


def with_layer(settings: Settings, name: str) -> Settings:
    """Return settings with another layer for the same total of epochs; ``layers.yaml`` has what the layer needs.

    Args:
        settings: of a preset.
        name: name of a layer, or ``package.module:Class`` of your own, which has its constructor's defaults.

    Raises:
        SettingsError: an unknown name.
    """
    if name == settings.layer.name:
        return settings
    kind, total = settings.network.kind, settings.epochs
    is_text = kind in ("text", "encoder")
    defaults = packaged("layers").get(name, {})
    options = dict(defaults.get("text" if is_text else kind, {}))
    if kind == "encoder":
        options["last"] = 0 if name == "softmax" else 1
    rates = {"guide_lr": defaults.get("guide_lr", GUIDE_LR), "alpha_start": defaults.get("alpha_start", 1.0)}
    train = replace(settings.train, epochs=total, alpha_end=1.0, **rates)
    changed = replace(settings, layer=layer_class(name)(**options), train=train, warm_start=None)
    start = 0 if is_text else round(defaults.get("start", 0) * total)
    if not 0 < start < total:
        return changed
    warmup = 0.0 if train.warmup_epochs >= total - start else train.warmup_epochs
    changed = replace(changed, train=replace(train, epochs=total - start, warmup_epochs=warmup))
    return changed.merged({"warm_start": {"epochs": start} | defaults.get("warm_start", {})})
