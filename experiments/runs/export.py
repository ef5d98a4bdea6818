"""Export of a trained run to one file: weights, or a program of PyTorch that takes unprocessed data."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.sealed_files import PREPROCESSING
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.data.text.tokens import ENCODER, TOKENIZER
from probattn.experiments.runs.environment import environment
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.runs.without_data import open_without_data
from probattn.inference import export, mean_network, predictor_network, save_safetensors

METADATA = "probattn.json"
"""File with the metadata inside a program."""


class Normalised(nn.Module):
    """Network preceded by the normalisation of its images: it takes uint8 images, 0 to 255.

    Args:
        network: called on normalised images.
        mean, std: per channel, of pixels scaled to 0..1.
    """

    def __init__(self, network: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the network's outputs for images ``(batch, C, H, W)``."""
        return self.network((images.float() / 255 - self.mean) / self.std)


class Program(NamedTuple):
    """Network that takes unprocessed data, an example of its arguments, its metadata, and further files to store."""

    network: nn.Module
    example: tuple[Tensor, ...]
    metadata: dict[str, Any]
    files: dict[str, str]


def export_run(folder: Path, out: Path, *, mean: bool = False, num_samples: int | None = None, seed: int = 0) -> str:
    """Write the best epoch of a run to a file: weights (``.safetensors``) or a program (``.pt2``).

    A program takes uint8 images, or tokens and mask of texts, and returns probabilities and their uncertainty over
    posterior samples. It also holds :data:`METADATA` (run, classes, inputs and outputs, S, versions), and for texts
    ``tokenizer.json``: ``torch.export.load(out, extra_files={"probattn.json": ""})``.
    PyTorch's programs run on the CPU until they are moved. Share weights: a program of PyTorch's from elsewhere
    can run code when it is loaded.

    Args:
        folder: folder of the run; its data set is not needed.
        out: file to write.
        mean: write one pass at the posterior mean, without uncertainty over samples.
        num_samples: number S of posterior samples in the program; None: that of the run's settings.
        seed: seed of the samples.

    Returns:
        A sentence that says what was written.

    Raises:
        ValueError: another suffix; ``num_samples`` or ``mean`` for weights, or both.
        SettingsError, CheckpointError, DatasetError: as
            :func:`~probattn.experiments.runs.without_data.open_without_data`.
    """
    if out.suffix not in (".pt2", ".safetensors"):
        raise ValueError(f"cannot export to {out}: use the suffix .pt2 for a program, .safetensors for weights")
    if out.suffix == ".safetensors" and (num_samples is not None or mean):
        raise ValueError("weights hold the whole posterior: leave --num-samples and --mean out, or write a program")
    if mean and num_samples is not None:
        raise ValueError("the posterior mean is no sample: give --mean or --num-samples")
    run = open_without_data(folder)
    run.model.cpu(), run.guide.cpu()
    if out.suffix == ".safetensors":
        words = {"name": run.name, "settings": json.dumps(asdict(run.settings)), "epoch": str(run.best_epoch)}
        save_safetensors(out, run.model, run.guide, **words)
        return f"{out}: weights of model and guide, epoch {run.best_epoch}"
    program = _program(run, num_samples=None if mean else num_samples or run.settings.train.num_samples, seed=seed)
    files = {METADATA: json.dumps(program.metadata, indent=2), **program.files}
    export(out, program.network, *program.example, files=files)
    return f"{out}: takes {program.metadata['takes']}; gives {', '.join(program.metadata['gives'])}"


def _program(run: TrainedRun, *, num_samples: int | None, seed: int) -> Program:
    """Build the program of a run, not traced yet; at the posterior mean if ``num_samples`` is None."""
    torch.manual_seed(seed)
    if num_samples is None:
        network = mean_network(run.model, run.guide)
    else:
        network = predictor_network(run.model, run.guide, num_samples=num_samples)
    builders = {ImageDataset: _image_program, TableDataset: _table_program}
    program = builders.get(type(run.dataset), _text_program)(run, network)
    known = {"name": run.name, "data": run.dataset.name, "classes": run.dataset.classes, "num_samples": num_samples}
    outputs = {"gives": list(program.network(*program.example)), "epoch": run.best_epoch}
    return program._replace(metadata=known | program.metadata | outputs | environment("cpu"))


def _image_program(run: TrainedRun, network: nn.Module) -> Program:
    data, example = run.dataset, run.dataset.test.images[:1]
    shape = ", ".join(map(str, example.shape[1:]))
    metadata = {"takes": f"uint8 images (batch, {shape}), 0 to 255", "mean": data.mean, "std": data.std}
    return Program(Normalised(network, mean=data.mean, std=data.std), (example,), metadata, {})


def _table_program(run: TrainedRun, network: nn.Module) -> Program:
    """Build the program of a table: of features, whose columns are in ``preprocessing.json``."""
    takes = f"float32 features (batch, {len(run.dataset.encoding.sizes)}), encoded by the columns of {PREPROCESSING}"
    path = run.folder / PREPROCESSING
    return Program(
        network, (run.dataset.test.features[:1],), {"takes": takes}, {path.name: path.read_text(encoding="utf-8")}
    )


def _text_program(run: TrainedRun, network: nn.Module) -> Program:
    x, _, mask = next(iter(run.batches(run.dataset.test)))
    shape = ", ".join(map(str, ("batch", "tokens", *x.shape[2:])))
    dtype = str(x.dtype).removeprefix("torch.")
    takes = f"{dtype} tokens ({shape}) and bool mask (batch, tokens), True where there is a token"
    paths = (run.folder / name for name in (TOKENIZER, ENCODER))
    files = {path.name: path.read_text(encoding="utf-8") for path in paths if path.exists()}
    return Program(network, (x[:1].cpu(), mask[:1].cpu()), {"takes": takes}, files)
