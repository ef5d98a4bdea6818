"""Captured steps: are they legal, equal to the steps that are not captured, and right after an epoch was repeated?"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn import guides as guide_for
from probattn.attention.base import LayerFactory
from probattn.experiments.studies.gpu.stage import Answer, Scope, Stage, failed, measured
from probattn.inference import TrainOptions, fit
from probattn.inference.elbo import ELBOS
from probattn.inference.training.cuda_graph import CUDAGraphStep
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.optimizers import make_optimizers
from probattn.inference.training.step import Step
from probattn.models import Classifier, TextTransformer, ViT
from probattn.models.embeddings import SpelledEmbedding

LAYERS: dict[str, LayerFactory] = {
    "softmax": SoftmaxAttention.partial(dropout=0.1),
    "kernel": KernelAttention,
    "kep-svgp": KEPSVGPAttention.partial(rank=4),
    "kep-svgp concat": KEPSVGPAttention.partial(rank=4, merge="concat", tokens=16),
    "kep-svgp svd": KEPSVGPAttention.partial(rank=4, projection="svd"),
    "kep-svgp residual": KEPSVGPAttention.partial(rank=4, residual=1.0),
    "kep-svgp student-t": KEPSVGPAttention.partial(rank=4, prior="student_t"),
    "sgpa": SGPAttention.partial(inducing=8),
    "sgpa joint": SGPAttention.partial(inducing=8, draws="joint"),
    "sgpa standard": SGPAttention.partial(inducing=None),
    "cgp": CGPAttention,
    "cgp collapsed": CGPAttention.partial(collapsed=True),
    "cgp learned": CGPAttention.partial(canonical_guide="learned"),
    "sparse cgp": SparseCGPAttention.partial(inducing=8),
    "sparse cgp collapsed": SparseCGPAttention.partial(inducing=8, collapsed=True),
}
OTHER_STEPS: dict[str, dict[str, str]] = {
    "kep-svgp, natural gradients": {"guide_optimizer": "ngd"},
    "kep-svgp, sampled KL": {"elbo": "trace"},
}
"""Steps of KEP-SVGP on images with other training options."""
TEXTS = "kep-svgp, texts"
"""Steps of KEP-SVGP on padded texts of spelled words, of two lengths: graphs of two shapes share a pool of memory."""
STEPS = 16
"""Steps of which those after the first three of each shape of batches are replays."""
MAX_DIFFERENCE = 1e-2
"""Largest difference of a weight after :data:`STEPS` steps of learning rate 1e-3, by the order of additions."""
MAX_LOSS_DIFFERENCE = {"32": 1e-2, "bf16-mixed": 3e-2}
"""Largest difference of a loss, by precision; with the batch or the noise of another step it is 0.05 to 0.4."""


def capture_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for each layer and precision: steps that are captured beside steps that are not."""
    layers = ["softmax", "kep-svgp"] if scope.is_small else list(LAYERS)
    precisions = ("32",) if scope.is_small else ("32", "bf16-mixed")
    names = [*layers, *OTHER_STEPS, TEXTS]
    return {f"{name}, {each}": partial(_compare, name, each, scope.device) for each in precisions for name in names}


def capture_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the layers whose steps cannot be captured, or differ."""
    switch = "set train.capture=false"
    found = [f"the step of {case} is not captured ({why}): {switch}" for case, why in failed(answers).items()]
    for case, answer in measured(answers).items():
        if not answer["worst weight"] <= MAX_DIFFERENCE:
            found.append(f"weights after replays of {case} differ by {answer['worst weight']:.1e}: {switch}")
        if not answer["worst loss"] <= MAX_LOSS_DIFFERENCE[case.rpartition(", ")[2]]:
            found.append(f"losses of replays of {case} differ by {answer['worst loss']:.1e}: {switch}")
        if answer["flagged"]:
            found.append(f"a step of {case} was flagged as failed: expect epochs that are repeated without graphs")
    return found


def _compare(name: str, precision: str, device: str) -> Answer:
    ends = []
    for replays in (False, True):
        step, parameters = _steps(name, precision, device)
        if not replays:
            step.graphs = None
        torch.manual_seed(1)
        batches = random_texts(device, STEPS) if name == TEXTS else random_batches(device, STEPS)
        with step.stream():
            losses = [
                step([batch], StepCoefficients(0.1 * number, 1.0, 1.0)).loss.clone()
                for number, batch in enumerate(batches)
            ]
        ends.append((torch.stack(losses), [each.detach().clone() for each in parameters], step.has_failed()))
    (losses, weights, flagged), (replayed, replayed_weights, replayed_flagged) = ends
    difference = max((one - other).abs().max().item() for one, other in zip(weights, replayed_weights, strict=True))
    worst_loss = (losses - replayed).abs().max().item()
    return {"worst weight": difference, "worst loss": worst_loss, "flagged": flagged or replayed_flagged}


def _steps(name: str, precision: str, device: str) -> tuple[CUDAGraphStep, list[torch.nn.Parameter]]:
    model, guide = small_text_model() if name == TEXTS else small_model(_layer(name), num_data=1000)
    model.to(device)
    guide.to(device)
    options = TrainOptions(precision=precision, epochs=9, **OTHER_STEPS.get(name, {}))
    elbo = ELBOS[options.elbo]()
    objective = Objective(elbo(model, guide).train(), elbo, options=options, num_data=1000)
    settings = {"options": options, "num_data": 1000, "steps_per_epoch": STEPS, "capturable": device == "cuda"}
    optimizers = make_optimizers(model, guide, **settings)
    parts = {"model": model, "guide": guide}
    eager = Step(objective, optimizers, backward=torch.Tensor.backward, clip_norm=1.0, parts=parts)
    return CUDAGraphStep(eager, like=next(model.parameters())), [*model.parameters(), *guide.parameters()]


def _layer(name: str) -> LayerFactory:
    return LAYERS["kep-svgp" if name in OTHER_STEPS else name]


def small_model(layer: LayerFactory, *, num_data: int) -> tuple[Classifier, guide_for.Guide]:
    """Return a ViT of 16×16 images in 16 tokens, with two blocks of the layer, and its guide."""
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 4, "channels": 3, "classes": 10, "dim": 32, "heads": 4, "mlp_dim": 32}
    model = Classifier(ViT(depth=2, dropout=0.1, attention=layer, **sizes), num_data=num_data)
    return model, guide_for.for_model(model)


def random_batches(device: str, number: int, size: int = 32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of random images and labels, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, 3, 16, 16, generator=generator).to(device),
            torch.randint(10, (size,), generator=generator).to(device),
        )
        for _ in range(number)
    ]


def small_text_model() -> tuple[Classifier, guide_for.Guide]:
    """Return a transformer for texts of spelled words, with two blocks of KEP-SVGP attention, and its guide."""
    torch.manual_seed(0)
    sizes = {"max_length": 12, "classes": 10, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 32, "dropout": 0.1}
    network = TextTransformer(SpelledEmbedding(50, 20, 32), attention=LAYERS["kep-svgp"], **sizes)
    model = Classifier(network, num_data=1000)
    return model, guide_for.for_model(model)


def random_texts(device: str, number: int, size: int = 32) -> list[tuple[torch.Tensor, ...]]:
    """Return batches of random words, labels and masks, of 8 and 12 tokens in turn, always the same."""
    generator, batches = torch.Generator().manual_seed(0), []
    for index in range(number):
        tokens = (8, 12)[index % 2]
        lengths = torch.randint(2, tokens + 1, (size, 1), generator=generator)
        words = torch.randint(1, 50, (size, tokens, 1), generator=generator)
        characters = torch.randint(1, 20, (size, tokens, 5), generator=generator)
        labels, mask = torch.randint(10, (size,), generator=generator), torch.arange(tokens) < lengths
        ids = torch.cat((words, characters), dim=-1) * mask.unsqueeze(-1)
        batches.append(tuple(each.to(device) for each in (ids, labels, mask)))
    return batches


def rollback_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return cases of runs whose second epoch is repeated without graphs, compiled and not."""
    compiled = (False,) if scope.is_small else (False, True)
    names = ("kep-svgp",) if scope.is_small else ("kep-svgp", "sgpa")
    return {
        f"{name}{', compiled' if each else ''}": partial(_repeat_an_epoch, name, each, scope.device)
        for each in compiled
        for name in names
    }


def rollback_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the runs that do not survive the repetition of an epoch."""
    found = []
    for case, why in failed(answers).items():
        switch = "train.compile=false" if "compiled" in case else "train.capture=false"
        found.append(f"a run of {case} whose epoch was repeated ended ({why}): set {switch}")
    for case, answer in measured(answers).items():
        if not answer["worst"] <= MAX_LOSS_DIFFERENCE["32"]:
            found.append(f"a repeated epoch of {case} changes losses by {answer['worst']:.1e}: set train.capture=false")
    return found


def _repeat_an_epoch(name: str, compiled: bool, device: str) -> Answer:
    has_failed, asked = CUDAGraphStep.has_failed, []

    def fails_once(step: CUDAGraphStep) -> bool:
        asked.append(has_failed(step))
        return asked[-1] or len(asked) == 2

    expected = _fit(name, device, epochs=4, compile=compiled)
    with patch.object(CUDAGraphStep, "has_failed", fails_once):
        losses = _fit(name, device, epochs=4, compile=compiled)
    worst = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
    return {"losses": losses, "worst": worst if math.isfinite(sum(losses)) else math.nan}


def _fit(name: str, device: str, **options: Any) -> list[float]:
    model, guide = small_model(LAYERS[name], num_data=192)
    torch.manual_seed(1)
    options = TrainOptions(capture=True, accelerator=device, num_samples=2, **options)
    history = fit(model, guide, random_batches(device, 6), options=options, progress=False)
    return [each["train_loss"] for each in history.epochs]


CAPTURE = Stage("capture", "Are steps captured, and do replays equal steps?", capture_cases, capture_problems)
ROLLBACK = Stage("rollback", "Does a run go on after an epoch was repeated?", rollback_cases, rollback_problems)
