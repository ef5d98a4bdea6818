"""Data set, loaders, model and guide of a run, from its settings."""

from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from probattn import guides
from probattn.attention.base import LayerFactory
from probattn.experiments.config.data import OWN, DataSettings, OwnDataSettings
from probattn.experiments.config.imported import import_object
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.batch_loader import TableLoader
from probattn.experiments.data.images import image_datasets as image_datasets
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.image_loader import ImageLoader
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.own import hugging_face_sets, images, texts
from probattn.experiments.data.own.examples import Shares
from probattn.experiments.data.tables import table_dataset as tables
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.data.text import text_dataset as text_datasets
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.data.text.text_loader import TextLoader
from probattn.experiments.runs.environment import total_memory
from probattn.inference.prediction.predict import GPU_CHUNK_SIZE
from probattn.models import (
    Classifier,
    PretrainedClassifier,
    Supervised,
    TabularTransformer,
    TextTransformer,
    ViT,
    last,
    likelihoods,
)

GPUS = ("gpu", "cuda")
"""Values of ``train.accelerator`` that require a GPU."""
MAX_VALIDATION_BATCH = 2048
"""Images of a batch of validation on a GPU."""
Dataset = ImageDataset | TextDataset | TableDataset
Loader = ImageLoader | TextLoader | TableLoader


class Loaders(NamedTuple):
    """Batches of the three parts of a data set; only ``train`` is shuffled and augmented."""

    train: Loader
    valid: Loader
    test: Loader


def load_data(settings: Settings, root: Path | None) -> Dataset:
    """Load the data set of a run.

    Args:
        settings: of the run.
        root: folder of the data sets; of a user's own data their path, by default ``data.path``.

    Raises:
        SettingsError: the network is a pretrained encoder, and none is given; its kind does not suit the data; a user's
            own data without a path.
        DatasetError: the data cannot be read.
    """
    data, network = settings.data, settings.network
    if network.kind == "encoder" and network.encoder is None:
        raise SettingsError(
            "this preset trains a pretrained encoder: give its folder with --encoder FOLDER (config.json, "
            "model.safetensors and the tokenizer's files, as Hugging Face's save_pretrained writes them)"
        )
    check_network(settings)
    if ":" in data.name:
        return _load_by_function(settings)
    if isinstance(data, OwnDataSettings):
        return _load_own(settings, root)
    options = {"root": root, "seed": data.seed, "limit": data.limit}
    if network.kind == "vit":
        return image_datasets.load(data.name, **options)
    return text_datasets.load(data.name, network, **options)


def check_network(settings: Settings) -> None:
    """Check that the network takes the data.

    Raises:
        SettingsError: it does not.
    """
    data, kind = settings.data.name, settings.network.kind
    inputs = data.partition("-")[0] if data in OWN else None
    takes = {"image": ("vit",), "text": ("text", "encoder"), "table": ("tabular",)}
    if inputs in takes and kind not in takes[inputs] or inputs is None and ":" not in data and kind == "tabular":
        raise SettingsError(f"data.name={data} does not suit network.kind={kind}")


def _load_by_function(settings: Settings) -> Dataset:
    """Load data by a user's own function, which returns the names of the classes and three parts (inputs, labels).

    Inputs are images, uint8 ``(n, channels, height, width)``, or a list of texts; labels int64 ``(n,)``.

    Raises:
        SettingsError: it returns something else.
    """
    data = settings.data
    names = {each.name for each in fields(data)} - {each.name for each in fields(DataSettings)}
    try:
        classes, *parts = import_object(data.name)(**{name: getattr(data, name) for name in names})
        if settings.network.kind == "vit":
            images = [Images(torch.as_tensor(inputs), torch.as_tensor(labels)) for inputs, labels in parts]
            return image_datasets.from_parts(data.name, tuple(classes), *images, augment=False)
        texts = [Texts(tuple(inputs), torch.as_tensor(labels)) for inputs, labels in parts]
        return text_datasets.from_parts(data.name, tuple(classes), *texts, network=settings.network)
    except (TypeError, ValueError) as error:
        form = "(classes, (inputs, labels) of the training, the validation and the test part)"
        raise SettingsError(f"{data.name} must return {form}: {error}") from error


def _load_own(settings: Settings, root: Path | None) -> Dataset:
    """Load a user's own data from ``root``, or else from ``data.path``."""
    data = settings.data
    path = data.path if root is None else str(root)
    if path is None:
        raise SettingsError("name your data with --data PATH")
    names = {each.name for each in fields(data)} - {each.name for each in fields(OwnDataSettings)}
    options = {name: getattr(data, name) for name in sorted(names)}
    options |= {"shares": Shares(data.valid_share, data.test_share), "seed": data.seed, "limit": data.limit}
    if data.name.endswith("-hf"):
        splits = (options.pop(f"{part}_split") for part in ("train", "valid", "test"))
        options["splits"] = hugging_face_sets.Splits(*splits)
    augment = options.pop("augment", False)
    if data.name == "table-csv":
        return tables.read(Path(path), name=data.name, **options)
    if data.name == "image-folder":
        classes, *parts = images.read(Path(path), **options)
    elif data.name == "image-hf":
        classes, *parts = hugging_face_sets.read_images(path, **options)
    elif data.name == "text-hf":
        classes, *parts = hugging_face_sets.read_texts(path, **options)
    else:
        classes, *parts = texts.read(Path(path), kind=data.name.removeprefix("text-"), **options)
    if data.name.startswith("image"):
        return image_datasets.from_parts(data.name, classes, *parts, augment=augment)
    return text_datasets.from_parts(data.name, classes, *parts, network=settings.network)


def fitted_parts(dataset: Dataset) -> dict[str, str]:
    """Return the digests of the parts of a data set that a run is trained and validated on."""
    return {"train": dataset.train.digest, "valid": dataset.valid.digest}


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
    """Build the model of a run, initialised from ``train.seed``: a classifier, or a regression with Gaussian noise.

    The initial noise of a regression has the standard deviation of the training labels.
    """
    if settings.train.seed is not None:
        torch.manual_seed(settings.train.seed)
    network = _network(settings, dataset)
    if dataset.classes:
        return Classifier(network, num_data=len(dataset.train))
    return Supervised(network, likelihoods.Gaussian(dataset.label_std), num_data=len(dataset.train))


def check_memory(settings: Settings, dataset: Dataset, *, copies: int) -> None:
    """Check that the weights of a run's network fit into memory; nothing of their size is allocated.

    Args:
        settings, dataset: of the run.
        copies: number of values per weight: 1 for prediction; 4 for training, with the gradient and Adam's moments.

    Raises:
        SettingsError: the machine has less memory.
    """
    is_encoder = settings.network.kind == "encoder"
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        modules = _parts_of_encoder(settings, dataset) if is_encoder else [_network(settings, dataset)]
    weights = sum(each.nbytes for module in modules for each in (*module.parameters(), *module.buffers()))
    needed, memory = copies * weights, total_memory("cpu")
    if needed > memory:
        purpose = "the weights" if copies == 1 else "the weights with their gradients and Adam's moments"
        smaller = "reduce network.dim, network.depth or network.mlp_dim"
        raise SettingsError(
            f"{purpose} would take {needed / 2**30:,.0f} GiB of memory, and this machine has {memory / 2**30:,.0f} GiB:"
            f" {'take a smaller encoder' if is_encoder else smaller}, or the layer's sizes"
        )


def loaders(settings: Settings, dataset: Dataset, *, device: str) -> Loaders:
    """Build the loaders of a run, shuffled and augmented from ``train.seed``, with the data on the device.

    Texts are validated and tested in the order of their length. On a GPU, images are validated in larger batches than
    they are trained in.
    """
    common = {"batch_size": settings.data.batch_size, "device": device}
    train = dataset.training(generator=generator(settings), **common)
    if device == "cuda" and isinstance(dataset, ImageDataset):
        most = min(GPU_CHUNK_SIZE // settings.train.num_samples, MAX_VALIDATION_BATCH)
        common["batch_size"] = max(settings.data.batch_size, most)
    if isinstance(dataset, TextDataset):
        common["by_length"] = True
    return Loaders(train, dataset.batches(dataset.valid, **common), dataset.batches(dataset.test, **common))


def generator(settings: Settings) -> torch.Generator:
    """Return a generator seeded with ``train.seed``."""
    return torch.Generator().manual_seed(settings.train.seed or 0)


def find_device(accelerator: str) -> str:
    """Return the device of a run with that ``train.accelerator``: ``"cuda"`` or ``"cpu"``."""
    return "cuda" if accelerator in ("auto", *GPUS) and torch.cuda.is_available() else "cpu"


def _network(settings: Settings, dataset: Dataset) -> nn.Module:
    network = settings.network
    if network.kind == "encoder":
        return PretrainedClassifier(
            dataset.tokens.encoder.network(),
            classes=len(dataset.classes),
            dropout=network.dropout,
            pooling=network.pooling,
            attention=settings.layer.factory(None),
            last=settings.layer.last,
        )
    options = {name: getattr(network, name) for name in ("dim", "depth", "heads", "mlp_dim", "dropout")}
    if network.kind == "tabular":
        sizes = dataset.encoding.sizes
        options |= {"attention": _attention(settings, tokens=len(sizes)), "outputs": len(dataset.classes) or 1}
        if not dataset.classes:
            options["units"] = dataset.label_mean, dataset.label_std
        return TabularTransformer(sizes, **options)
    options["classes"] = len(dataset.classes)
    if network.kind == "vit":
        channels, size = dataset.train.images.shape[1:3]
        options["attention"] = _attention(settings, tokens=(size // network.patch_size) ** 2)
        return ViT(image_size=size, patch_size=network.patch_size, channels=channels, **options)
    options["attention"] = _attention(settings, tokens=None)
    return TextTransformer(dataset.tokens.embedding(network.dim), max_length=network.max_length, **options)


def _parts_of_encoder(settings: Settings, dataset: TextDataset) -> list[nn.Module]:
    """Return the encoder and the new layers of a run's network, to measure their size."""
    encoder = dataset.tokens.encoder
    config, layer = encoder.config, settings.layer
    number = config.num_hidden_layers if layer.last is None else layer.last
    layers = [layer.factory(None)(config.hidden_size, config.num_attention_heads) for _ in range(number)]
    return [encoder.architecture(), *layers]


def _attention(settings: Settings, *, tokens: int | None) -> list[LayerFactory]:
    """Return a layer factory for each block."""
    layer, depth = settings.layer, settings.network.depth
    return last(depth if layer.last is None else layer.last, layer.factory(tokens), of=depth)
