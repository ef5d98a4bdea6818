"""Whole runs: interrupted and resumed, and by several processes."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from probattn.experiments.studies.gpu.captures import LAYERS, random_batches, small_model
from probattn.experiments.studies.gpu.stage import Answer, Scope, Stage, failed, measured
from probattn.inference import Callback, TrainOptions, fit
from probattn.inference.training.callbacks import Training

TIME_LIMIT = 400
"""Seconds of a run by torchrun."""


class Interrupted(Exception):  # noqa: N818 - it is no error
    """End of a run in the middle."""


class InterruptAfter(Callback):
    """Interrupts a run at the beginning of an epoch.

    Args:
        epochs: number of whole epochs before; None interrupts nothing.
    """

    def __init__(self, epochs: int | None) -> None:
        self.epochs = epochs

    def on_train_epoch_start(self, trainer: Training) -> None:
        """Interrupt the run."""
        if trainer.epoch == self.epochs:
            raise Interrupted


def resume_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return cases of runs with and without deterministic algorithms, captured and not."""
    modes = {"captured": {"capture": True}, "eager": {}}
    if not scope.is_small:
        modes |= {f"{name}, deterministic": {**options, "deterministic": True} for name, options in modes.items()}
    return {name: partial(_resume, options, scope.device) for name, options in modes.items()}


def resume_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the runs that do not resume, or not bit for bit although they are deterministic."""
    found = [f"a run, {case}, does not resume ({why})" for case, why in failed(answers).items()]
    for case, answer in measured(answers).items():
        if "deterministic" in case and not answer["equal"]:
            found.append(f"a run, {case}, resumes with weights that differ by {answer['worst']:.1e}")
    return found


def _resume(options: dict[str, bool], device: str) -> Answer:
    """Compare a run of four epochs with one that was interrupted after two."""
    ends = []
    for stops in ((None,), (2, None)):
        with tempfile.TemporaryDirectory() as folder:
            for number, stop in enumerate(stops):
                model, guide = small_model(LAYERS["kep-svgp"], num_data=192)
                settings = TrainOptions(epochs=4, accelerator=device, num_samples=2, **options)
                run = {"options": settings, "out": folder, "resume": number > 0, "callbacks": [InterruptAfter(stop)]}
                with contextlib.suppress(Interrupted):
                    fit(model, guide, random_batches(device, 6), progress=False, loggers=(), **run)
            ends.append([each.detach().cpu() for each in (*model.parameters(), *guide.parameters())])
    worst = max((one - other).abs().max().item() for one, other in zip(*ends, strict=True))
    return {"equal": all(map(torch.equal, *ends)), "worst": worst}


def process_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for two GPUs, if there are, by NCCL."""
    return {"two processes": partial(_two_processes, scope)}


def process_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Say whether two processes can train."""
    return [f"two processes do not train ({why}): train by one" for why in failed(answers).values()]


def _two_processes(scope: Scope) -> Answer:
    if scope.is_small or torch.cuda.device_count() < 2:
        return {"skipped": "fewer than two GPUs"}
    with tempfile.TemporaryDirectory() as folder:
        changes = ("train.epochs=2", "train.warmup_epochs=1")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += ["-m", "probattn.experiments", "train", "digits/kep-svgp", "--out", str(Path(folder) / "run")]
        command += [word for change in changes for word in ("--set", change)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr).strip()[-300:])
    return {"code": done.returncode}


RESUME = Stage("resume", "Does an interrupted run resume bit for bit?", resume_cases, resume_problems)
PROCESSES = Stage("processes", "Do two processes train with NCCL?", process_cases, process_problems)
