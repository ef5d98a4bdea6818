"""The parts of the settings of a run: their classes, and a part with other values."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from probattn import KernelAttention
from probattn.experiments.config.data import OwnTableSettings, data_class
from probattn.experiments.config.layers import layer_class, network_class
from probattn.experiments.config.schema import options_of, settings_class
from probattn.experiments.config.validation import Count, setting, unknown, validation_error
from probattn.inference import TrainOptions


@setting()
class TrainSettings(TrainOptions):
    """Training of a run.

    Args:
        class_weights: balanced gives rare and frequent classes the same weight in the loss; metrics
            have no weights.
    """

    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = "auto"
    devices: Annotated[int | str, Field(union_mode="left_to_right")] = 1
    class_weights: Literal["balanced"] | None = None

    @property
    def options(self) -> TrainOptions:
        """Options of :func:`~probattn.inference.fit`, which a checkpoint holds."""
        return TrainOptions(**options_of(TrainOptions, self))


@setting()
class _Start:
    """Warm start.

    Args:
        epochs: epochs of kernel attention whose best weights start the run.
    """

    epochs: Count


# The setting of each part that selects its kind, and the function that returns the kind's class.
SELECTORS: dict = {
    "data": ("name", data_class),
    "network": ("kind", network_class),
    "layer": ("name", layer_class),
}
WarmStartSettings = settings_class(
    "WarmStartSettings", _Start, KernelAttention, leave_out=("dim", "heads")
)
# Classes of the parts of a single kind.
CLASSES = {"train": TrainSettings, "warm_start": WarmStartSettings}
PARTS = (*SELECTORS, *CLASSES)
# Settings that say where something is; what is there is compared by its content.
PATHS = ("data.path=", "network.encoder=")
# Likelihood of the numbers of a table.
LIKELIHOOD = OwnTableSettings.likelihood
# Those that settings of classes may have, which do not use them: also that of earlier versions.
UNUSED = (LIKELIHOOD, "gaussian")
LISTING = "`probattn presets NAME` lists all keys"


def merged_part(part: str, value: Any, changes: Mapping[str, Any]) -> Any:
    """Return a part of settings with other values; another kind of it if its selector is among
    them."""
    if part in SELECTORS:
        selector, class_of = SELECTORS[part]
        cls = class_of(str(changes.get(selector, getattr(value, selector, ""))))
    else:
        cls = CLASSES[part]
    names = [option.name for option in fields(cls)]
    for name in changes:
        if name not in names:
            raise unknown(
                "setting", f"{part}.{name}", [f"{part}.{key}" for key in names], listing=LISTING
            )
    current = {} if value is None or (part == "layer" and type(value) is not cls) else vars(value)
    try:
        return cls(**{name: current[name] for name in names if name in current} | dict(changes))
    except ValidationError as error:
        raise validation_error(part, error, names) from error


def scaled(train: TrainSettings, epochs: int) -> TrainSettings:
    """Return the options with another number of epochs, and warm-up and annealing in proportion."""
    share = epochs / train.epochs
    warmup = share * train.warmup_epochs
    anneal = share * train.kl_anneal_epochs
    return replace(train, epochs=epochs, warmup_epochs=warmup, kl_anneal_epochs=anneal)
