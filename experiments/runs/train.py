"""One run: build it from its settings, train it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from probattn import guides
from probattn.experiments.config.settings import Settings, SettingsError
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.images.loader import ImageLoader
from probattn.experiments.data.text.datasets import TextDataset
from probattn.experiments.data.text.loader import TextLoader
from probattn.experiments.runs.folder import check_free, claim, write_json
from probattn.inference import History, fit, warm_start
from probattn.inference.distributed.collectives import broadcast_result, make_fabric, rank_zero_first
from probattn.inference.io.checkpoint import read as read_checkpoint
from probattn.inference.training.cuda_graph import check_alone
from probattn.models import Classifier, last

GPUS = ("gpu", "cuda")
Dataset = ImageDataset | TextDataset
Loader = ImageLoader | TextLoader


class Loaders(NamedTuple):
    """Batches of the three parts of a data set; only ``train`` is shuffled and augmented."""

    train: Loader
    valid: Loader
    test: Loader


class Run(NamedTuple):
    """A run that has its folder; ``is_fresh`` says that nothing of it is trained but perhaps its warm start."""

    settings: Settings
    out: Path
    dataset: Dataset
    model: Classifier
    guide: guides.Guide
    batches: Loaders
    is_fresh: bool


def build(settings: Settings, dataset: Dataset) -> tuple[Classifier, guides.Guide]:
    """Model and guide of a run, initialised from ``train.seed``."""
    model = _model(settings, dataset)
    return model, guides.for_model(model, settings.layer.family)


def loaders(settings: Settings, dataset: Dataset, *, device: str) -> Loaders:
    """Loaders of a run, shuffled and augmented from ``train.seed``, with the data on the device."""
    common = {"batch_size": settings.data.batch_size, "device": device}
    train = dataset.training(generator=_generator(settings), **common)
    return Loaders(train, dataset.batches(dataset.valid, **common), dataset.batches(dataset.test, **common))


def train(
    settings: Settings,
    out: Path,
    *,
    name: str,
    root: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> History:
    """Trains a run into its folder, its warm start, if it has one, into the subfolder ``warm-start`` before.

    Args:
        settings: of the run.
        out: its folder, which gets ``settings.json``, the checkpoints and logs of ``fit``, and ``warm-start.json``:
            which weights the warm start carried over; for texts also what their tokens are.
        name: the preset's name, for the report.
        root: where data sets lie.
        resume: go on with a run that was stopped, in whichever phase.
        progress: show the progress.
        say: is told which phase begins and what the warm start carried over.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` is False, or other files.
        BlockingIOError: another process works in it.
        SettingsError: it holds a run of other settings.
        CheckpointError: a damaged checkpoint, or a layer that takes nothing over from the warm start's.
        OSError: it cannot be written.
    """
    check(settings, out, resume=resume)
    dataset = rank_zero_first(lambda: load_data(settings, root))
    with ExitStack() as held:
        run = prepare(settings, out, dataset, name=name, resume=resume, held=held)
        if run.is_fresh:
            warm = settings.warm_start is not None
            best = _warm_up(settings, run.dataset, out, progress=progress, say=say) if warm else None
            run = started(run, best=best, say=say)
        options = asdict(settings.train)
        parts = (run.model, run.guide, run.batches.train, run.batches.valid)
        return fit(*parts, out=out, resume=resume, progress=progress, **options)


def check(settings: Settings, out: Path, *, resume: bool) -> None:
    """Connects the processes of torchrun, and refuses a device that is not there and a folder that is not free.

    Raises:
        FileExistsError, SettingsError: as for :func:`train`.
        ValueError: steps of several GPUs that are to be captured.
    """
    accelerator = settings.train.accelerator
    if accelerator in GPUS and not torch.cuda.is_available():
        raise SettingsError(f"train.accelerator={accelerator}: PyTorch finds no GPU here; use auto or cpu")
    if settings.train.capture:
        check_alone(accelerator)
    make_fabric(accelerator, settings.train.devices)
    broadcast_result(lambda: check_free(out, settings, resume=resume))


def prepare(settings: Settings, out: Path, dataset: Dataset, *, name: str, resume: bool, held: ExitStack) -> Run:
    """A run into a folder that has passed :func:`check`, and then holds its settings and what belongs to its data.

    ``held`` gets the lock of the folder.

    Raises:
        BlockingIOError, CheckpointError, OSError: as for :func:`train`.
    """
    fresh = not (out / "last.pt").exists()
    dataset = dataset if fresh else dataset.for_run(out)
    model, guide = build(settings, dataset)
    if fresh and settings.warm_start is not None:
        start = _model(settings.first_phase(), dataset)
        warm_start(model, start.state_dict())  # what does not fit shall not be known only when that is trained
    device = find_device(settings.train.accelerator)
    batches = loaders(settings, dataset, device=device)

    def begin() -> None:
        held.enter_context(claim(out, settings, name=name, device=device, resume=resume))
        dataset.save_preprocessing(out)

    broadcast_result(begin)
    return Run(settings, out, dataset, model, guide, batches, fresh)


def started(run: Run, *, best: Path | None, say: Callable[[str], None]) -> Run:
    """A fresh run with the weights of its warm start's best epoch, if any, and inducing inputs from the data."""
    settings, dataset = run.settings, run.dataset
    model = _model(settings, dataset)
    if best is not None:
        report = warm_start(model, best)
        broadcast_result(lambda: write_json(run.out / "warm-start.json", asdict(report)))
        say(f"{report}\n{settings.layer.name} attention, {settings.train.epochs} epochs")
    first = dataset.sample(settings.data.batch_size, generator=_generator(settings))
    with torch.random.fork_rng(devices=[]):
        model.network.initialise_inducing(first[0], *first[2:])
    return run._replace(model=model, guide=guides.for_model(model, settings.layer.family))


def epochs_done(folder: Path) -> int:
    """Epochs that the run in a folder has finished; 0 where there is none.

    Raises:
        CheckpointError: a damaged ``last.pt``.
    """
    last = folder / "last.pt"
    return read_checkpoint(last)["extra"]["epoch"] if last.exists() else 0


def _model(settings: Settings, dataset: Dataset) -> Classifier:
    if settings.train.seed is not None:
        torch.manual_seed(settings.train.seed)
    network, layer = settings.network, settings.layer
    number = network.depth if layer.last is None else layer.last
    attention = last(number, layer.factory(network.tokens(dataset)), of=network.depth)
    return Classifier(network.build(dataset, attention), num_data=len(dataset.train))


def _warm_up(settings: Settings, dataset: Dataset, out: Path, *, progress: bool, say: Callable[[str], None]) -> Path:
    """Trains the warm start, or the rest of it, and returns the checkpoint of its best epoch."""
    first, folder = settings.first_phase(), out / "warm-start"
    say(f"warm start: {first.layer.name} attention, {first.train.epochs} epochs")
    model, guide = build(first, dataset)
    batches = loaders(first, dataset, device=find_device(first.train.accelerator))
    options = asdict(first.train)
    fit(model, guide, batches.train, batches.valid, out=folder, resume=True, progress=progress, **options)
    return folder / "best.pt"


def load_data(settings: Settings, root: Path | None) -> Dataset:
    """The data of a run."""
    return settings.network.load(settings.data, root)


def find_device(accelerator: str) -> str:
    """Where a run of that ``train.accelerator`` computes: ``cuda`` or ``cpu``."""
    return "cuda" if accelerator in ("auto", *GPUS) and torch.cuda.is_available() else "cpu"


def _generator(settings: Settings) -> torch.Generator:
    return torch.Generator().manual_seed(settings.train.seed or 0)
