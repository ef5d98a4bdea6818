"""Speed of training: epochs in each mode, the longest kernels of a step, validation and checkpoints."""

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from probattn.experiments.bench.epoch import epochs, random_dataset, twins
from probattn.experiments.bench.quiet_profiler import quiet_profile
from probattn.experiments.bench.timing import synchronise
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.runs.build import build, loaders
from probattn.experiments.studies.gpu.stage import Answer, Scope, Stage, failed, measured
from probattn.inference import predict
from probattn.inference.io import checkpoint
from probattn.inference.training.background_writer import snapshot

PRESET, SOFTMAX = "kep-svgp/cifar10", "kep-svgp/cifar10-softmax"
MODES = {
    "bf16, captured, compiled": ("train.precision=bf16-mixed", "train.capture=true", "train.compile=true"),
    "bf16, captured": ("train.precision=bf16-mixed", "train.capture=true"),
    "TF32, captured": ("train.capture=true",),
    "float32, captured": ("train.capture=true", "train.matmul_precision=highest"),
    "bf16": ("train.precision=bf16-mixed",),
}
GOAL_SECONDS, GOAL_RATIO = 1.2, 1.03
"""Seconds of an epoch of the 7-layer ViT on 45,000 images, and its ratio to the softmax twin."""
SMALL = ("network.dim=20", "network.depth=1", "network.heads=2", "network.mlp_dim=8", "data.batch_size=4")
"""Changes of the presets for a CPU."""


def epoch_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for each mode and preset."""
    modes = {"TF32, captured": MODES["TF32, captured"]} if scope.is_small else MODES
    return {
        f"{mode}, {name}": partial(_epochs, name, changes, scope)
        for mode, changes in modes.items()
        for name in (SOFTMAX, PRESET)
    }


def epoch_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the modes that fail; say which is the fastest and whether it reaches the goal."""
    found = [f"epochs of {case} end with an error ({why}): use another mode" for case, why in failed(answers).items()]
    times = {case: min(answer["seconds"][1:]) for case, answer in measured(answers).items()}
    modes = [mode for mode in MODES if f"{mode}, {PRESET}" in times]
    if modes:
        best = min(modes, key=lambda mode: times[f"{mode}, {PRESET}"])
        seconds, twin = times[f"{best}, {PRESET}"], times.get(f"{best}, {SOFTMAX}")
        ratio = "" if twin is None else f", {seconds / twin:.2f} times softmax attention"
        if seconds > GOAL_SECONDS or (twin is not None and seconds > GOAL_RATIO * twin):
            found.append(
                f"the fastest epochs, {best}, take {seconds:.2f} s{ratio}; the goal is {GOAL_SECONDS} s and "
                f"{GOAL_RATIO} times: see the longest kernels of the stage profile"
            )
    return found


def _epochs(name: str, changes: tuple[str, ...], scope: Scope) -> Answer:
    settings, dataset = _run(name, changes, scope, images=45_000)
    times = epochs(settings, dataset, scope.device)
    torch.compiler.reset()
    return {"seconds": times}


def _run(name: str, changes: tuple[str, ...], scope: Scope, *, images: int) -> tuple[Settings, ImageDataset]:
    torch.manual_seed(0)
    small = SMALL if scope.is_small else ()
    return twins(PRESET, [*changes, *small], device=scope.device)[name], random_dataset(8 if scope.is_small else images)


def profile_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for each preset."""
    return {name: partial(_longest_kernels, name, scope) for name in (SOFTMAX, PRESET)}


def _longest_kernels(name: str, scope: Scope) -> Answer:
    """Return launches and milliseconds of the ten longest kernels of three epochs of ten steps, mostly replays."""
    settings, dataset = _run(name, MODES["bf16, captured"], scope, images=1280)
    on_gpu = not scope.is_small
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with quiet_profile(activities) as profiler:
        epochs(settings, dataset, scope.device)
    kernels = {
        event.key[:100]: (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event.count)
        for event in profiler.key_averages()
    }
    longest = sorted(kernels.items(), key=lambda item: item[1], reverse=True)[:10]
    return {"kernels": {key: {"launches": count, "ms": time / 1e3} for key, (time, count) in longest}}


def around_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return cases of what stands around the steps of an epoch."""
    sizes = (128,) if scope.is_small else (128, 1638)
    validation = {f"validation of 5,000 images in batches of {each}": partial(_validate, each, scope) for each in sizes}
    return {**validation, "checkpoint": partial(_checkpoint, scope)}


def _validate(batch_size: int, scope: Scope) -> Answer:
    settings, dataset = _run(PRESET, (), scope, images=5000)
    model, guide = build(settings, dataset)
    model.to(scope.device)
    guide.to(scope.device)
    batches = dataset.batches(dataset.train, batch_size=batch_size, device=scope.device)
    return {"seconds": _seconds(lambda: predict(model, guide, batches, num_samples=10), scope)}


def _checkpoint(scope: Scope) -> Answer:
    settings, dataset = _run(PRESET, (), scope, images=128)
    model, guide = build(settings, dataset)
    model.to(scope.device)
    guide.to(scope.device)
    batches = loaders(settings, dataset, device=scope.device).train
    optimizer = torch.optim.Adam([*model.parameters(), *guide.parameters()], fused=True)
    for parameter in (*model.parameters(), *guide.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    extra = {"optimizer": optimizer.state_dict(), "random": batches.generator.get_state()}
    content = checkpoint.full_content(model, guide, **extra)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.pt"
        copied = snapshot(content)
        write = _seconds(lambda: checkpoint.save_content(path, copied), scope)
        size = path.stat().st_size
    copy = _seconds(lambda: snapshot(content), scope)
    return {"seconds of the copy": copy, "seconds of the file": write, "bytes": size}


def _seconds(work: Callable[[], object], scope: Scope) -> float:
    """Return the seconds of the second of two calls."""
    work()
    synchronise(scope.device)
    started = time.perf_counter()
    work()
    synchronise(scope.device)
    return time.perf_counter() - started


def no_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the cases that could not be measured."""
    return [f"{case} could not be measured ({why})" for case, why in failed(answers).items()]


EPOCHS = Stage("epochs", "How long does an epoch take in each mode?", epoch_cases, epoch_problems)
PROFILE = Stage("profile", "Which kernels of a step take longest?", profile_cases, no_problems)
AROUND = Stage("around", "How long do validation and checkpoints take?", around_cases, no_problems)
