"""A Gaussian process on the features of a network's last layer, anchored in the training data (ours)."""

import copy
import math
from collections.abc import Iterable

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from probattn import families, guides
from probattn.attention.options import check_positive
from probattn.functional import jitter
from probattn.functional.kernels import rbf
from probattn.inference.methods.features import Features, features, last_linear, training_labels
from probattn.inference.prediction.predictor import PosteriorPredictive
from probattn.sites import SiteModule

LENGTHSCALE = 0.7
"""Length scale of the kernel, relative to the median distance between training features."""
NOISE = 1.0
"""Standard deviation s of the pseudo-observations, 0 at every training feature, of the closed-form posterior."""
AMPLITUDES = tuple(2.0 ** (step / 2) for step in range(-4, 9))
"""Amplitudes to choose from, 0.25 to 16."""
REPEATS = 8
"""Repetitions of the samples of held-out data by which amplitude and temperature are chosen."""


class GPReadout(SiteModule):
    """Linear head plus a GP of fixed amplitude: logits = head(h) / τ + a (u ψ(h) + √(1 − ‖ψ(h)‖²) ε), h normalised.

    u ~ N(0, I) weighs M features ψ of anchors, which are training features (see :mod:`probattn.functional.anchored`);
    ε ~ N(0, 1) is the variance that they do not explain. Far from the anchors the variance of a logit is a², near them
    that of the posterior of u. So its mutual information is a distance to the training data.

    Sites: ``u``, latent, global, event ``(class, anchor)``; ``residual``, latent, local, event ``(class,)``, whose
    posterior is its prior.

    Args:
        head: linear layer to the logits.
        anchors: M.
        amplitude: a.
        temperature: τ.
    """

    def __init__(
        self, head: nn.Linear, *, anchors: int = 128, amplitude: float = 1.0, temperature: float = 1.0
    ) -> None:
        super().__init__()
        check_positive(anchors=anchors, amplitude=amplitude, temperature=temperature)
        self.head = head
        for name, value in (("amplitude", amplitude), ("temperature", temperature), ("lengthscale", 1.0)):
            self.register_buffer(name, head.weight.new_tensor(value))
        points = torch.randn(anchors, head.in_features).to(head.weight)
        self.register_buffer("anchors", F.layer_norm(points, points.shape[1:]))
        self.register_buffer("whitening", torch.eye(anchors).to(head.weight))
        self._whiten()

    def place(self, hidden: Tensor) -> None:
        """Set the anchors to the centres of training features ``(n, D)`` by k-means, and the length scale.

        Raises:
            ValueError: fewer features than anchors.
        """
        from sklearn.cluster import KMeans  # here, since its import takes a second

        points = F.layer_norm(hidden.double(), hidden.shape[1:])
        clusters = KMeans(len(self.anchors), n_init=1, random_state=0).fit(points.cpu().numpy())
        self.anchors.copy_(torch.as_tensor(clusters.cluster_centers_))
        distances = torch.pdist(points[torch.linspace(0, len(points) - 1, min(len(points), 2000)).long()])
        self.lengthscale.fill_(LENGTHSCALE * distances.median())
        self._whiten()

    def _whiten(self) -> None:
        """Set K⁻ᵀ, K Kᵀ = κ(Z, Z)."""
        anchors = self.anchors.double() / self.lengthscale
        tril = jitter.cholesky(rbf(anchors, anchors), "κ(Z, Z), of the readout's anchors")
        identity = torch.eye(len(tril), dtype=tril.dtype, device=tril.device)
        self.whitening.copy_(torch.linalg.solve_triangular(tril, identity, upper=False).mT)

    def kernel_features(self, hidden: Tensor) -> Tensor:
        """Return ψ ``(..., M)`` of features ``(..., D)``, with ‖ψ‖ ≤ 1."""
        points = F.layer_norm(hidden, hidden.shape[-1:]) / self.lengthscale
        return rbf(points, self.anchors / self.lengthscale) @ self.whitening

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the prior of ``u``."""
        return {"u": dist.Normal(0.0, self.anchors.new_ones(self.head.out_features, len(self.anchors))).to_event(2)}

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits ``(*draws, batch, classes)`` of features ``(*draws, batch, D)``."""
        u, psi = self.sample("u", self.sites()["u"]), self.kernel_features(hidden)
        process = (psi.unsqueeze(-2) @ u.mT).squeeze(-2)
        unit = dist.Normal(torch.zeros_like(process), 1.0).to_event(1)
        rest = (1 - psi.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
        process = process + rest * self.sample_local("residual", unit, unit)
        return self.head(hidden) / self.temperature + self.amplitude * process


def with_gp_readout(
    predictor: PosteriorPredictive, train: Iterable, valid: Iterable, *, anchors: int = 128
) -> PosteriorPredictive:
    """Put a GP on the last layer of a trained model; nothing is trained, and the model is copied.

    The posterior of u is N(0, (I + s⁻² Σ ψ ψᵀ)⁻¹) over the training features, in closed form; a and τ have the lowest
    NLL on validation data. For the optimum of the ELBO in its place, call :func:`~probattn.inference.refit_guide` on
    the result's model and guide.

    Args:
        predictor: predictor of one class per example, whose network ends in an ``nn.Linear``.
        train: batches of training data without augmentation.
        valid: batches of validation data with labels.
        anchors: number of anchors, at most that of the training examples.

    Returns:
        A predictor of as many samples.
    """
    seen, held_out = features(predictor, train), features(predictor, valid)
    given = guides.for_model(predictor.model) if predictor.guide is None else predictor.guide
    model, guide = copy.deepcopy((predictor.model, given))
    path = next(path for path, part in predictor.model.named_modules() if part is last_linear(predictor))
    readout = GPReadout(model.get_submodule(path), anchors=min(anchors, seen.values.shape[1]))
    model.set_submodule(path, readout)
    model.set_path("")
    hidden = _one_sample(seen)
    readout.place(hidden)
    psi = readout.kernel_features(hidden).double()
    precision = psi.new_ones(psi.shape[1]).diag() + psi.mT @ psi / NOISE**2
    (prior,) = readout.sites().values()
    posterior = families.Full(prior, init_loc=0.0)
    tril = torch.linalg.cholesky(torch.linalg.inv(precision)).to(readout.whitening)
    posterior.raw_tril.data.copy_(families.TRIL.inv(tril))
    guide.cover(readout.site("u"), posterior)
    _fit_scales(readout, held_out, tril, num_samples=predictor.num_samples or 1)
    return PosteriorPredictive(model, guide, num_samples=predictor.num_samples)


@torch.no_grad()
def _fit_scales(readout: GPReadout, held_out: Features, tril: Tensor, *, num_samples: int) -> None:
    """Set the largest amplitude whose NLL of held-out data, by S samples, is the lowest up to its standard error.

    In-distribution data hardly tell small amplitudes apart, and with a small one the GP says nothing elsewhere. Each
    amplitude has the temperature of its lowest NLL.
    """
    hidden, labels = _one_sample(held_out), training_labels(held_out)
    psi, logits = readout.kernel_features(hidden), readout.head(hidden)
    variance = 1 - psi.square().sum(-1) + (psi @ tril).square().sum(-1)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(REPEATS, num_samples, *logits.shape, generator=generator).to(logits)
    noise = variance.clamp(min=0).sqrt().unsqueeze(-1) * noise

    def losses(amplitude: float, temperature: float) -> Tensor:
        log_probs = (logits / temperature + amplitude * noise).log_softmax(-1).logsumexp(1)
        return -log_probs.gather(-1, labels.expand(REPEATS, -1).unsqueeze(-1)).double().mean(0).squeeze(-1)

    profile = []
    for amplitude in AMPLITUDES:
        best = minimize_scalar(lambda log: float(losses(amplitude, math.exp(log)).mean()), (-1.0, 1.0))  # noqa: B023
        profile.append((amplitude, math.exp(best.x), losses(amplitude, math.exp(best.x))))
    _, _, lowest = min(profile, key=lambda row: float(row[2].mean()))
    for amplitude, temperature, loss in profile:  # the last one that is not worse by more than its standard error
        excess = loss - lowest
        if excess.mean() <= excess.std() / math.sqrt(len(excess)):
            readout.amplitude.fill_(amplitude)
            readout.temperature.fill_(temperature)


def _one_sample(features: Features) -> Tensor:
    """Return features ``(n, D)``, of example i those of sample i mod S."""
    samples, examples, _ = features.values.shape
    rows = torch.arange(examples, device=features.values.device)
    return features.values[rows % samples, rows]
