"""Options of :func:`probattn.inference.fit`, each declared once: type, default and the values that it takes."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from probattn.inference.metrics import MONITORS

MAX_COUNT = 2**31 - 1
"""Maximum of epochs, samples and other numbers of things."""
MAX_SEED = 2**63 - 1
"""Maximum of seeds: PyTorch's generators take no larger ones."""
_DEVICES = re.compile(r"auto|\d{1,4}(,\d{1,4})*,?")

GuideOptimizer = Literal["adam", "ngd"]
Schedule = Literal["cosine", "linear"]
Loss = Literal["mean_field", "trace", "enum"]
SamplesPer = Literal["example", "batch"]
Precision = Literal["32", "bf16-mixed"]
MatmulPrecision = Literal["highest", "high", "medium"]


def _option(default: Any, allowed: str, is_allowed: Callable[[Any], bool]) -> Any:
    return field(default=default, metadata={"allowed": allowed, "is_allowed": is_allowed})


def _positive(default: float) -> Any:
    return _option(default, "above 0", lambda value: 0 < value < math.inf)


def _not_negative(default: float) -> Any:
    return _option(default, "0 or more", lambda value: 0 <= value < math.inf)


def _count(default: int) -> Any:
    return _option(default, f"an integer from 1 to {MAX_COUNT:,}", lambda value: 1 <= value <= MAX_COUNT)


def _choice(default: str, choices: Any) -> Any:
    return _option(default, " or ".join(get_args(choices)), lambda value: value in get_args(choices))


def _or_none(option: Any) -> Any:
    """Return an option that may be None, which is its default."""
    allowed, is_allowed = option.metadata["allowed"], option.metadata["is_allowed"]
    return _option(None, f"{allowed}, or none", lambda value: value is None or is_allowed(value))


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
            reaches the optimum of one Gaussian in a conjugate model on the full batch; the means of several take
            shorter steps as their correlation requires. ``clip_norm`` does not act on them.
        schedule: decay between the two: ``"cosine"``, or ``"linear"`` (the CGP paper's).
        warmup_epochs: number of epochs of linear warm-up before that.
        lr_scale: factors on the learning rate of parameters of the model, by pattern of their names, such as
            ``{"network.encoder.*": 0.1}``: ``*`` and ``?`` as in :mod:`fnmatch`, ``|`` between alternatives; the last
            pattern that matches a name counts, and one that matches no parameter is an error. None leaves all at 1.
        weight_decay: weight decay of the model's weights, not of its biases, norms, scales, kernels, noise or
            inducing inputs (see :func:`~probattn.inference.training.optimizers.decayed_names`), nor of the guide.
        decoupled_weight_decay: True for AdamW's weight decay, apart from the gradient; False for Adam's, an L2 penalty.
        accumulate_grad_batches: number of batches whose gradients one training step adds up, as if they were one batch;
            the last step of an epoch takes the batches that remain. Steps of schedules, logs and callbacks count so.
        clip_norm: maximum norm of the gradient, or None.
        elbo: ELBO of Pyro: ``"mean_field"`` (KL in closed form if there is one), ``"trace"`` (KL at the samples) or
            ``"enum"`` (discrete sites are summed out; with ``samples_per="batch"``).
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
            classes ``metrics.OF_CLASSES``, for ordered classes also ``"rps"``, for binary labels ``"label_nll"`` …, for
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
            (see :func:`~probattn.inference.training.device.device_settings`); on a CPU they are without it.
        log_every: number of steps between two log records.
        checkpoint_every: number of epochs between two ``last.pt``; it is also written after the last. A resumed run
            repeats the epochs since then.

    Raises:
        ValueError: a value out of bounds; names all of them.
    """

    epochs: int = _count(10)
    lr: float = _positive(1e-3)
    guide_lr: float | None = _or_none(_positive(1e-3))
    guide_optimizer: GuideOptimizer = _choice("adam", GuideOptimizer)
    min_lr: float = _not_negative(1e-5)
    schedule: Schedule = _choice("cosine", Schedule)
    warmup_epochs: float = _not_negative(0.0)
    lr_scale: dict[str, float] | None = _option(
        None, "factors of 0 or more", lambda value: all(0 <= factor < math.inf for factor in (value or {}).values())
    )
    weight_decay: float = _not_negative(0.0)
    decoupled_weight_decay: bool = True
    accumulate_grad_batches: int = _count(1)
    clip_norm: float | None = _or_none(_positive(1.0))
    elbo: Loss = _choice("mean_field", Loss)
    samples_per: SamplesPer = _choice("example", SamplesPer)
    num_particles: int = _count(1)
    vectorize: bool | None = None
    kl_weight: float | Literal["num_data"] = _option(
        1.0,
        "0 or more, or num_data",
        lambda value: value == "num_data" if isinstance(value, str) else 0 <= value < math.inf,
    )
    local_kl_weight: float = _not_negative(1.0)
    kl_anneal_epochs: float = _not_negative(0.0)
    alpha_start: float = _not_negative(1.0)
    alpha_end: float = _not_negative(1.0)
    monitor: str | None = _option(
        None, f"one of {', '.join(MONITORS)}, or none", lambda value: value is None or value in MONITORS
    )
    patience: int | None = _or_none(_count(1))
    num_samples: int = _count(10)
    precision: Precision = _choice("32", Precision)
    matmul_precision: MatmulPrecision | None = _or_none(_choice("high", MatmulPrecision))
    compile: bool = False
    accelerator: str = "auto"
    devices: int | str = _option(
        1,
        "a number such as 1, or a list such as 1,",
        lambda value: value != 0 and _DEVICES.fullmatch(str(value)) is not None,
    )
    seed: int | None = _option(
        0, f"an integer from 0 to {MAX_SEED:,}, or none", lambda value: value is None or 0 <= value <= MAX_SEED
    )
    deterministic: bool = False
    log_every: int = _count(10)
    checkpoint_every: int = _count(1)

    def __post_init__(self) -> None:
        wrong = {
            option.name: option.metadata["allowed"]
            for option in fields(self)
            if option.metadata and not option.metadata["is_allowed"](getattr(self, option.name))
        }
        if not wrong:  # options that depend on others
            wrong |= {"min_lr": "from 0 to lr"} if self.min_lr > self.lr else {}
            wrong |= {"warmup_epochs": "less than epochs"} if self.warmup_epochs >= self.epochs else {}
            if self.guide_optimizer == "ngd" and self.kl_weight != "num_data" and self.kl_weight < 1e-6:
                wrong["kl_weight"] = "above 0 with ngd, whose steps are as long as 1 / kl_weight"
        if wrong:
            listed = "; ".join(f"{name}={getattr(self, name)!r}, allowed: {allowed}" for name, allowed in wrong.items())
            raise ValueError(f"training options out of bounds: {listed} (see TrainOptions)")

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

        More epochs or patience alone are no difference: a run may go on, at the learning rate that the schedule of the
        new number of epochs has then.
        """
        saved = {option.name: other.get(option.name, option.default) for option in fields(self)}
        changed = {name: value for name, value in saved.items() if value != getattr(self, name)}
        if all(_ends_later(name, value, getattr(self, name)) for name, value in changed.items()):
            return []
        return [f"{name}: {value!r} → {getattr(self, name)!r}" for name, value in changed.items()]


def _ends_later(name: str, saved: int | None, now: int | None) -> bool:
    """Return True for an option that only ends a run, and whose new value ends it no sooner."""
    return name in ("epochs", "patience") and (now is None or (saved is not None and saved <= now))
