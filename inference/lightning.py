"""A ``LightningModule`` of a model and its guide (extra ``lightning``)."""

import math
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.imports import extra, without_side_effects
from probattn.inference.prediction.aggregate import join
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.inference.programs import attribute
from probattn.inference.training.optimizers import OptimizerFactory, SchedulerFactory, make_optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.step import Objective, StepCoefficients
from probattn.inference.training.validation import prediction_metrics

with without_side_effects():
    try:
        from lightning.pytorch import LightningModule
    except ImportError:
        with extra("lightning", needed_by="probattn.inference.lightning"):
            from pytorch_lightning import LightningModule

OF_THE_TRAINER = ("accumulate_grad_batches", "clip_norm", "precision", "compile", "patience", "monitor", "accelerator",
                  "devices", "seed", "deterministic", "log_every", "checkpoint_every", "matmul_precision")  # fmt: skip
"""Options of ``fit`` that Lightning's ``Trainer`` has itself."""


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
        ValueError: options that Lightning's trainer has itself; natural gradients, which need a second optimiser; a
            guide of another model, or without parameters yet.
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
        defaults = {option.name: option.default for option in fields(options)}
        ignored = [name for name in OF_THE_TRAINER if getattr(options, name) != defaults[name]]
        if ignored:
            raise ValueError(f"give {', '.join(ignored)} to Lightning's Trainer itself, not to TrainOptions")
        if options.guide_optimizer != "adam":
            raise ValueError("natural gradients need a second optimiser, which this module does not have")
        if guide_checks.is_lazy(guide):
            raise ValueError("the guide has no parameters yet: call inference.materialise(guide, (x, y)) first")
        guide_checks.check(model, guide)
        self.model, self.guide, self.options = model, guide, options
        self._optimizer, self._scheduler = optimizer, scheduler
        self._objective: Objective | None = None
        self._predictions: list[Prediction] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss −ELBO/N of a batch in nats per example."""
        (options, steps_per_epoch), arguments = self._schedule(), unpack_batch(batch).arguments()
        if self._objective is None:
            self._objective = Objective(self.model, self.guide, options=options, first_batch=lambda: arguments)
        sizes = {"steps_per_epoch": steps_per_epoch, "num_data": self._objective.num_data}
        loss = self._objective(arguments, StepCoefficients.at(self.global_step, options=options, **sizes))
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(arguments[0]))
        terms = {f"train/{name}": value for name, value in self._objective.terms().items()}
        self.log_dict(terms, batch_size=len(arguments[0]))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Keep the prediction of a batch, since metrics such as the calibration error are no means over batches."""
        self._predictions.append(self._predict(batch))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation set."""
        metrics = prediction_metrics(join(self._predictions))
        self._predictions.clear()
        self.log_dict({f"valid/{name}": value for name, value in metrics.items()}, sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the posterior predictive of a batch: the fields of :class:`~probattn.inference.Prediction` by name.

        Classifiers have ``probs``, ``expected_entropy`` and ``mutual_information``, other models ``mean`` and
        ``variance``.
        """
        prediction = self._predict(batch)
        shared = ("mask", "labels")
        of_classes = prediction.probs is not None
        names = ("probs", "expected_entropy", "mutual_information") if of_classes else ("mean", "variance")
        values = {name: getattr(prediction, name) for name in (*names, *shared)}
        return {name: value for name, value in values.items() if value is not None}

    def configure_optimizers(self) -> dict[str, Any]:
        """Return the optimiser and the scheduler of ``fit``, which is stepped after every training step."""
        options, steps_per_epoch = self._schedule()
        optimizers = make_optimizers(
            self.model,
            self.guide,
            options=options,
            num_data=attribute(self.model, "num_data"),
            steps_per_epoch=steps_per_epoch,
            optimizer=self._optimizer,
            scheduler=self._scheduler,
        )
        (scheduler,) = optimizers.schedulers
        return {"optimizer": optimizers.optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _predict(self, batch: Any) -> Prediction:
        data = batch if isinstance(batch, Tensor) else [batch]
        return predict(self.model, self.guide, data, num_samples=self.options.num_samples)

    def _schedule(self) -> tuple[TrainOptions, int]:
        """Return the options with the trainer's number of epochs, and the number of steps of an epoch."""
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ValueError("the schedules need the end of the training: Trainer(max_epochs=…) or max_steps=…")
        steps_per_epoch = math.ceil(self.trainer.num_training_batches / self.trainer.accumulate_grad_batches)
        return replace(self.options, epochs=math.ceil(steps / steps_per_epoch)), steps_per_epoch
