"""A ``LightningModule`` of a model and its guide (extra ``lightning``)."""

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from probattn.inference.batches import unpack_batch
from probattn.inference.imports import extra, without_side_effects
from probattn.inference.objective import guide_checks
from probattn.inference.objective.num_data import attribute
from probattn.inference.prediction.aggregate import join
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.inference.training.optimizers import Optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.step import Objective, StepCoefficients
from probattn.inference.training.validation import prediction_metrics

with without_side_effects(), extra("lightning", needed_by="probattn.inference.lightning"):
    from lightning.pytorch import LightningModule
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig

NOT_TAKEN = (
    "guide_optimizer",
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
"""Options of ``fit`` that Lightning's ``Trainer`` has itself, and natural gradients, which need a
second optimiser."""
PREDICTED = (
    "probs",
    "expected_entropy",
    "mutual_information",
    "mean",
    "variance",
    "mask",
    "labels",
)
"""Fields of a prediction that Lightning's ``Trainer.predict`` returns, without those that are
None."""


class SVIModule(LightningModule):
    """``LightningModule`` that trains a model and its guide by the loss, optimiser and schedules of
    ``fit``.

    The number of epochs is that of Lightning's ``Trainer``, which also has accumulation, clipping,
    mixed precision, devices, early stopping and checkpoints as its own arguments and callbacks.
    Logged are ``train_loss``, its terms as ``train/TERM``, and ``valid/METRIC`` over the whole
    validation set.

    Args:
        model: model with an attribute ``num_data`` and its labels at the site ``y``.
        guide: its guide; an AutoGuide must have run once.
        options: learning rates, weight decay, schedules, KL weights and samples (see
            :class:`~probattn.inference.TrainOptions`); ``epochs`` is ignored.

    Raises:
        ValueError: options that Lightning's trainer has itself, and natural gradients, which need a
            second optimiser; a guide of another model, or without parameters yet.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        *,
        options: TrainOptions = TrainOptions(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__()
        default = TrainOptions()
        ignored = [name for name in NOT_TAKEN if getattr(options, name) != getattr(default, name)]
        if ignored:
            raise ValueError(
                f"{', '.join(ignored)}: see the arguments of Lightning's Trainer instead"
            )
        if guide_checks.is_lazy(guide):
            raise ValueError(
                "the guide has no parameters yet: call inference.materialise(guide, (x, y)) first"
            )
        guide_checks.check(model, guide)
        self.model = model
        self.guide = guide
        self.options = options
        self._objective: Objective | None = None
        self._schedule: dict[str, Any] = {}
        self._predictions: list[Prediction] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss −ELBO/N of a batch in nats per example."""
        arguments = unpack_batch(batch).arguments()
        if self._objective is None:
            self._objective = Objective(
                self.model,
                self.guide,
                options=self._schedule["options"],
                first_batch=lambda: arguments,
            )
        loss = self._objective(arguments, StepCoefficients.at(self.global_step, **self._schedule))
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(arguments[0]))
        terms = {f"train/{name}": value for name, value in self._objective.terms().items()}
        self.log_dict(terms, batch_size=len(arguments[0]))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Keep the prediction of a batch, since metrics such as the calibration error are no means
        over batches."""
        self._predictions.append(self._predict(batch))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation set."""
        metrics = prediction_metrics(join(self._predictions))
        self._predictions.clear()
        self.log_dict({f"valid/{name}": value for name, value in metrics.items()}, sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the posterior predictive of a batch: tensors of
        :class:`~probattn.inference.Prediction` by name."""
        return self._predict(batch).known(PREDICTED)

    def _predict(self, batch: Any) -> Prediction:
        data = batch if isinstance(batch, Tensor) else [batch]
        return predict(self.model, self.guide, data, num_samples=self.options.num_samples)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return the optimiser and the scheduler of ``fit``, for which the trainer must have a last
        epoch or step."""
        steps = self.trainer.estimated_stepping_batches  # first: this sets up the loaders
        steps_per_epoch = math.ceil(
            self.trainer.num_training_batches / self.trainer.accumulate_grad_batches
        )
        self._schedule = {
            "options": replace(self.options, epochs=math.ceil(steps / steps_per_epoch)),
            "steps_per_epoch": steps_per_epoch,
            "num_data": attribute(self.model, "num_data"),
        }
        optimizers = Optimizers(self.model, self.guide, **self._schedule)
        (scheduler,) = optimizers.schedulers
        return {
            "optimizer": optimizers.optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }
