"""Checks of a model and its guide, and the loss of a batch, for the trainers of other libraries."""

from collections.abc import Sequence
from dataclasses import MISSING, fields

from torch import Tensor, nn

from probattn.inference import guide_checks
from probattn.inference.elbo import ELBOS, ELBOLoss
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.programs import attribute
from probattn.inference.training.objective import Objective
from probattn.inference.training.options import TrainOptions

_OF_THE_TRAINER = (
    "accumulate_grad_batches",
    "clip_norm",
    "precision",
    "compile",
    "patience",
    "monitor",
    "accelerator",
    "devices",
    "seed",
    "deterministic",
    "log_every",
    "checkpoint_every",
    "matmul_precision",
)


def check_external(model: nn.Module, guide: nn.Module, options: TrainOptions, *, others: Sequence[str] = ()) -> None:
    """Check that another library's trainer can train a model and its guide.

    Args:
        model, guide: materialised modules.
        options: options of the training.
        others: further options that the trainer does not follow.

    Raises:
        ValueError: options that the trainer has itself or does not follow, natural gradients, a model without
            ``num_data``, or a guide that has no parameters yet.
    """
    defaults = {field.name: field.default for field in fields(TrainOptions) if field.default is not MISSING}
    wrong = [name for name in (*_OF_THE_TRAINER, *others) if getattr(options, name) != defaults[name]]
    if wrong:
        raise ValueError(
            f"this trainer does not follow the options {', '.join(wrong)}: give them to the trainer itself"
        )
    if options.guide_optimizer != "adam":
        raise ValueError("natural gradients need two optimisers, and this trainer has one: use guide_optimizer='adam'")
    if attribute(model, "num_data") is None:
        raise ValueError("the loss needs the size of the training set: set model.num_data, or use models.Supervised")
    if guide_checks.is_lazy(guide) or guide_checks.is_lazy(model):
        raise ValueError(
            "parameters of an AutoGuide or a function exist after its first run, and the optimiser would miss them: "
            "call inference.materialise(guide, (x, y)) before"
        )
    guide_checks.check(model, guide)


def batch_objective(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...], options: TrainOptions) -> Objective:
    """Return the loss of batches, after a look at the first one, as :func:`~probattn.inference.fit` minimises it."""
    vectorize = options.vectorize
    if vectorize is None:
        vectorize = broadcasts(model, guide, lambda: batch)
    elbo = ELBOS[options.elbo](num_particles=1 if vectorize else options.num_particles)
    num_data = attribute(model, "num_data")
    loss = ELBOLoss(model, guide, elbo)
    return Objective(loss, loss, options=options, num_data=num_data, vectorize=vectorize)
