"""Loaders, model and guide of a run, from its settings and its data set."""

import torch
from torch import nn

from probattn import guides
from probattn.attention.base import LayerFactory
from probattn.experiments.config.schema import options_of
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.batch_loader import BatchLoader as Loader
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.runs.likelihoods import balanced_weights, regression_likelihood
from probattn.models import Classifier, PretrainedClassifier, Supervised, TabularTransformer, TextTransformer, ViT, last


def build(settings: Settings, dataset: Dataset) -> tuple[Supervised, guides.Guide]:
    """Build the model and the guide of a run, initialised from ``train.seed``."""
    model = build_model(settings, dataset)
    return model, build_guide(settings, model)


def build_guide(settings: Settings, model: Supervised) -> guides.Guide:
    """Build the guide of a run's model; a layer without global latent variables needs no family."""
    with torch.random.fork_rng(devices=[]):  # listing the sites samples their priors
        has_sites = any(True for _ in guides.latent_sites(model))
    return guides.for_model(model, settings.layer.family if has_sites else "full")


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
        weights = balanced_weights(dataset.train.labels, classes=classes) if settings.train.class_weights else None
        network = _network(settings, dataset, outputs=classes)
        return Classifier(network, num_data=examples, class_weights=weights)
    likelihood, in_units = regression_likelihood(settings.data, mean=dataset.label_mean, std=dataset.label_std)
    units = (dataset.label_mean, dataset.label_std) if in_units else None
    network = _network(settings, dataset, outputs=getattr(likelihood, "outputs", 1), units=units)
    for parameter in network.head.parameters():
        nn.init.zeros_(parameter[1:])  # the noise starts at the standard deviation of the labels
    return Supervised(network, likelihood, num_data=examples)


def loaders(settings: Settings, dataset: Dataset, *, device: str) -> tuple[Loader, Loader]:
    """Build the loaders of the training and the validation part, with the data on the device.

    Only the training part is shuffled and augmented, from ``train.seed``. Texts are validated in the order of their
    length.
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
    settings: Settings, dataset: Dataset, *, outputs: int, units: tuple[float, float] | None = None
) -> nn.Module:
    """Build a network; ``units`` are the mean and standard deviation that scale the numbers of a table."""
    network, layer = settings.network, settings.layer
    if network.kind == "encoder":
        parts = {"encoder": dataset.tokens.network(), "attention": layer.factory(None), "last": layer.last}
        return PretrainedClassifier(classes=outputs, **options_of(PretrainedClassifier, network) | parts)

    def attention(tokens: int | None) -> list[LayerFactory]:
        depth = network.depth
        return last(depth if layer.last is None else layer.last, layer.factory(tokens), of=depth)

    if network.kind == "tabular":
        columns, options = dataset.encoding.sizes, options_of(TabularTransformer, network)
        return TabularTransformer(columns, outputs=outputs, units=units, attention=attention(len(columns)), **options)
    if network.kind == "text":
        embedding, options = dataset.tokens.embedding(network.dim), options_of(TextTransformer, network)
        return TextTransformer(embedding, classes=outputs, attention=attention(None), **options)
    channels, size = dataset.train.images.shape[1:3]
    options = {"classes": outputs, "image_size": size, "channels": channels} | options_of(ViT, network)
    return ViT(attention=attention((size // network.patch_size) ** 2), **options)
