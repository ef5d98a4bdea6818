"""Options of :func:`probattn.inference.fit`, each declared once: type, default and the values that
it takes."""

import math
from dataclasses import Field, dataclass, fields, replace
from typing import Literal, get_args, get_origin

from probattn.inference.metrics import MONITORS

MAX_COUNT = 2**31 - 1
"""Maximum of epochs, samples and other numbers of things."""
MAX_SEED = 2**63 - 1
"""Maximum of seeds: PyTorch's generators take no larger ones."""
NOT_ZERO = (
    "epochs",
    "lr",
    "guide_lr",
    "accumulate_grad_batches",
    "clip_norm",
    "num_particles",
    "patience",
    "num_samples",
    "log_every",
    "checkpoint_every",
)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of :func:`~probattn.inference.fit`.

    Args:
        epochs: number of passes over the training data.
        lr: learning rate after the warm-up.
        min_lr: learning rate at the end.
        guide_lr: learning rate of the guide's parameters after the warm-up, which follows the same
            schedule (it ends at ``min_lr * guide_lr / lr``); None is ``lr``, for natural gradients
            0.1.
        guide_optimizer: ``"adam"``, or ``"ngd"`` for natural-gradient steps of the guide's Gaussian
            modules, families ``full`` and ``diagonal``. Their length ``guide_lr`` is relative to
            the step that ``kl_weight`` permits: 1 reaches the optimum of one Gaussian in a
            conjugate model on the full batch; the means of several take shorter steps as their
            correlation requires. ``clip_norm`` does not act on them.
        schedule: decay between the two: ``"cosine"``, or ``"linear"`` (the CGP paper's).
        warmup_epochs: number of epochs of linear warm-up before that.
        lr_scale: factors on the learning rate of parameters of the model, by pattern of their
            names, such as ``{"network.encoder.*": 0.1}``: ``*`` and ``?`` as in :mod:`fnmatch`,
            ``|`` between alternatives; the last pattern that matches a name counts, and one that
            matches no parameter is an error. None leaves all at 1.
        weight_decay: weight decay of the model's weights, not of its biases, norms, scales,
            kernels, noise or inducing inputs (see
            :func:`~probattn.inference.training.optimizers.decayed_names`), nor of the guide.
        decoupled_weight_decay: True for AdamW's weight decay, apart from the gradient; False for
            Adam's, an L2 penalty.
        accumulate_grad_batches: number of batches whose gradients one training step adds up, as if
            they were one batch; the last step of an epoch takes the batches that remain. Steps of
            schedules, logs and callbacks count so.
        clip_norm: maximum norm of the gradient, or None.
        elbo: ELBO of Pyro: ``"mean_field"`` (KL in closed form if there is one), ``"trace"`` (KL at
            the samples) or ``"enum"`` (discrete sites are summed out; with
            ``samples_per="batch"``).
        samples_per: ``"example"`` for one posterior sample per example, ``"batch"`` for one shared
            by the batch.
        num_particles: number of posterior samples per example (or batch) that the loss averages.
        vectorize: True draws all samples of a step at once; False, for models whose shapes do not
            broadcast over a dimension of samples, one sample for the whole batch after another;
            None chooses by the model and logs a choice of False.
        kl_weight: KL weight of global sites; 1 is the ELBO. ``"num_data"`` is the number N of
            training examples: the whole KL then stands beside the mean log-likelihood, as in the
            KEP-SVGP authors' code, which keeps q(u) at the prior.
        local_kl_weight: KL weight of the sites of single examples (SGPA's ``g``); 1 is the ELBO.
        kl_anneal_epochs: number of epochs in which both weights rise linearly from 0.
        alpha_start: weight of the CGP layers' regulariser at the first step of the run (CGP paper,
            sec. 5.1: 0 → 1, 0.5 → 1, or 0.7 throughout).
        alpha_end: the same at the last step, linear in between.
        monitor: validation metric that selects the best epoch, one of ``metrics.MONITORS`` that the
            likelihood has: for classes ``metrics.OF_CLASSES``, for ordered classes also ``"rps"``,
            for binary labels ``"label_nll"`` …, for regression ``"rmse"``, ``"mae"``, ``"nll"``,
            ``"crps"`` …, for all ``"log_prob"``; None is ``"nll"`` for classifiers and
            ``"log_prob"`` for other models.
        patience: number of epochs without improvement before early stopping, or None.
        num_samples: number of posterior samples of the predictive in validation.
        precision: ``"32"`` or ``"bf16-mixed"`` (autocast of the network; densities and KL stay in
            float32).
        matmul_precision: precision of float32 matrix products, as for
            :func:`torch.set_float32_matmul_precision`: ``"highest"`` is float32, ``"high"`` TF32 on
            GPUs that have it, ``"medium"`` bfloat16 where PyTorch has such products; None is
            ``"high"`` on a GPU and leaves the setting of a CPU. What the layers factorise is always
            computed in float32.
        compile: compile the blocks that hold attention layers with :func:`torch.compile`, in place.
        accelerator: where to train, as for Lightning Fabric.
        devices: a single device, as for Lightning Fabric: ``1``, or ``"1,"`` for the second.
        seed: seed of posterior samples and dropout, or None to leave PyTorch's generator unchanged.
        deterministic: use deterministic algorithms only, so that two runs on the same machine are
            equal bit for bit (see :func:`~probattn.inference.training.device.device_settings`); on
            a CPU they are without it.
        log_every: number of steps between two log records.
        checkpoint_every: number of epochs between two ``last.pt``; it is also written after the
            last. A resumed run repeats the epochs since then.

    Raises:
        ValueError: a value out of bounds; names all of them.
    """

    epochs: int = 10
    lr: float = 1e-3
    guide_lr: float | None = None
    guide_optimizer: Literal["adam", "ngd"] = "adam"
    min_lr: float = 1e-5
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup_epochs: float = 0.0
    lr_scale: dict[str, float] | None = None
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = True
    accumulate_grad_batches: int = 1
    clip_norm: float | None = None
    elbo: Literal["mean_field", "trace", "enum"] = "mean_field"
    samples_per: Literal["example", "batch"] = "example"
    num_particles: int = 1
    vectorize: bool | None = None
    kl_weight: float | Literal["num_data"] = 1.0
    local_kl_weight: float = 1.0
    kl_anneal_epochs: float = 0.0
    alpha_start: float = 1.0
    alpha_end: float = 1.0
    monitor: str | None = None
    patience: int | None = None
    num_samples: int = 10
    precision: Literal["32", "bf16-mixed"] = "32"
    matmul_precision: Literal["highest", "high", "medium"] | None = None
    compile: bool = False
    accelerator: str = "auto"
    devices: int | str = 1
    seed: int | None = 0
    deterministic: bool = False
    log_every: int = 10
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        invalid = {option.name: not self._takes(option) for option in fields(self)}
        invalid["monitor"] |= self.monitor not in (None, *MONITORS)
        invalid["min_lr"] |= self.min_lr > self.lr
        invalid["warmup_epochs"] |= self.warmup_epochs >= self.epochs
        is_natural = self.guide_optimizer == "ngd"
        invalid["kl_weight"] |= is_natural and self.kl_weight_of(1) < 1e-6
        names = [name for name, is_invalid in invalid.items() if is_invalid]
        if names:
            listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            raise ValueError(f"training options out of bounds (see TrainOptions): {listed}")

    def _takes(self, option: Field) -> bool:
        """Return True if an option's value is one of those of its type, and within the bounds of a
        number."""
        value = getattr(self, option.name)
        if isinstance(value, int | float):
            maximum = MAX_SEED if option.name == "seed" else MAX_COUNT
            is_missing = value == 0 and option.name in NOT_ZERO
            return 0 <= value <= maximum and not is_missing
        return get_origin(option.type) is not Literal or value in get_args(option.type)

    @property
    def guide_lr_scale(self) -> float:
        """Factor of the guide's learning rate, ``guide_lr / lr``."""
        guide_lr = self.guide_lr
        if guide_lr is None:
            guide_lr = self.lr if self.guide_optimizer == "adam" else 0.1
        return guide_lr / self.lr

    def kl_weight_of(self, num_data: int) -> float:
        """Return the KL weight of global sites as a number, for ``num_data`` training examples."""
        return num_data if self.kl_weight == "num_data" else self.kl_weight

    def steps_per_epoch(self, batches: int) -> int:
        """Return the number of training steps of an epoch with that number of batches."""
        return -(-batches // self.accumulate_grad_batches)

    def continues(self, saved: "TrainOptions") -> bool:
        """Return True if a run of saved options may go on with these: equal ones, or more epochs or
        patience.

        The learning rate is then that of the schedule for the new number of epochs.
        """
        is_as_patient = (self.patience or math.inf) >= (saved.patience or math.inf)
        if self.epochs < saved.epochs or not is_as_patient:
            return False
        return self == replace(saved, epochs=self.epochs, patience=self.patience)
