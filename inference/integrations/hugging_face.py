"""A model for Hugging Face's ``Trainer``: its forward pass returns the loss."""

from torch import Tensor, nn
from torch.optim import Optimizer

from probattn.inference.integrations.external_trainer import batch_objective, check_external
from probattn.inference.prediction.predict import predict
from probattn.inference.programs import attribute
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.optimizers import adam
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.parameter_groups import parameter_groups


class TrainerModel(nn.Module):
    """Model and guide as one module for ``transformers.Trainer``, which trains them by the loss of ``fit``.

    ``Trainer(model=TrainerModel(model, guide), args=…, optimizers=(trainer_model.make_optimizer(), None), …)``: the
    optimiser has the parameter groups of ``fit``, and the trainer its own schedule of the learning rate. KL weights and
    the regulariser's weight stay constant, since a module does not know the trainer's step.

    Args:
        model: model with an attribute ``num_data`` and its labels at the site ``y``.
        guide: its guide; an AutoGuide must have run once.
        options: learning rates, weight decay, KL weights and samples (see :class:`~probattn.inference.TrainOptions`).

    Raises:
        ValueError: options that the trainer has itself, or that change from step to step; natural gradients; a model or
            guide that cannot be trained so.
    """

    accepts_loss_kwargs = False
    """Tells ``Trainer`` that the loss is a mean over the batch, so that accumulated losses are averaged."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        *,
        options: TrainOptions = TrainOptions(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__()
        check_external(model, guide, options, others=("kl_anneal_epochs", "warmup_epochs", "schedule"))
        if options.alpha_start != options.alpha_end:
            raise ValueError("a module does not know the trainer's step: set alpha_start and alpha_end to one value")
        self.model, self.guide, self.options = model, guide, options
        num_data = attribute(model, "num_data")
        self._coefficients = StepCoefficients.at(0, options=options, steps_per_epoch=1, num_data=num_data)
        self._objective: Objective | None = None

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the loss in training, and the mean prediction, with the predictive's loss, in evaluation.

        Args:
            input_ids, pixel_values, inputs_embeds: inputs of the network, one of them.
            attention_mask: 1 or True at real tokens ``(batch, tokens)``.
            labels: labels ``(batch, …)``.

        Returns:
            In training ``loss``, −ELBO/N in nats per example. In evaluation ``logits``, the log of the mean
            probabilities ``(batch, classes)`` or the mean, and with labels ``loss``, −log of the predictive density.

        Raises:
            ValueError: no inputs or several, or no labels in training.
        """
        inputs = [each for each in (input_ids, pixel_values, inputs_embeds) if each is not None]
        if len(inputs) != 1 or (self.training and labels is None):
            raise ValueError(
                "the batch needs labels and one of input_ids, pixel_values and inputs_embeds: name the columns so"
            )
        mask = () if attention_mask is None else (attention_mask.bool(),)
        if self.training:
            batch = (inputs[0], labels, *mask)
            if self._objective is None:
                self._objective = batch_objective(self.model, self.guide, batch, self.options)
            return {"loss": self._objective(batch, self._coefficients)}
        prediction = predict(self.model, self.guide, [(inputs[0], labels, *mask)], num_samples=self.options.num_samples)
        loss = {} if labels is None else {"loss": -prediction.log_prob(labels).mean()}
        return loss | {"logits": prediction.mean if prediction.probs is None else prediction.log_probs}

    def make_optimizer(self) -> Optimizer:
        """Return AdamW, or Adam, with the parameter groups of ``fit``, for the trainer's ``optimizers``."""
        options = self.options
        groups = parameter_groups(
            self.model,
            self.guide,
            lr=options.lr,
            weight_decay=options.weight_decay,
            lr_scale=options.lr_scale,
            guide_lr_scale=options.guide_lr_scale,
        )
        return adam(groups, options=options)
