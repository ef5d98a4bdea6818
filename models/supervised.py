"""Pyro model of a labelled data set: a network and a likelihood."""

from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.functional import padding
from probattn.guides import latent_sites
from probattn.handlers import local_sites
from probattn.models import likelihoods
from probattn.param_effects import SkipParamEffects
from probattn.pyro_compat import allow_renaming, module_path
from probattn.sites import sample_labels


class Supervised(SkipParamEffects, PyroModule):
    """Pyro model ``y ~ likelihood(network(x))`` of ``num_data`` examples, evaluated on mini-batches.

    The likelihood and the local sites are scaled by ``num_data / batch`` and global sites are not, so the ELBO of a
    batch is an unbiased estimate of that of the data set (KEP-SVGP paper, eq. 20). It starts in the network's mode,
    training or evaluation.

    Args:
        network: ``network(x)`` or ``network(x, mask)`` → outputs ``(*draws, batch, ...)``.
        likelihood: a module of :mod:`probattn.models.likelihoods`, or any callable ``outputs -> Distribution``
            (``(outputs, mask)`` when called with a mask).
        num_data: number of examples in the training set.

    Raises:
        ValueError: num_data below 1; sites whose names would differ from their paths.
    """

    def __init__(self, network: nn.Module, likelihood: nn.Module, *, num_data: int) -> None:
        super().__init__()
        if num_data < 1:
            raise ValueError(f"num_data is the size of the training set, got {num_data}")
        if module_path(network) == "":
            allow_renaming(network)
        self.network, self.likelihood, self.num_data = network, likelihood, num_data
        self.training = network.training
        list(latent_sites(self))

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Sample the labels, or observe them.

        Args:
            x: inputs ``(batch, ...)``.
            y: labels ``(batch, ...)``, or None to sample them.
            mask: ``(batch, tokens)``, True at real tokens. Inputs ``(batch, tokens, ...)`` of numbers are set to 0 at
                padding, whatever they are there.

        Returns:
            The value of site ``y``: the observed labels, or samples ``(*draws, batch, ...)``.

        Raises:
            ValueError: outputs whose batch shape does not end with the batch; labels whose shape differs from the
                likelihood's, which would broadcast to a wrong loss.
        """
        x = padding.zeroed(x, mask)
        with local_sites(batch=x.shape[0], num_data=self.num_data):
            extra = () if mask is None else (mask,)
            likelihood = self.likelihood(self.network(x, *extra), *extra)
            if likelihood.batch_shape[-1:] != x.shape[:1]:
                raise ValueError(
                    f"the likelihood of {x.shape[0]} inputs has batch shape {tuple(likelihood.batch_shape)}; it must "
                    "end with the batch: networks index from the right, since draws are a dimension on the left"
                )
            expected = x.shape[:1] + likelihood.event_shape
            if y is not None and y.shape != expected:
                raise ValueError(f"the likelihood takes labels of shape {tuple(expected)}, got {tuple(y.shape)}")
            return sample_labels(likelihood, y)


class Classifier(Supervised):
    """Supervised model with a categorical likelihood: one class per example.

    Args:
        network: returns logits ``(*draws, batch, classes)``.
        num_data: number of examples in the training set.
    """

    def __init__(self, network: nn.Module, *, num_data: int) -> None:
        super().__init__(network, likelihoods.Categorical(), num_data=num_data)
