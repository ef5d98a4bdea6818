"""Plain torch modules of a trained model: at the posterior mean, or with fixed posterior draws."""

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from probattn.draws import at_mean, draws, sample_dimension
from probattn.inference import guide_checks
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.export.stored_values import store
from probattn.inference.prediction.aggregate import join, summarise
from probattn.inference.prediction.latents import draw_latents
from probattn.inference.prediction.predict import CPU_CHUNK_SIZE
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.result import Prediction
from probattn.inference.programs import device


class PosteriorNetwork(SampledPredictor):
    """Copy of a model in evaluation mode with the values of its global latent sites stored in buffers.

    Built by :func:`mean_network` and :func:`predictor_network`. It has no trainable parameters and is independent of
    further training of the model. Errors are those of :func:`~probattn.inference.predict`; exported, it returns NaN
    instead. Calls do not involve Pyro, so any number of threads may call one network at once; a network converted by
    :func:`~probattn.models.replace_attention` changes its modules during a call, and takes one thread at a time.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S, or None for the posterior mean.

    Raises:
        TypeError: a model that is not :class:`~probattn.models.Supervised`.
        ValueError: a latent site outside the layers.
    """

    def __init__(self, model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int | None) -> None:
        super().__init__()
        if not hasattr(model, "likelihood_of"):
            raise TypeError(f"a network with stored samples needs a models.Supervised, got {type(model).__name__}")
        self.num_samples = num_samples
        if guide is not None:
            guide_checks.check(model, guide)
        with torch.no_grad(), self._draws():
            latents = draw_latents(model, guide, inputs)
        values = {name: site["value"] for name, site in latents.nodes.items() if not site["infer"].get("is_auxiliary")}
        self.model = copy.deepcopy(model)
        store(self.model, values, num_samples)
        self.eval().requires_grad_(False)

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs ``(n, ...)`` or the batches of a loader, all with the stored samples.

        Raises:
            ValueError: as :func:`~probattn.inference.predict` raises.
        """
        parts, target = [], device(self.model)
        with torch.no_grad():
            for x, y, mask in map(unpack_batch, iterate_batches(data)):
                size = max(1, CPU_CHUNK_SIZE // (self.num_samples or 1)) if x.device.type == "cpu" else len(x)
                for start in range(0, len(x), size):
                    part = (None if each is None else each[start : start + size] for each in (x, mask, y))
                    parts.append(self._predict(*part, device=target))
        if not parts:
            raise ValueError("no data to predict: the loader gave no batch")
        return join(parts)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch with the stored samples.

        Raises:
            ValueError: outputs NaN or Inf.
            NumericalError: a layer's numerics failed.
        """
        return self._predict(x, mask, None)

    def _predict(
        self, x: Tensor, mask: Tensor | None, y: Tensor | None, *, device: torch.device | None = None
    ) -> Prediction:
        with sample_dimension(self.num_samples):
            likelihood = self.model.likelihood_of(x.to(device), None if mask is None else mask.to(device))
        number = self.num_samples or 1
        prediction = summarise(likelihood, y, x.device, num_samples=number, keep_draws=False)
        return replace(prediction, expected_entropy=None) if self.num_samples is None else prediction

    def _draws(self) -> AbstractContextManager:
        return at_mean() if self.num_samples is None else draws(self.num_samples)


def mean_network(model: nn.Module, guide: nn.Module | None, *inputs: Tensor) -> PosteriorNetwork:
    """Build a deterministic network with every latent site at its posterior mean.

    Local sites, such as SGPA's g, are at the mean of the posterior that their layer defines.

    Args:
        model, guide: as for :func:`~probattn.inference.predict`.
        inputs: arguments of the guide, if it uses them: guides of this library and Pyro's AutoGuides do not.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=None)


def predictor_network(
    model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int = 10
) -> PosteriorNetwork:
    """Build a network for the posterior predictive with S fixed draws of the global latent sites.

    Draw s is one function, also after export. Local sites are sampled in each call, from torch's global generator. The
    draws dimension appears at the first stochastic layer.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=num_samples)
