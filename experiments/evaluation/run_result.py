"""Everything that a report needs of one evaluated run."""

from dataclasses import dataclass, field

from torch import Tensor

from probattn.inference import Prediction


@dataclass(frozen=True)
class RunResult:
    """Everything that a report needs of one evaluated run; no model in it.

    Terms of the objective are per example, in nats, loss = nll + Σ kl + Σ penalty; metrics are unscaled, as
    `metrics.evaluate` returns them. Whatever a run lacks is an empty container, and the report says so.
    """

    name: str
    command: str
    settings: dict[str, object]
    metrics: dict[str, float]
    steps: list[dict]  # step, epoch, loss, nll, kl/SITE…, penalty/SITE…, lr
    epochs: list[dict]  # epoch, step, valid/accuracy, valid/nll, …, seconds
    probs: Tensor  # (n, classes)
    labels: Tensor  # (n,)
    images: Tensor  # uint8 (n, channels, H, W); no elements where the data are no images
    classes: tuple[str, ...]
    spectra: dict[str, tuple[Tensor, Tensor]]  # layer → singular values (heads, N), Λ (heads, s ≥ 0); descending
    posterior: list[dict]  # site, kl (nats), size, prior_std, posterior_std, posterior_mean_rms
    variants: dict[str, dict[str, float]]  # metrics with each latent site "at its mean", "drawn from q", …
    similarity: dict[str, float] = field(default_factory=dict)  # layer → mean cosine between its tokens, in depth order
    shift: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)  # corruption → severity → metrics
    valid: Prediction | None = None  # of validation data
    outliers: dict[str, Prediction] = field(default_factory=dict)  # foreign set → what the network says of its images
    domains: dict[str, dict[str, float]] = field(default_factory=dict)  # other domain → metrics
    texts: tuple[str, ...] = ()  # n where the data are texts

    def __post_init__(self):
        n = len(self.labels)
        if self.probs.ndim != 2 or len(self.probs) != n or (self.images.numel() and len(self.images) != n):
            shapes = f"probs {tuple(self.probs.shape)}, images {tuple(self.images.shape)}"
            raise ValueError(f"run {self.name!r}: {n} labels need as many probs and images, got {shapes}")
        if len(self.classes) != self.probs.shape[1]:
            raise ValueError(f"run {self.name!r}: {self.probs.shape[1]} classes, {len(self.classes)} names")

    @property
    def answered(self) -> bool:
        """Whether there are answers to draw: at least one, and every probability finite."""
        return len(self.labels) > 0 and bool(self.probs.isfinite().all())
