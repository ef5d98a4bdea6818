"""Loaders, model, likelihood and guide of a run, from its settings and its data set."""

import inspect
from typing import Any, cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from probattn import guides
from probattn.experiments.config.data import OwnTableSettings
from probattn.experiments.config.schema import find_object, options_of
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.batch_loader import BatchLoader as Loader
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.functional.dtypes import at_least_float32
from probattn.models import (
    Classifier,
    Supervised,
    last,
)
from probattn.models.likelihoods import Gaussian, StudentT

SOFTPLUS_INVERSE_OF_1 = 0.5413248546129181


class ScaledHeteroscedastic(nn.Module):
    """Gaussian whose mean and noise depend on the input, in the units of the labels.

    Outputs ``(*draws, batch, 2)`` are m and a raw scale r. The mean of the labels is
    ``mean + std * m``, and the noise ``std * softplus(r + c)``, where c makes it ``std`` at r = 0.

    Args:
        mean, scale: mean and standard deviation of the training labels.
    """

    outputs = 2

    def __init__(self, *, mean: float, scale: float) -> None:
        super().__init__()
        self.units = nn.Buffer(torch.tensor([mean, scale]))

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels ``(batch, 1)``."""
        location, raw = at_least_float32(outputs).chunk(2, -1)
        mean, std = self.units
        return dist.Normal(
            mean + std * location, std * (1e-3 + softplus(raw + SOFTPLUS_INVERSE_OF_1))
        ).to_event(1)


# Likelihoods of regressions by name.
KNOWN = {"gaussian": Gaussian, "heteroscedastic": ScaledHeteroscedastic, "student-t": StudentT}


def build(settings: Settings, dataset: Dataset) -> tuple[Supervised, guides.Guide]:
    """Build the model and the guide of a run, initialised from ``train.seed``."""
    model = build_model(settings, dataset)
    return model, build_guide(settings, model)


def build_model(settings: Settings, dataset: Dataset) -> Supervised:
    """Build the model of a run, initialised from ``train.seed``: a classifier, or a regression.

    Raises:
        SettingsError: a likelihood that is unknown, or options that it does not take.
    """
    if settings.train.seed is not None:
        torch.manual_seed(settings.train.seed)
    examples = len(dataset.train)
    if dataset.classes:
        classes = len(dataset.classes)
        weights = None
        if settings.train.class_weights:
            weights = balanced_weights(dataset.train.labels, classes=classes)
        network = _network(settings, dataset, outputs=classes)
        return Classifier(network, num_data=examples, class_weights=weights)
    table = cast(TableDataset, dataset)
    data = cast(OwnTableSettings, settings.data)
    units = (table.label_mean, table.label_std)
    likelihood, in_units = regression_likelihood(data, mean=units[0], std=units[1])
    network = _network(
        settings,
        dataset,
        outputs=getattr(likelihood, "outputs", 1),
        units=units if in_units else None,
    )
    for parameter in network.get_submodule("head").parameters():
        nn.init.zeros_(parameter[1:])  # the noise starts at the standard deviation of the labels
    return Supervised(network, likelihood, num_data=examples)


def regression_likelihood(
    data: OwnTableSettings, *, mean: float, std: float
) -> tuple[nn.Module, bool]:
    """Build the likelihood of a table's numbers, and say whether its single output is in the units
    of the labels.

    The initial scale is the standard deviation of the labels. A class of your own has as many
    outputs as its attribute ``outputs`` says, 1 by default. One output is in the units of the
    labels if the constructor takes ``scale``.

    Args:
        data: settings of the table.
        mean, std: of the training labels.

    Raises:
        SettingsError: an unknown likelihood, or options that its constructor does not take.
    """
    constructor = KNOWN.get(data.likelihood) or find_object("likelihood", data.likelihood, KNOWN)
    takes = inspect.signature(constructor).parameters
    units = {name: value for name, value in (("mean", mean), ("scale", std)) if name in takes}
    try:
        likelihood = constructor(**units | data.likelihood_options)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"data.likelihood={data.likelihood}: {error}; see data.likelihood_options"
        ) from error
    return likelihood, "scale" in takes and getattr(likelihood, "outputs", 1) == 1


def balanced_weights(labels: Tensor, *, classes: int) -> Tensor:
    """Return the weights n / (K n_c) of K classes in the loss, by which rare and frequent ones have
    the same in all.

    Args:
        labels: of the n training examples, n_c of them of class c.
        classes: K.
    """
    counts = labels.bincount(minlength=classes).clamp(min=1)
    return len(labels) / (classes * counts)


def build_guide(settings: Settings, model: Supervised) -> guides.Guide:
    """Build the guide of a run's model; a layer without global latent variables needs no family."""
    with torch.random.fork_rng(devices=[]):  # listing the sites samples their priors
        has_sites = any(True for _ in guides.latent_sites(model))
    return guides.for_model(model, settings.layer.family if has_sites else "full")


def loaders(settings: Settings, dataset: Dataset, *, device: str) -> tuple[Loader, Loader]:
    """Build the loaders of the training and the validation part, with the data on the device.

    Only the training part is shuffled and augmented, from ``train.seed``. Texts are validated in
    the order of their length.
    """
    options = {"batch_size": settings.data.batch_size, "device": device}
    train = dataset.training(generator=generator(settings), **options)
    return train, dataset.batches(dataset.valid, by_length=True, **options)


def generator(settings: Settings) -> torch.Generator:
    """Return a generator seeded with ``train.seed``."""
    return torch.Generator().manual_seed(settings.train.seed or 0)


def find_device(accelerator: str) -> str:
    """Return the device of a run with that ``train.accelerator``: ``"cuda"`` or ``"cpu"``."""
    return "cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"


def fitted_parts(dataset: Dataset) -> dict[str, str]:
    """Return the digests of the parts of a data set that a run is trained and validated on."""
    return {"train": dataset.train.digest, "valid": dataset.valid.digest}


def _network(
    settings: Settings, dataset: Any, *, outputs: int, units: tuple[float, float] | None = None
) -> nn.Module:
    """Build a network; ``units`` are the mean and standard deviation that scale the numbers of a
    table."""
    network = cast(Any, settings.network)  # of a derived class: its options are known at runtime
    constructor = network.constructor
    layer = settings.layer
    tokens = None
    options = options_of(constructor, network) | {"classes": outputs}
    if network.kind == "encoder":
        options |= {"encoder": dataset.tokens.network(), "last": layer.last}
        return constructor(**options, attention=layer.factory(None))
    if network.kind == "tabular":
        sizes = dataset.encoding.sizes
        tokens = len(sizes)
        options |= {"sizes": sizes, "outputs": options.pop("classes"), "units": units}
    elif network.kind == "text":
        options["embedding"] = dataset.tokens.embedding(network.dim)
    else:
        channels, size = dataset.train.images.shape[1:3]
        tokens = (size // network.patch_size) ** 2
        options |= {"image_size": size, "channels": channels}
    number = network.depth if layer.last is None else layer.last
    attention = last(number, layer.factory(tokens), of=network.depth)
    return constructor(**options, attention=attention)
