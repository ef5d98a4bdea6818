"""Training of one run into its folder."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError, naming
from probattn.experiments.data.dataset import PREPROCESSING, Dataset
from probattn.experiments.data.summary import summarise
from probattn.experiments.runs import build
from probattn.experiments.runs.folder import RunRecord, check_free, claim, environment
from probattn.experiments.runs.load import check_best
from probattn.experiments.runs.sources import load_data
from probattn.experiments.runs.training_notes import training_notes
from probattn.inference import History, fit, warm_start
from probattn.inference.distributed import broadcast_result, make_fabric, world
from probattn.inference.io import checkpoint
from probattn.inference.io.files import file_digest
from probattn.models import Supervised

# Number of tokens with which options are checked, before that of the data is known.
TOKENS = 1024


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
    """Train a run into its folder; its warm start, if it has one, first into the subfolder
    ``warm-start``.

    Args:
        settings: settings of the run.
        out: folder of the run. It gets ``settings.json`` with the summary of the data, the
            preprocessing, the checkpoints and the log.
        name: name of the preset.
        root: folder of the data sets.
        resume: resume a run that was stopped, in either phase.
        progress: show a progress bar.
        say: called with the summary of the data, a line of text for each phase, and the
            :func:`~probattn.experiments.runs.training_notes.training_notes`.

    Raises:
        FileExistsError: the folder holds other files, or a run while ``resume`` is False.
        filelock.Timeout: another process trains or evaluates the run.
        SettingsError: the folder holds a run of other settings or data; no such device; invalid
            options of the layer, whose settings are named before data are read.
        CheckpointError: a damaged checkpoint, or a layer that takes nothing over from the warm
            start's.
    """
    fabric = check(settings, out, resume=resume)
    with fabric.rank_zero_first():
        dataset = load_data(settings, root)
    is_fresh = not (out / "last.pt").exists()
    if not is_fresh:
        check_best(out, checkpoint.read(out / "best.pt")["extra"])
    dataset = dataset if is_fresh else dataset.for_run(out)
    summary = _summary(settings, dataset, say) if is_fresh else ""
    model = build.build_model(settings, dataset)
    guide, first, start = build.build_guide(settings, model), None, None
    if is_fresh and settings.warm_start is not None:
        first = settings.first_phase()
        start = build.build(first, dataset)
        # Incompatible weights are an error now, not after training.
        warm_start(model, start[0].state_dict())
    device = build.find_device(settings.train.accelerator)
    batches = build.loaders(settings, dataset, device=device)
    with ExitStack() as stack:

        def begin() -> dict[str, str]:
            record = RunRecord(
                name,
                settings,
                environment(device),
                data=build.fitted_parts(dataset),
                summary=summary.splitlines(),
            )
            stack.enter_context(claim(out, record, resume=resume))
            dataset.save_preprocessing(out)
            return {PREPROCESSING: file_digest(out / PREPROCESSING)}

        digests = broadcast_result(begin)
        if first is not None and start is not None:
            say(f"warm start: {first.layer.name} attention, {first.train.epochs} epochs")
            carried = _train_first(
                model,
                *start,
                *build.loaders(first, dataset, device=device),
                options=first.train.options,
                out=out / "warm-start",
                progress=progress,
            )
            say(
                f"{settings.layer.name} attention, {settings.train.epochs} epochs: {carried} "
                "weights carried over"
            )
        history = fit(
            model,
            guide,
            *batches,
            options=settings.train.options,
            out=out,
            resume=resume,
            progress=progress,
            notes=digests,
        )
    best = history.best_epoch
    for note in training_notes(out, settings, dataset, history.epochs, best_epoch=best):
        say(note)
    return history


def _train_first(model: Supervised, *parts: Any, out: Path, **options: Any) -> int:
    """Train the warm start, model, guide and loaders, into its folder, and take its weights over;
    return their number."""
    fit(*parts, out=out, resume=True, **options)
    return len(warm_start(model, out / "best.pt")["carried"])


def _summary(settings: Settings, dataset: Dataset, say: Callable[[str], None]) -> str:
    """Return the summary of the data, and say it; the papers' data sets need no description."""
    summary = str(summarise(dataset))
    if settings.data.constructor is not None:
        say(summary)
    return summary


def check(settings: Settings, out: Path, *, resume: bool) -> Any:
    """Connect the processes of torchrun by Lightning's Fabric, which is returned; check the
    device, the folder and the options of the layer.

    Raises:
        FileExistsError: as for :func:`train`.
        SettingsError: as for :func:`train`; no such device; invalid options of the layer.
    """
    accelerator, devices = settings.train.accelerator, settings.train.devices
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise SettingsError(
            f"train.accelerator={accelerator}: PyTorch finds no GPU here; use auto or cpu"
        )
    fabric = make_fabric(accelerator, devices)
    if fabric.world_size != world().size:
        raise SettingsError(f"train.devices={devices}: torchrun starts a process for each device")
    broadcast_result(lambda: check_free(out, settings, resume=resume))
    _check_layer(settings)
    return fabric


def _check_layer(settings: Settings) -> None:
    """Build the layer once, before data are read.

    Raises:
        SettingsError: invalid options; names the settings.
    """
    network = cast(Any, settings.network)
    if network.kind == "encoder":  # whose width is in its folder
        return
    try:
        with torch.random.fork_rng(devices=[]):
            settings.layer.factory(TOKENS)(network.dim, network.heads)
    except (TypeError, ValueError) as error:
        parts = {"layer": vars(settings.layer), "network": ("dim", "heads")}
        raise SettingsError(naming(str(error), **parts)) from error
