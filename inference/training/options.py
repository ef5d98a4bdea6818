"""Options of :func:`probattn.inference.fit`, with their defaults and bounds."""

import math
import re
from dataclasses import dataclass, fields
from typing import Literal, get_args

from probattn.inference.metrics import MONITORS
from probattn.inference.training.matmul_precision import MatmulPrecision
from probattn.inference.training.schedule import SCHEDULES

MAX_COUNT = 2**31 - 1
"""Maximum of epochs, samples and other numbers of things."""
MAX_SEED = 2**63 - 1
"""Maximum of seeds: PyTorch's generators take no larger ones."""
_DEVICES = re.compile(r"auto|\d{1,4}(,\d{1,4})*,?")
"""Lightning Fabric's numbers and lists of devices."""
_COUNT, _NOT_NEGATIVE = f"an integer from 1 to {MAX_COUNT:,}", "0 or more"
ALLOWED = {
    **dict.fromkeys(("epochs", "num_samples", "log_every"), _COUNT),
    **dict.fromkeys(("num_particles", "accumulate_grad_batches", "checkpoint_every"), _COUNT),
    "patience": f"{_COUNT}, or none",
    "lr": "above 0",
    "guide_lr": "above 0, or none",
    "min_lr": "from 0 to lr",
    "warmup_epochs": "from 0 to less than epochs",
    "guide_optimizer": "adam or ngd",
    "schedule": " or ".join(SCHEDULES),
    "lr_scale": "factors of 0 or more",
    "clip_norm": "above 0, or none",
    "elbo": "mean_field or trace",
    "samples_per": "example or batch",
    "kl_weight": "0 or more (above 0 with ngd), or num_data",
    **dict.fromkeys(("weight_decay", "local_kl_weight", "kl_anneal_epochs", "alpha_start", "alpha_end"), _NOT_NEGATIVE),
    "monitor": f"one of {', '.join(MONITORS)}, or none",
    "precision": "32 or bf16-mixed",
    "matmul_precision": "highest, high or medium, or none",
    "devices": "a number such as 1, or a list such as 1,",
    "seed": f"an integer from 0 to {MAX_SEED:,}, or none",
}
"""Values that each option takes, in words."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of :func:`~probattn.inference.fit`.

    Args:
        epochs: number of passes over the training data.
        lr, min_lr: learning rate after the warm-up and at the end.
        guide_lr: learning rate of the guide's parameters after the warm-up, which follows the same schedule (it ends at
            ``min_lr * guide_lr / lr``); None is ``lr``, for natural gradients 0.1.
        guide_optimizer: ``"adam"``, or ``"ngd"`` for natural-gradient steps of the guide's Gaussian modules, families
            ``full`` and ``diagonal``. Their length ``guide_lr`` is relative to the step that ``kl_weight`` permits: 1
            reaches the optimum of a conjugate model on the full batch. ``clip_norm`` does not act on them.
        schedule: decay between the two: ``"cosine"``, or ``"linear"`` (the CGP paper's).
        warmup_epochs: number of epochs of linear warm-up before that.
        lr_scale: factors on the learning rate of parameters of the model, by pattern of their names, such as
            ``{"network.encoder.*": 0.1}``: ``*`` and ``?`` as in :mod:`fnmatch`, ``|`` between alternatives; the last
            pattern that matches a name counts, and one that matches no parameter is an error. None leaves all at 1.
        weight_decay: weight decay of the model's weights, not of its biases, norms, scales, kernels, noise or
            inducing inputs (see :func:`~probattn.inference.training.parameter_groups.decayed_names`), nor of the guide.
        decoupled_weight_decay: True for AdamW's weight decay, apart from the gradient; False for Adam's, an L2 penalty.
        accumulate_grad_batches: number of batches whose gradients one training step adds up, as if they were one batch;
            the last step of an epoch takes the batches that are left. Steps of schedules, logs and callbacks count so.
        clip_norm: maximum norm of the gradient, or None.
        elbo: ``"mean_field"`` (KL in closed form if there is one) or ``"trace"`` (KL at the samples).
        samples_per: ``"example"`` for one posterior sample per example, ``"batch"`` for one shared by the batch.
        num_particles: number of posterior samples per example (or batch) that the loss averages.
        vectorize: True draws all samples of a step at once; False, for models whose shapes do not broadcast over a
            dimension of samples, one sample for the whole batch after another; None chooses by the model and logs
            a choice of False.
        kl_weight: KL weight of global sites; 1 is the ELBO. ``"num_data"`` is the number N of training examples: the
            whole KL then stands beside the mean log-likelihood, as in the KEP-SVGP authors' code, which keeps q(u) at
            the prior.
        local_kl_weight: KL weight of the sites of single examples (SGPA's ``g``); 1 is the ELBO.
        kl_anneal_epochs: number of epochs in which both weights rise linearly from 0.
        alpha_start, alpha_end: weight of the CGP layers' regulariser at the first and at the last step of the run,
            linear in between (CGP paper, sec. 5.1: 0 → 1, 0.5 → 1, or 0.7 throughout).
        monitor: validation metric that selects the best epoch, one of ``metrics.MONITORS`` that the likelihood has: for
            classes ``metrics.DISPLAY``, for ordered classes also ``"rps"``, for binary labels ``"label_nll"`` …, for
            regression ``"rmse"``, ``"mae"``, ``"nll"``, ``"crps"`` …, for all ``"log_prob"``; None is ``"nll"`` for
            classifiers and ``"log_prob"`` for other models.
        patience: number of epochs without improvement before early stopping, or None.
        num_samples: number of posterior samples of the predictive in validation.
        precision: ``"32"`` or ``"bf16-mixed"`` (autocast of the network; densities and KL stay in float32).
        matmul_precision: precision of float32 matrix products, as for :func:`torch.set_float32_matmul_precision`:
            ``"highest"`` is float32, ``"high"`` TF32 on GPUs that have it, ``"medium"`` bfloat16 where PyTorch has such
            products; None is ``"high"`` on a GPU and leaves the setting of a CPU. What the layers factorise is always
            computed in float32.
        compile: compile the blocks that hold attention layers with :func:`torch.compile`, in place.
        accelerator, devices: as for Lightning Fabric, for a single device: ``1``, or ``"1,"`` for the second.
        seed: seed of posterior samples and dropout, or None to leave PyTorch's generator unchanged.
        deterministic: use deterministic algorithms only, so that two runs on the same machine are equal bit for bit
            (see :func:`~probattn.inference.training.deterministic.deterministic`); on a CPU they are without it.
        log_every: number of steps between two log records.
        checkpoint_every: number of epochs between two ``last.pt``; it is also written after an epoch whose validation
            is the best so far, and after the last. A resumed run repeats the epochs since then.

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
    elbo: Literal["mean_field", "trace"] = "mean_field"
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
    matmul_precision: MatmulPrecision | None = None
    compile: bool = False
    accelerator: str = "auto"
    devices: int | str = 1
    seed: int | None = 0
    deterministic: bool = False
    log_every: int = 10
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        lowest_kl_weight = 0 if self.guide_optimizer == "adam" else 1e-6  # natural steps are as long as 1 / kl_weight
        bounds = {
            "epochs": 1 <= self.epochs <= MAX_COUNT,
            "lr": 0 < self.lr < math.inf,
            "guide_lr": self.guide_lr is None or 0 < self.guide_lr < math.inf,
            "guide_optimizer": self.guide_optimizer in ("adam", "ngd"),
            "min_lr": 0 <= self.min_lr <= self.lr,
            "schedule": self.schedule in SCHEDULES,
            "warmup_epochs": 0 <= self.warmup_epochs < self.epochs,
            "lr_scale": all(0 <= factor < math.inf for factor in (self.lr_scale or {}).values()),
            "weight_decay": 0 <= self.weight_decay < math.inf,
            "accumulate_grad_batches": 1 <= self.accumulate_grad_batches <= MAX_COUNT,
            "clip_norm": self.clip_norm is None or 0 < self.clip_norm < math.inf,
            "elbo": self.elbo in ("mean_field", "trace"),
            "samples_per": self.samples_per in ("example", "batch"),
            "num_particles": 1 <= self.num_particles <= MAX_COUNT,
            "kl_weight": self.kl_weight == "num_data"
            or (not isinstance(self.kl_weight, str) and lowest_kl_weight <= self.kl_weight < math.inf),
            "local_kl_weight": 0 <= self.local_kl_weight < math.inf,
            "kl_anneal_epochs": 0 <= self.kl_anneal_epochs < math.inf,
            "alpha_start": 0 <= self.alpha_start < math.inf,
            "alpha_end": 0 <= self.alpha_end < math.inf,
            "monitor": self.monitor is None or self.monitor in MONITORS,
            "patience": self.patience is None or 1 <= self.patience <= MAX_COUNT,
            "num_samples": 1 <= self.num_samples <= MAX_COUNT,
            "precision": self.precision in ("32", "bf16-mixed"),
            "matmul_precision": self.matmul_precision in (None, *get_args(MatmulPrecision)),
            "devices": self.devices != 0 and _DEVICES.fullmatch(str(self.devices)) is not None,
            "seed": self.seed is None or 0 <= self.seed <= MAX_SEED,
            "log_every": 1 <= self.log_every <= MAX_COUNT,
            "checkpoint_every": 1 <= self.checkpoint_every <= MAX_COUNT,
        }
        wrong = [f"{name}={getattr(self, name)!r}, allowed: {ALLOWED[name]}" for name, ok in bounds.items() if not ok]
        if wrong:
            raise ValueError(f"training options out of bounds: {'; '.join(wrong)} (see TrainOptions)")

    @property
    def guide_lr_scale(self) -> float:
        """Factor of the guide's learning rate, ``guide_lr / lr``."""
        default = self.lr if self.guide_optimizer == "adam" else 0.1
        return (default if self.guide_lr is None else self.guide_lr) / self.lr

    def kl_weight_of(self, num_data: int) -> float:
        """Return the KL weight of global sites as a number, for ``num_data`` training examples."""
        return num_data if self.kl_weight == "num_data" else self.kl_weight

    def steps_per_epoch(self, batches: int) -> int:
        """Return the number of training steps of an epoch with that number of batches."""
        return -(-batches // self.accumulate_grad_batches)

    def differences(self, other: dict) -> list[str]:
        """Return the differences to a saved run's options, as ``name: saved → now``.

        An option that the saved run lacks is newer than it; its default is what that run did. More epochs or patience
        alone are no difference: a run may go on, at the learning rate that the schedule of the new number of epochs
        has then.
        """
        saved = {field.name: other.get(field.name, field.default) for field in fields(self)}
        changed = {name: value for name, value in saved.items() if value != getattr(self, name)}
        if all(_ends_later(name, value, getattr(self, name)) for name, value in changed.items()):
            return []
        return [f"{name}: {value!r} → {getattr(self, name)!r}" for name, value in changed.items()]


def _ends_later(name: str, saved: int | None, now: int | None) -> bool:
    """Return True for an option that only ends a run, and whose new value ends it no sooner."""
    return name in ("epochs", "patience") and (now is None or (saved is not None and saved <= now))
