"""Gaussian processes on the features of a network, anchored in the training data (ours)."""

import copy
import math
from collections.abc import Iterable
from typing import Any, Literal

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn import families, guides
from probattn.attention.options import check_choice, check_positive
from probattn.functional.feature_maps import Anchors
from probattn.functional.kernels import rbf
from probattn.inference.methods.features import Features, features, last_linear
from probattn.inference.prediction.predictor import PosteriorPredictive
from probattn.sites import SiteModule
from probattn.threads import one_thread_at_a_time

LENGTHSCALE = 0.7
"""Length scale of the kernel, relative to the median distance between training features."""
NOISE = 1.0
"""Standard deviation s of the pseudo-observations, 0 at every training feature, of the closed-form
posterior."""
AMPLITUDES = tuple(2.0 ** (step / 2) for step in range(-4, 9))
"""Amplitudes to choose from, 0.25 to 16."""
REPEATS = 8
"""Repetitions of the samples of held-out data by which amplitude and temperature are chosen."""


class FeatureGP(SiteModule):
    """GP of unit variance on normalised features h: u ψ(h) + √(1 − ‖ψ(h)‖²) ε for each output.

    u ~ N(0, I) weighs M features ψ of anchors (see :mod:`probattn.functional.feature_regression`);
    ε ~ N(0, 1) is the variance that they do not explain. Sites: ``u``, latent, global, event
    ``(output, anchor)``; ``residual``, latent, local, event ``(output,)``, whose posterior is its
    prior.

    Args:
        dim: width D of the features.
        outputs: number of outputs.
        anchors: M.
    """

    example_dim = -2

    def __init__(self, dim: int, outputs: int, *, anchors: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.lengthscale = nn.Buffer(torch.ones(()))
        self.whitening = nn.Buffer(torch.eye(anchors))
        self.anchors = nn.Buffer(F.layer_norm(torch.randn(anchors, dim), (dim,)))
        self._whiten()

    def place(self, hidden: Tensor) -> None:
        """Set the anchors to the centres of training features ``(n, D)`` by k-means, and the length
        scale.

        Raises:
            ValueError: fewer features than anchors.
        """
        from sklearn.cluster import KMeans  # here, since its import takes a second

        points = F.layer_norm(hidden.double(), hidden.shape[1:])
        clusters = KMeans(len(self.anchors), n_init=1, random_state=0).fit(points.cpu().numpy())
        self.anchors.copy_(torch.as_tensor(clusters.cluster_centers_))
        rows = torch.linspace(0, len(points) - 1, min(len(points), 2000)).long()
        distances = torch.pdist(points[rows])
        self.lengthscale.fill_(LENGTHSCALE * distances.median())
        self._whiten()

    def _whiten(self) -> None:
        """Set K⁻ᵀ, K Kᵀ = κ(Z, Z)."""
        self.whitening.copy_(Anchors(self.anchors.double() / self.lengthscale).mixing)

    def kernel_features(self, hidden: Tensor) -> Tensor:
        """Return ψ ``(..., M)`` of features ``(..., D)``, with ‖ψ‖ ≤ 1."""
        points = F.layer_norm(hidden, hidden.shape[-1:]) / self.lengthscale
        return rbf(points, self.anchors / self.lengthscale) @ self.whitening

    def posterior_tril(self, hidden: Tensor) -> Tensor:
        """Return L with L Lᵀ = (I + s⁻² Σ ψ ψᵀ)⁻¹ ``(M, M)`` over training features ``(n, D)``."""
        psi = self.kernel_features(hidden).double()
        precision = psi.new_ones(psi.shape[1]).diag() + psi.mT @ psi / NOISE**2
        return torch.linalg.cholesky(torch.linalg.inv(precision)).to(self.whitening)

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the prior of ``u``."""
        unit = self.anchors.new_ones(self.outputs, len(self.anchors))
        return {"u": dist.Normal(0.0, unit).to_event(2)}

    def has_local_sites(self) -> bool:
        """Return True, for the residual."""
        return True

    def forward(self, hidden: Tensor) -> Tensor:
        """Return draws ``(*draws, batch, outputs)`` at features ``(*draws, batch, D)``."""
        u = self.sample("u", self.sites()["u"])
        psi = self.kernel_features(hidden)
        explained = (psi.unsqueeze(-2) @ u.mT).squeeze(-2)
        unit = dist.Normal(torch.zeros_like(explained), 1.0).to_event(1)
        stddev = (1 - psi.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
        return explained + stddev * self.sample_local("residual", unit, unit)


class GPReadout(nn.Module):
    """Linear head plus a sum of GPs of fixed amplitude: logits = head(h) / τ + a L^(−1/2) Σ_l
    f_l(h_l).

    Far from the anchors, which are training features, the variance of a logit is a²; near them it
    is that of the posterior. So its mutual information is a distance to the training data.

    Args:
        head: linear layer to the logits.
        anchors: M, of each GP.
        depths: L, the number of GPs; with 0 it is the head on the last of any number of depths.

    Attributes:
        amplitude, temperature: a and τ, initially 1.
    """

    def __init__(self, head: nn.Linear, *, anchors: int = 128, depths: int = 1) -> None:
        super().__init__()
        check_positive(anchors=anchors)
        self.head = head
        self.processes: Any = nn.ModuleList()
        for _ in range(depths):
            process = FeatureGP(head.in_features, head.out_features, anchors=anchors)
            self.processes.append(process.to(head.weight))
        self.amplitude = nn.Buffer(head.weight.new_ones(()))
        self.temperature = nn.Buffer(head.weight.new_ones(()))

    def split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Split features ``(..., L D)`` into those of each depth ``(..., D)``, the head's own
        last."""
        return hidden.split(self.head.in_features, -1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits ``(*draws, batch, classes)`` of features ``(*draws, batch, L D)``."""
        depths = self.split(hidden)
        pairs = zip(self.processes, depths, strict=bool(self.processes))
        total = sum(process(of_depth) for process, of_depth in pairs)  # Σ_l f_l(h_l)
        scale = self.amplitude / math.sqrt(len(depths))
        return self.head(depths[-1]) / self.temperature + scale * total


class _AllDepths(nn.Sequential):
    """Blocks whose output has the tokens after each block, one after the other in the last
    dimension."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        states = []
        for block in self:
            x = block(x) if mask is None else block(x, mask)
            states.append(x)
        return torch.cat(torch.broadcast_tensors(*states), -1)


class _LastNorm(nn.Module):
    """Norm of the last of several features that stand one after the other."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        *others, last = x.split(self.norm.normalized_shape[0], -1)
        return torch.cat([*others, self.norm(last)], -1)


@one_thread_at_a_time
def with_gp_readout(
    predictor: PosteriorPredictive,
    train: Iterable,
    valid: Iterable,
    *,
    anchors: int = 128,
    depths: Literal["last", "all"] = "last",
) -> PosteriorPredictive:
    """Put GPs on the features of a trained model; nothing is trained, and the model is copied.

    The posterior of u is N(0, (I + s⁻² Σ ψ ψᵀ)⁻¹) over the training features, in closed form; a and
    τ have the lowest NLL on validation data. For the optimum of the ELBO in its place, call
    :func:`~probattn.inference.refit_guide` on the result's model and guide.

    Args:
        predictor: predictor of one class per example, whose network ends in an ``nn.Linear``.
        train: batches of training data without augmentation.
        valid: batches of validation data with labels.
        anchors: number of anchors of each GP, at most that of the training examples.
        depths: ``"last"``, the input of the head, or ``"all"``, the mean token after each block of
            one of :mod:`probattn.models`' transformers.

    Returns:
        A predictor of as many samples.
    """
    check_choice("depths", depths, ("last", "all"))
    initial = guides.for_model(predictor.model) if predictor.guide is None else predictor.guide
    model: Any
    guide: Any
    model, guide = copy.deepcopy((predictor.model, initial))
    base = PosteriorPredictive(model, guide, num_samples=predictor.num_samples)
    head = last_linear(base)
    path = next(path for path, module in model.named_modules() if module is head)
    if depths == "all":
        model.network.blocks = _AllDepths(*model.network.blocks)
        model.network.norm = _LastNorm(model.network.norm)
    plain = GPReadout(head, depths=0)
    model.set_submodule(path, plain)
    seen = features(base, train, head=plain)
    held_out = features(base, valid, head=plain)
    _, examples, width = seen.values.shape
    readout = GPReadout(head, anchors=min(anchors, examples), depths=width // head.in_features)
    model.set_submodule(path, readout)
    model.set_path("")
    trils = []
    depths_seen = readout.split(seen.one_sample())
    for process, of_depth in zip(readout.processes, depths_seen, strict=True):
        process.place(of_depth)
        tril = process.posterior_tril(of_depth)
        trils.append(tril)
        posterior = families.Full(process.sites()["u"], init_loc=0.0)
        posterior.raw_tril.data.copy_(families.TRIL.inv(tril))
        guide.cover(process.site("u"), posterior)
    _fit_scales(readout, held_out, trils, num_samples=predictor.num_samples)
    return PosteriorPredictive(model, guide, num_samples=predictor.num_samples)


@torch.no_grad()
def _fit_scales(
    readout: GPReadout, held_out: Features, trils: list[Tensor], *, num_samples: int
) -> None:
    """Set the largest amplitude whose NLL of held-out data, by S samples, is the lowest up to its
    standard error.

    In-distribution data hardly tell small amplitudes apart, and with a small one the GPs say
    nothing elsewhere. Each amplitude has the temperature of its lowest NLL.
    """
    from scipy.optimize import minimize_scalar  # here, since it changes the filters of warnings

    labels = held_out.labels
    hidden = readout.split(held_out.one_sample())
    logits = readout.head(hidden[-1])
    variances = []
    for process, of_depth, tril in zip(readout.processes, hidden, trils, strict=True):
        psi = process.kernel_features(of_depth)
        variances.append((1 - psi.square().sum(-1)).clamp(min=0) + (psi @ tril).square().sum(-1))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(REPEATS, num_samples, *logits.shape, generator=generator).to(logits)
    noise = torch.stack(variances).mean(0).sqrt().unsqueeze(-1) * noise

    def losses(log_temperature: float, amplitude: float) -> Tensor:
        scaled = logits / math.exp(log_temperature) + amplitude * noise
        log_probs = scaled.log_softmax(-1).logsumexp(1)  # (REPEATS, n, classes)
        of_labels = log_probs[:, torch.arange(len(labels)), labels]
        return -of_labels.double().mean(0)

    profile = []
    for amplitude in AMPLITUDES:
        best = minimize_scalar(lambda *at: float(losses(*at).mean()), (-1, 1), args=(amplitude,))
        profile.append((amplitude, best.x, losses(best.x, amplitude)))
    _, _, lowest = min(profile, key=lambda row: float(row[2].mean()))
    # The last one that is not worse by more than its standard error.
    for amplitude, log_temperature, loss in profile:
        excess = loss - lowest
        if excess.mean() <= excess.std() / math.sqrt(len(excess)):
            readout.amplitude.fill_(amplitude)
            readout.temperature.fill_(math.exp(log_temperature))
