"""Checks of a GPU: every layer of the presets against a CPU in float64, and a short training run in
each mode."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from probattn.draws import at_mean
from probattn.experiments.config.presets import PRESETS, preset
from probattn.experiments.config.settings import Settings
from probattn.experiments.runs import build, sources
from probattn.guides import Guide
from probattn.inference import ELBOLoss, TrainOptions, fit, predict
from probattn.models import Supervised

MODES: dict[str, dict] = {
    "float32": {},
    "bf16": {"precision": "bf16-mixed"},
    "compiled": {"compile": True},
    "bf16, compiled": {"precision": "bf16-mixed", "compile": True},
}
"""Options of the short training runs."""
TOLERANCE = 1e-2
"""Largest relative difference of loss, gradient and probabilities in float32."""


def layers() -> dict[str, Settings]:
    """Return a small network on digits with each layer of the presets, by the first preset that has
    the layer."""
    digits = preset("digits/softmax").with_changes(["train.seed=0"])
    names = {repr(settings.layer): name for name, settings in reversed(PRESETS.items())}
    return {name: replace(digits, layer=preset(name).layer) for name in names.values()}


def checks(device: str = "cuda") -> Iterator[tuple[str, str, bool]]:
    """Yield the name of each check, its result, and True if it passed; an error is a result, too.

    Args:
        device: what is checked; ``"cpu"`` tries the checks themselves.
    """
    todo = {name: partial(_compare, settings) for name, settings in layers().items()}
    todo |= {f"training, {name}": partial(_train, options) for name, options in MODES.items()}
    for name, check in todo.items():
        try:
            yield name, *check(device)
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            yield name, f"{type(error).__name__}: {first_line}", False


def _compare(settings: Settings, device: str) -> tuple[str, bool]:
    """Compare float32 with the CPU in float64."""
    ours = _values(settings, device, torch.float32)
    exact = _values(settings, "cpu", torch.float64)
    errors = [
        (value - reference).norm() / reference.norm()
        for value, reference in zip(ours, exact, strict=True)
    ]
    error = torch.stack(errors).max().item()  # NaN if any is
    return f"relative difference {error:.0e} of loss, gradient and probabilities", error < TOLERANCE


def _values(
    settings: Settings,
    device: str,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Return loss, gradient and probabilities with all sites at their means, on the CPU in
    float64."""
    model, guide, (x, y) = _build(settings)
    module = ELBOLoss(model, guide).to(device, dtype).eval()
    x, y = x.to(device, dtype), y.to(device)
    with at_mean():
        loss = module(x, y)
        prediction = predict(model, guide, x, num_samples=1)
    loss.backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    gradient = torch.cat([part.flatten() for part in gradients if part is not None])
    values = (loss, gradient, prediction.require("probs"))
    return [value.detach().cpu().double() for value in values]


def _train(options: dict, device: str) -> tuple[str, bool]:
    """Train on a batch of digits, and compare the loss of the last epoch with that of the first."""
    model, guide, batch = _build(layers()["digits/kep-svgp"])
    torch.compiler.reset()
    training = TrainOptions(
        epochs=20,
        lr=3e-3,
        num_samples=2,
        accelerator=device,
        **options,
    )
    epochs = fit(
        model,
        guide,
        [batch],
        options=training,
        progress=False,
    ).epochs
    first, last = epochs[0]["train_loss"], epochs[-1]["train_loss"]
    seconds = sum(epoch["seconds"] for epoch in epochs)
    return f"loss {first:.2f} → {last:.2f}, {seconds:.0f} s", last < first


def _build(settings: Settings) -> tuple[Supervised, Guide, tuple[Tensor, ...]]:
    """Return a model of digits, its guide and a batch, on the CPU."""
    dataset = sources.load_data(settings, None)
    model, guide = build.build(settings, dataset)
    batch = dataset.sample(32, generator=build.generator(settings))
    cast(Any, model.network).initialise_inducing(batch[0])
    return model, guide, batch
