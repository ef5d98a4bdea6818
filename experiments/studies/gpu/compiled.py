"""Compilation: does the loss have the same gradients with it?"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from probattn.experiments.studies.gpu.captures import LAYERS, random_batches, small_model
from probattn.experiments.studies.gpu.stage import Answer, Scope, Stage, failed, measured
from probattn.functional import compilation
from probattn.handlers import at_mean
from probattn.inference import TraceMeanField_ELBO
from probattn.inference.training.compile_blocks import compile_blocks

MAX_DIFFERENCE = {"32": 1e-3, "bf16-mixed": 5e-2}
"""Largest norm of the difference of two gradients relative to the gradient's, by precision; roundings differ."""


def compiled_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for each layer and precision."""
    layers = ("softmax",) if scope.is_small else ("softmax", "kep-svgp", "kep-svgp svd", "sgpa", "cgp", "sparse cgp")
    precisions = ("32",) if scope.is_small else ("32", "bf16-mixed")
    return {f"{name}, {each}": partial(_compare, name, each, scope.device) for each in precisions for name in layers}


def compiled_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the layers that cannot be compiled, or have other gradients then."""
    switch = "set train.compile=false"
    found = [f"blocks of {case} are not compiled ({why}): {switch}" for case, why in failed(answers).items()]
    for case, answer in measured(answers).items():
        if not answer["relative difference"] <= MAX_DIFFERENCE[case.rpartition(", ")[2]]:
            difference = f"{answer['relative difference']:.1e}"
            found.append(f"gradients of compiled blocks of {case} differ by {difference} of their norm: {switch}")
    return found


def _compare(name: str, precision: str, device: str) -> Answer:
    torch.compiler.reset()
    expected, found = (_gradients(name, precision, device, compiled=compiled) for compiled in (False, True))
    return {"relative difference": ((found - expected).norm() / expected.norm()).item()}


def _gradients(name: str, precision: str, device: str, *, compiled: bool) -> Tensor:
    """Return the gradients of the loss at the means of all sites, without dropout, in one vector."""
    model, guide = (part.to(device).eval() for part in small_model(LAYERS[name], num_data=1000))
    ((images, labels),) = random_batches(device, 1)
    model.network.initialise_inducing(images)
    module = TraceMeanField_ELBO()(model, guide)
    with ExitStack() as stack:
        if compiled:
            compile_blocks(model)
            stack.enter_context(compilation.compiled())
        stack.enter_context(at_mean())
        stack.enter_context(torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"))
        loss = module(images, labels)
    loss.backward()
    return torch.cat([each.grad.flatten() for each in module.parameters() if each.grad is not None])


COMPILED = Stage("compiled", "Are the gradients of compiled blocks right?", compiled_cases, compiled_problems)
