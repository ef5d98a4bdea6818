"""Training of one run into its folder."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from probattn import guides
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.sealed_files import write_json
from probattn.experiments.runs.build import (
    GPUS,
    Dataset,
    Loaders,
    build,
    build_guide,
    build_model,
    check_memory,
    find_device,
    fitted_parts,
    generator,
    load_data,
    loaders,
)
from probattn.experiments.runs.folder import changes, check_free, claim
from probattn.inference import History, fit, warm_start
from probattn.inference.distributed import broadcast_result, make_fabric, world
from probattn.models import Supervised

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Run(NamedTuple):
    """A run that has locked its folder, with everything that training needs.

    Attributes:
        settings: settings of the run.
        out: folder of the run.
        dataset: data set, with the preprocessing that the run has saved.
        model, guide: initialised from ``train.seed``.
        first_phase: model and guide of the warm start; None if there is none, or if it is over.
        random_state: state of PyTorch's generator after the initialisation of the model.
        batches: loaders of the run.
        is_fresh: True if no epoch is done, except of the warm start.
    """

    settings: Settings
    out: Path
    dataset: Dataset
    model: Supervised
    guide: guides.Guide
    first_phase: tuple[Supervised, guides.Guide] | None
    random_state: Tensor
    batches: Loaders
    is_fresh: bool


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
    """Train a run into its folder; its warm start, if it has one, first into the subfolder ``warm-start``.

    Args:
        settings: settings of the run.
        out: folder of the run. It gets ``settings.json``, the checkpoints and logs of ``fit``, ``warm-start.json`` with
            the names of the weights that the warm start carried over, and for texts what defines their tokens.
        name: name of the preset.
        root: folder of the data sets.
        resume: resume a run that was stopped, in either phase.
        progress: show a progress bar.
        say: called with a line of text for settings that are raised, when a phase begins, and with the number of
            weights that the warm start carried over.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` is False, or other files.
        filelock.Timeout: another process trains or evaluates the run.
        SettingsError: the folder holds a run of other settings.
        CheckpointError: a damaged checkpoint, or a layer that carries nothing over from the warm start's.
        OSError: the folder cannot be written.
    """
    fabric = check(settings, out, resume=resume)
    for change in changes(out, settings):
        say(f"{out}: {change}")
    with fabric.rank_zero_first():
        dataset = load_data(settings, root)
    with ExitStack() as held:
        run = prepare(settings, out, dataset, name=name, resume=resume, held=held)
        if run.is_fresh:
            initialise(run, progress=progress, say=say)
        parts = (run.model, run.guide, run.batches.train, run.batches.valid)
        return fit(*parts, options=settings.train, out=out, resume=resume, progress=progress)


def check(settings: Settings, out: Path, *, resume: bool) -> "Fabric":
    """Connect the processes of torchrun, which is returned, and check the device and the folder.

    Raises:
        FileExistsError, SettingsError: as for :func:`train`.
    """
    accelerator = settings.train.accelerator
    if accelerator in GPUS and not torch.cuda.is_available():
        raise SettingsError(f"train.accelerator={accelerator}: PyTorch finds no GPU here; use auto or cpu")
    devices = f"train.accelerator={accelerator}, train.devices={settings.train.devices}"
    try:
        fabric = make_fabric(accelerator, settings.train.devices)
    except (TypeError, RuntimeError) as error:  # of Fabric
        raise SettingsError(f"{devices}: {error}") from error
    if fabric.world_size != world().size:
        raise SettingsError(f"{devices} are {fabric.world_size} devices: torchrun starts a process for each")
    broadcast_result(lambda: check_free(out, settings, resume=resume))
    return fabric


def prepare(settings: Settings, out: Path, dataset: Dataset, *, name: str, resume: bool, held: ExitStack) -> Run:
    """Build the run, then lock its folder and save its settings and preprocessing there.

    Args:
        settings, out, name, resume: as for :func:`train`; the folder has passed :func:`check`.
        dataset: data set of the run.
        held: gets the lock of the folder.

    Raises:
        filelock.Timeout, CheckpointError, OSError: as for :func:`train`.
    """
    is_fresh = not (out / "last.pt").exists()
    dataset = dataset if is_fresh else dataset.for_run(out)
    check_memory(settings, dataset, copies=4)
    model = build_model(settings, dataset)
    random_state = torch.get_rng_state()
    guide = build_guide(settings, model)
    first_phase = None
    if is_fresh and settings.warm_start is not None:
        first_phase = build(settings.first_phase(), dataset)
        warm_start(model, first_phase[0].state_dict())  # fail now if the weights are incompatible, not after training
    device = find_device(settings.train.accelerator)
    batches = loaders(settings, dataset, device=device)

    def begin() -> None:
        options = {"name": name, "device": device, "data": fitted_parts(dataset), "resume": resume}
        held.enter_context(claim(out, settings, **options))
        dataset.save_preprocessing(out)

    broadcast_result(begin)
    return Run(settings, out, dataset, model, guide, first_phase, random_state, batches, is_fresh)


def initialise(run: Run, *, progress: bool, say: Callable[[str], None]) -> None:
    """Initialise a fresh run in place: weights from its warm start, if any, and inducing inputs from its data."""
    settings, dataset = run.settings, run.dataset
    if run.first_phase is not None:
        report = warm_start(run.model, _train_first_phase(run, progress=progress, say=say))
        broadcast_result(lambda: write_json(run.out / "warm-start.json", report))
        say(f"{len(report['carried'])} weights carried over, {len(report['fresh'])} fresh: see warm-start.json")
        say(f"{settings.layer.name} attention, {settings.train.epochs} epochs")
    batch = dataset.sample(settings.data.batch_size, generator=generator(settings))
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(run.random_state)
        run.model.network.initialise_inducing(batch[0], *batch[2:])


def _train_first_phase(run: Run, *, progress: bool, say: Callable[[str], None]) -> Path:
    """Train the warm start, or resume it, and return the checkpoint of its best epoch."""
    first, folder = run.settings.first_phase(), run.out / "warm-start"
    say(f"warm start: {first.layer.name} attention, {first.train.epochs} epochs")
    batches = loaders(first, run.dataset, device=find_device(first.train.accelerator))
    parts = (*run.first_phase, batches.train, batches.valid)
    fit(*parts, options=first.train, out=folder, resume=True, progress=progress)
    return folder / "best.pt"
