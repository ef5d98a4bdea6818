"""A trained run as one file for other programs: weights, or a program of torch that takes data as they are."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.text.tokens import ENCODER, TOKENIZER
from probattn.experiments.runs.folder import environment
from probattn.experiments.runs.load import TrainedRun, open_run
from probattn.inference import export, mean_network, predictor_network, save_safetensors

ABOUT = "probattn.json"
"""The file inside a program that says what it is."""


class Raw(nn.Module):
    """A network of normalised images that takes them as they are: uint8, 0 to 255.

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
        """What the network says of images ``(batch, C, H, W)``."""
        return self.network((images.float() / 255 - self.mean) / self.std)


class Program(NamedTuple):
    """A network that takes data as they are, what to call it on, what to know of it, and what to keep beside it."""

    network: nn.Module
    example: tuple[Tensor, ...]
    about: dict[str, Any]
    files: dict[str, str]


def export_run(
    folder: Path, out: Path, *, num_samples: int | None = None, seed: int = 0, root: Path | None = None
) -> str:
    """Writes the best epoch of a run to a file whose ending says what it is: ``.safetensors`` or ``.pt2``.

    A program takes uint8 images, or tokens and mask of texts, and runs on the CPU until it is moved. It also holds
    :data:`ABOUT` (run, classes, what it takes and gives, S, versions), and of texts ``tokenizer.json``:
    ``torch.export.load(out, extra_files={"probattn.json": ""})``.

    Args:
        folder: the run's.
        out: the file.
        num_samples: S draws of the posterior in the program; None for its mean.
        seed: of these draws.
        root: where data sets lie.

    Returns:
        A sentence about what was written.

    Raises:
        ValueError: another ending; draws of weights.
        SettingsError, CheckpointError, DatasetError: as :func:`~probattn.experiments.runs.load.open_run`.
    """
    if out.suffix not in (".pt2", ".safetensors"):
        raise ValueError(f"a file that ends in .pt2 is a program, in .safetensors weights; {out} is neither")
    if out.suffix == ".safetensors" and num_samples is not None:
        raise ValueError("weights hold the whole posterior: leave --num-samples out, or write a program (.pt2)")
    run = open_run(folder, root=root)
    run.model.cpu(), run.guide.cpu()
    if out.suffix == ".safetensors":
        words = {"name": run.name, "settings": json.dumps(asdict(run.settings)), "epoch": str(run.best_epoch)}
        save_safetensors(out, run.model, run.guide, **words)
        return f"{out}: weights of model and guide, epoch {run.best_epoch}"
    program = program_of(run, num_samples=num_samples, seed=seed)
    files = {ABOUT: json.dumps(program.about, indent=2), **program.files}
    export(out, program.network, *program.example, files=files)
    return f"{out}: takes {program.about['takes']}; gives {', '.join(program.about['gives'])}"


def program_of(run: TrainedRun, *, num_samples: int | None, seed: int) -> Program:
    """The program of a run, not exported yet; arguments as for :func:`export_run`."""
    torch.manual_seed(seed)
    if num_samples is None:
        network = mean_network(run.model, run.guide)
    else:
        network = predictor_network(run.model, run.guide, num_samples=num_samples)
    program = (_of_images if isinstance(run.dataset, ImageDataset) else _of_texts)(run, network)
    known = {"name": run.name, "data": run.dataset.name, "classes": run.dataset.classes, "num_samples": num_samples}
    gives = list(program.network(*program.example))
    return program._replace(
        about=known | program.about | {"gives": gives, "epoch": run.best_epoch, **environment("cpu")}
    )


def _of_images(run: TrainedRun, network: nn.Module) -> Program:
    data, example = run.dataset, run.dataset.test.images[:1]
    shape = ", ".join(map(str, example.shape[1:]))
    about = {"takes": f"uint8 images (batch, {shape}), 0 to 255", "mean": data.mean, "std": data.std}
    return Program(Raw(network, mean=data.mean, std=data.std), (example,), about, {})


def _of_texts(run: TrainedRun, network: nn.Module) -> Program:
    x, _, mask = next(iter(run.batches(run.dataset.test)))
    shape = ", ".join(map(str, ("batch", "tokens", *x.shape[2:])))
    kind = str(x.dtype).removeprefix("torch.")
    takes = f"{kind} tokens ({shape}) and bool mask (batch, tokens), True where there is a token"
    kept = (run.folder / name for name in (TOKENIZER, ENCODER))
    files = {path.name: path.read_text(encoding="utf-8") for path in kept if path.exists()}
    return Program(network, (x[:1].cpu(), mask[:1].cpu()), {"takes": takes}, files)
