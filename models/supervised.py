"""Pyro model of a labelled data set: a network and a likelihood."""

import pyro
import pyro.distributions as dist
from torch import Tensor, nn

from probattn import local_sites, name_layers
from probattn.functional import errors, padding
from probattn.guides import latent_sites
from probattn.models import likelihoods
from probattn.models.above import Above
from probattn.models.blocks import Blocks, Transformer
from probattn.models.label_distributions import Masked
from probattn.param_store import StoredModule
from probattn.site_info import site_info
from probattn.sites import join


class Supervised(StoredModule):
    """Pyro model ``y ~ likelihood(network(x))`` of ``num_data`` examples, evaluated on
    mini-batches.

    The likelihood and the local sites are scaled by ``num_data / batch`` and global sites are not,
    so the ELBO of a batch is an unbiased estimate of that of the data set (KEP-SVGP paper, eq. 20).
    It starts in the network's mode, training or evaluation. As a child of a ``PyroModule`` all its
    sites begin with its own path there.

    Args:
        network: ``network(x)`` or ``network(x, mask)`` → outputs ``(*draws, batch, ...)``.
            Posterior samples become an additional dimension on the left, so a network of your own
            indexes from the right: ``z.mean(-2)`` and ``z[..., 0, :]``, where plain PyTorch code
            has ``z.mean(1)`` and ``z[:, 0]``. Its layers are named by their paths,
            ``network.blocks.1.attention``.
        likelihood: a module of :mod:`probattn.models.likelihoods`, or any callable
            ``outputs -> Distribution`` (``(outputs, mask)`` when called with a mask).
        num_data: number of examples in the training set.

    Raises:
        ValueError: num_data below 1.
    """

    def __init__(self, network: nn.Module, likelihood: nn.Module, *, num_data: int) -> None:
        super().__init__()
        if num_data < 1:
            raise ValueError(f"num_data is the size of the training set, got {num_data}")
        self.network = network
        self.likelihood = likelihood
        self.num_data = num_data
        self.training = network.training
        self.set_path("")
        list(latent_sites(self))

    def set_path(self, path: str) -> None:
        """Receive the path below the root PyroModule, with which the names of sites begin."""
        super().set_path(path)
        name_layers(self, path, registers=False)
        self.label_site = join(path, "y")

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Sample the labels, or observe them.

        Args:
            x: inputs ``(batch, ...)``.
            y: labels ``(batch, ...)``, or None to sample them.
            mask: ``(batch, tokens)``, True at real tokens. Inputs ``(batch, tokens, ...)`` of
                numbers are set to 0 at padding, whatever they are there.

        Returns:
            The value of site ``y``: the observed labels, or samples ``(*draws, batch, ...)``.

        Raises:
            ValueError: outputs whose batch shape does not end with the batch; labels whose shape
                differs from the likelihood's, which would broadcast to a wrong loss; labels outside
                its support.
        """
        with local_sites(batch=x.shape[0], num_data=self.num_data):
            likelihood = self.likelihood_of(x, mask)
            if y is not None:
                _check_labels(likelihood, y, x.shape[:1] + likelihood.event_shape)
            return self.sample_labels(likelihood, y)

    def sample_labels(self, likelihood: dist.TorchDistribution, y: Tensor | None = None) -> Tensor:
        """Sample the labels of a likelihood at their site, or observe them."""
        infer = site_info(local=True, label=True)
        return pyro.sample(self.label_site, likelihood, obs=y, infer=infer)

    def above(self) -> "Above | None":
        """Return the model above its first stochastic block; None for a network that does more
        than its blocks: one with a forward of its own, or another module in their place."""
        network_type = type(self.network)
        has_own_forward = network_type.forward is not Transformer.forward
        is_plain = not has_own_forward and type(self.network.blocks) is Blocks
        return Above(self) if is_plain else None

    def likelihood_of(self, x: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; arguments as for :meth:`forward`.

        Raises:
            ValueError: outputs whose batch shape does not end with the batch.
        """
        x = padding.zeroed(x, mask)
        extra = () if mask is None else (mask,)
        likelihood = self.likelihood(self.network(x, *extra), *extra)
        if likelihood.batch_shape[-1:] != x.shape[:1]:
            raise ValueError(
                f"the likelihood of {x.shape[0]} inputs has batch shape "
                f"{tuple(likelihood.batch_shape)}; it must end "
                "with the batch: draws are on the left, so networks index from the right, "
                "z.mean(-2) and not z.mean(1)"
            )
        return likelihood


class Classifier(Supervised):
    """Supervised model with a categorical likelihood: one class per example.

    Args:
        network: returns logits ``(*draws, batch, classes)``.
        num_data: number of examples in the training set.
        class_weights: a positive weight per class (see
            :class:`~probattn.models.likelihoods.Categorical`), or None.
    """

    def __init__(
        self, network: nn.Module, *, num_data: int, class_weights: likelihoods.Weights = None
    ) -> None:
        super().__init__(network, likelihoods.Categorical(class_weights), num_data=num_data)


def _check_labels(likelihood: dist.TorchDistribution, y: Tensor, shape: tuple[int, ...]) -> None:
    """Check the shape of labels, and that those of examples or of real tokens are classes; Pyro
    checks other supports.

    Raises:
        ValueError: another shape, or other labels, with their rows.
    """
    if y.shape != shape:
        raise ValueError(
            f"the likelihood takes labels of shape {tuple(shape)}, got {tuple(y.shape)}"
        )
    tokens = getattr(likelihood, "base_dist", likelihood)
    classes = getattr(tokens, "base_dist", tokens)
    if isinstance(classes, dist.Categorical):
        number = classes.param_shape[-1]
        if isinstance(tokens, Masked):
            y = y.where(tokens.real.reshape(-1, *y.shape)[0], 0)  # of any draw

        def error(rows: list[int]) -> ValueError:
            actual = f"{y.min()}..{y.max()} (rows {sorted(set(rows))[:10]} of the batch)"
            return ValueError(f"labels must lie in 0..{number - 1}, got {actual}")

        errors.refuse((y < 0) | (y >= number), error)
