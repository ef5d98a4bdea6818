"""Data set, loaders, model and guide of a run, from its settings."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from probattn import guides
from probattn.attention.base import LayerFactory
from probattn.experiments.config.data import (
    HuggingFaceImageSettings,
    HuggingFaceTextSettings,
    ImageFolderSettings,
    OwnDataSettings,
    TableSettings,
    TextFileSettings,
)
from probattn.experiments.config.networks import EncoderSettings, TabularSettings, TextSettings, ViTSettings
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images import datasets as image_datasets
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.images.loader import ImageLoader
from probattn.experiments.data.own import hugging_face_sets, images, texts
from probattn.experiments.data.own.examples import Shares
from probattn.experiments.data.tables import datasets as tables
from probattn.experiments.data.tables.datasets import TableDataset
from probattn.experiments.data.tables.loader import TableLoader
from probattn.experiments.data.text import datasets as text_datasets
from probattn.experiments.data.text.datasets import TextDataset
from probattn.experiments.data.text.loader import TextLoader
from probattn.experiments.data.text.tokens import PretrainedTokenSettings, TokenSettings
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
    if isinstance(network, EncoderSettings) and network.encoder is None:
        raise SettingsError(
            "this preset trains a pretrained encoder: give its folder with --encoder FOLDER (config.json, "
            "model.safetensors and the tokenizer's files, as Hugging Face's save_pretrained writes them)"
        )
    check_network(settings)
    if isinstance(data, OwnDataSettings):
        return _load_own(settings, root)
    options = {"root": root, "seed": data.seed, "limit": data.limit}
    if isinstance(network, ViTSettings):
        return image_datasets.load(data.name, **options)
    return text_datasets.load(data.name, _token_settings(settings), **options)


def check_network(settings: Settings) -> None:
    """Check that the network takes the data.

    Raises:
        SettingsError: it does not.
    """
    data, network = settings.data, settings.network
    takes = {
        ImageFolderSettings: ViTSettings,
        HuggingFaceImageSettings: ViTSettings,
        TextFileSettings: TextSettings | EncoderSettings,
        HuggingFaceTextSettings: TextSettings | EncoderSettings,
        TableSettings: TabularSettings,
    }
    if type(data) in takes:
        if not isinstance(network, takes[type(data)]):
            raise SettingsError(f"data.name={data.name} does not suit network.kind={network.kind}")
    elif isinstance(network, TabularSettings):
        raise SettingsError(f"network.kind=tabular is for data.name=table-csv, got {data.name}")


def _load_own(settings: Settings, root: Path | None) -> Dataset:
    """Load a user's own data from ``root``, or else from ``data.path``."""
    data = settings.data
    path = data.path if root is None else str(root)
    if path is None:
        raise SettingsError("name your data with --data PATH")
    common = {"shares": Shares(data.valid_share, data.test_share), "seed": data.seed, "limit": data.limit}
    if isinstance(data, HuggingFaceTextSettings | HuggingFaceImageSettings):
        splits = hugging_face_sets.Splits(data.train_split, data.valid_split, data.test_split)
        common |= {"label_column": data.label_column, "subset": data.subset, "splits": splits}
    if isinstance(data, TableSettings):
        names = ("name", "label_column", "task", "ignore_columns", "categorical_columns", "delimiter")
        return tables.read(Path(path), **{name: getattr(data, name) for name in names}, **common)
    if isinstance(data, TextFileSettings):
        names = ("text_column", "label_column", "delimiter")
        options = {name: getattr(data, name) for name in names} | {"kind": data.name.removeprefix("text-")}
        classes, *parts = texts.read(Path(path), **options, **common)
    elif isinstance(data, HuggingFaceTextSettings):
        classes, *parts = hugging_face_sets.read_texts(path, text_column=data.text_column, **common)
    elif isinstance(data, ImageFolderSettings):
        classes, *parts = images.read(Path(path), image_size=data.image_size, **common)
    else:
        options = {"image_column": data.image_column, "image_size": data.image_size}
        classes, *parts = hugging_face_sets.read_images(path, **options, **common)
    if isinstance(data, ImageFolderSettings | HuggingFaceImageSettings):
        return image_datasets.from_parts(data.name, classes, *parts, augment=data.augment)
    return text_datasets.from_parts(data.name, classes, *parts, settings=_token_settings(settings), root=None)


def _token_settings(settings: Settings) -> TokenSettings | PretrainedTokenSettings:
    network = settings.network
    kind = PretrainedTokenSettings if isinstance(network, EncoderSettings) else TokenSettings
    return kind(**{name: getattr(network, name) for name in kind._fields})


def fitted_parts(dataset: Dataset) -> dict[str, str]:
    """Return the digests of the parts of a data set that a run is trained and validated on."""
    return {"train": dataset.train.digest, "valid": dataset.valid.digest}


def build(settings: Settings, dataset: Dataset) -> tuple[Supervised, guides.Guide]:
    """Build the model and the guide of a run, initialised from ``train.seed``."""
    model = build_model(settings, dataset)
    return model, guides.for_model(model, settings.layer.family)


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
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        modules = _parts_of_encoder(settings, dataset) if _is_encoder(settings) else [_network(settings, dataset)]
    weights = sum(each.nbytes for module in modules for each in (*module.parameters(), *module.buffers()))
    needed, memory = copies * weights, total_memory("cpu")
    if needed > memory:
        purpose = "the weights" if copies == 1 else "the weights with their gradients and Adam's moments"
        smaller = "reduce network.dim, network.depth or network.mlp_dim"
        raise SettingsError(
            f"{purpose} would take {needed / 2**30:,.0f} GiB of memory, and this machine has {memory / 2**30:,.0f} GiB:"
            f" {'take a smaller encoder' if _is_encoder(settings) else smaller}, or the layer's sizes"
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
    if isinstance(network, EncoderSettings):
        return _encoder_network(settings, dataset)
    options = {name: getattr(network, name) for name in ("dim", "depth", "heads", "mlp_dim", "dropout")}
    if isinstance(network, TabularSettings):
        sizes = dataset.encoding.sizes
        options |= {"attention": _attention(settings, tokens=len(sizes)), "outputs": len(dataset.classes) or 1}
        if not dataset.classes:
            options["units"] = dataset.label_mean, dataset.label_std
        return TabularTransformer(sizes, **options)
    options["classes"] = len(dataset.classes)
    if isinstance(network, ViTSettings):
        channels, size = dataset.train.images.shape[1:3]
        options["attention"] = _attention(settings, tokens=(size // network.patch_size) ** 2)
        return ViT(image_size=size, patch_size=network.patch_size, channels=channels, **options)
    options["attention"] = _attention(settings, tokens=None)
    return TextTransformer(dataset.tokens.embedding(network.dim), max_length=network.max_length, **options)


def _encoder_network(settings: Settings, dataset: TextDataset) -> nn.Module:
    network, layer = settings.network, settings.layer
    return PretrainedClassifier(
        dataset.tokens.encoder.network(),
        classes=len(dataset.classes),
        dropout=network.dropout,
        pooling=network.pooling,
        attention=layer.factory(None),
        last=layer.last,
    )


def _parts_of_encoder(settings: Settings, dataset: TextDataset) -> list[nn.Module]:
    """Return the encoder and the new layers of a run's network, to measure their size."""
    encoder = dataset.tokens.encoder
    config, layer = encoder.config, settings.layer
    number = config.num_hidden_layers if layer.last is None else layer.last
    layers = [layer.factory(None)(config.hidden_size, config.num_attention_heads) for _ in range(number)]
    return [encoder.architecture(), *layers]


def _is_encoder(settings: Settings) -> bool:
    return isinstance(settings.network, EncoderSettings)


def _attention(settings: Settings, *, tokens: int | None) -> list[LayerFactory]:
    """Return a layer factory for each block."""
    layer, depth = settings.layer, settings.network.depth
    return last(depth if layer.last is None else layer.last, layer.factory(tokens), of=depth)
