"""A ``LightningModule`` of a model and its guide."""

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from probattn.inference.imports import extra, without_side_effects
from probattn.inference.integrations.external_trainer import batch_objective, check_external
from probattn.inference.prediction.aggregate import join
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.inference.programs import attribute
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.optimizers import OptimizerFactory, SchedulerFactory, make_optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.validation import prediction_metrics

with without_side_effects():
    try:
        from lightning.pytorch import LightningModule
    except ImportError:
        with extra("lightning", needed_by="probattn.inference.integrations.lightning"):
            from pytorch_lightning import LightningModule


class SVIModule(LightningModule):
    """``LightningModule`` that trains a model and its guide by the loss, optimiser and schedules of ``fit``.

    The number of epochs is that of Lightning's ``Trainer``, which also has accumulation, clipping, mixed precision,
    devices, early stopping and checkpoints as its own arguments and callbacks. Logged are ``train_loss``, its terms as
    ``train/TERM``, and ``valid/METRIC`` over the whole validation set.

    Args:
        model: model with an attribute ``num_data`` and its labels at the site ``y``.
        guide: its guide; an AutoGuide must have run once.
        options: learning rates, weight decay, schedules, KL weights and samples (see
            :class:`~probattn.inference.TrainOptions`); ``epochs`` is ignored.
        optimizer, scheduler: as for :func:`~probattn.inference.fit`.

    Raises:
        ValueError: options that Lightning's trainer has itself; natural gradients; a model or guide that cannot be
            trained so.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        *,
        options: TrainOptions = TrainOptions(),  # noqa: B008 - it is frozen
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
    ) -> None:
        super().__init__()
        check_external(model, guide, options)
        self.model, self.guide, self.options = model, guide, options
        self._optimizer, self._scheduler = optimizer, scheduler
        self._objective: Objective | None = None
        self._predictions: list[Prediction] = []

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """Return the loss −ELBO/N of a batch ``(x, y)`` or ``(x, y, mask)`` in nats per example."""
        options, steps_per_epoch = self._schedule()
        if self._objective is None:
            self._objective = batch_objective(self.model, self.guide, tuple(batch), options)
        num_data = attribute(self.model, "num_data")
        coefficients = StepCoefficients.at(
            self.global_step, options=options, steps_per_epoch=steps_per_epoch, num_data=num_data
        )
        loss = self._objective(tuple(batch), coefficients)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(batch[0]))
        terms = {f"train/{name}": value for name, value in self._objective.terms().items()}
        self.log_dict(terms, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        """Keep the prediction of a batch, since metrics such as the calibration error are no means over batches."""
        self._predictions.append(self._predict(batch))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation set."""
        found = prediction_metrics(join(self._predictions))
        self._predictions.clear()
        self.log_dict({f"valid/{name}": value for name, value in found.items()}, sync_dist=True)

    def predict_step(self, batch: Tensor | tuple[Tensor, ...], batch_idx: int) -> dict[str, Tensor]:
        """Return the posterior predictive of a batch: the fields of :class:`~probattn.inference.Prediction` by name.

        Classifiers have ``probs``, ``expected_entropy`` and ``mutual_information``, other models ``mean`` and
        ``variance``.
        """
        prediction = self._predict(batch)
        names = ("probs", "expected_entropy", "mutual_information", "mean", "variance", "mask", "labels")
        values = {name: getattr(prediction, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def configure_optimizers(self) -> dict[str, Any]:
        """Return the optimiser and the scheduler of ``fit``, which is stepped after every training step."""
        options, steps_per_epoch = self._schedule()
        made = make_optimizers(
            self.model,
            self.guide,
            options=options,
            num_data=attribute(self.model, "num_data"),
            steps_per_epoch=steps_per_epoch,
            optimizer=self._optimizer,
            scheduler=self._scheduler,
        )
        (scheduler,) = made.schedulers
        return {"optimizer": made.optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _predict(self, batch: Tensor | tuple[Tensor, ...]) -> Prediction:
        data = batch if isinstance(batch, Tensor) else [tuple(batch)]
        return predict(self.model, self.guide, data, num_samples=self.options.num_samples)

    def _schedule(self) -> tuple[TrainOptions, int]:
        """Return the options with the trainer's number of epochs, and the number of steps of an epoch."""
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ValueError(
                "the schedules need the end of the training: Trainer(max_epochs=…) or Trainer(max_steps=…)"
            )
        steps_per_epoch = math.ceil(self.trainer.num_training_batches / self.trainer.accumulate_grad_batches)
        return replace(self.options, epochs=math.ceil(steps / steps_per_epoch)), steps_per_epoch
