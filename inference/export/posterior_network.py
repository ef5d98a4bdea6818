"""Plain torch modules of a trained model: at the posterior mean, or with fixed posterior draws."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pyro.poutine as poutine
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine import Trace
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn import guides
from probattn.handlers import Handler, StoredSites, at_mean, draws, is_amortised, local_posteriors
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.prediction.aggregate import join, summarise
from probattn.inference.prediction.latents import draw_latents
from probattn.inference.prediction.predict import CPU_CHUNK_SIZE
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.result import Prediction
from probattn.programs import device, has_statements, local_params
from probattn.pyro_compat import module_path, remove_effects
from probattn.sites import SiteModule


class PosteriorNetwork(SampledPredictor):
    """Copy of a model in evaluation mode with the values of its global latent sites stored in buffers.

    Built by :func:`mean_network` and :func:`predictor_network`. It has no trainable parameters and is independent of
    further training of the model. Errors are those of :func:`~probattn.inference.predict`; exported, it returns NaN
    instead.

    Calls do not involve Pyro, so any number of threads may call one network at once; those of a network converted by
    :func:`~probattn.models.replace_attention` wait for each other. A model with statements of Pyro's in code outside
    this library, such as ``pyro.sample`` or ``PyroSample``, runs under Pyro's handlers, one thread at a time.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S, or None for the posterior mean.
    """

    def __init__(self, model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int | None) -> None:
        super().__init__()
        self.num_samples = num_samples
        if guide is not None:
            guides.check(model, guide)
        with torch.no_grad(), self._draws():
            latents = draw_latents(model, guide, inputs)
        self._buffer_of_site = {name: f"site/{name.replace('.', '/')}" for name in latents.nodes}
        for name, buffer in self._buffer_of_site.items():
            self.register_buffer(buffer, latents.nodes[name]["value"].detach().clone())
        self.model = copy.deepcopy(model)
        self._needs_pyro = has_statements(self.model) or _has_sites_outside_modules(self.model, latents)
        if not self._needs_pyro:
            remove_effects(self.model)
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
            ValueError: a latent site with neither a stored value nor a posterior in its layer; outputs NaN or Inf.
            NumericalError: a layer's numerics failed.
        """
        return self._predict(x, mask, None)

    def _predict(
        self, x: Tensor, mask: Tensor | None, y: Tensor | None, *, device: torch.device | None = None
    ) -> Prediction:
        values = {name: self.get_buffer(buffer) for name, buffer in self._buffer_of_site.items()}
        stored = StoredSites(values, num_samples=self.num_samples)
        with self._under_pyro(stored) if self._needs_pyro else stored.active():
            self.model(x.to(device), None, *(() if mask is None else (mask.to(device),)))
        number = self.num_samples or 1
        prediction = summarise(stored.likelihood, y, x.device, num_samples=number, keep_draws=False)
        return replace(prediction, expected_entropy=None) if self.num_samples is None else prediction

    @contextmanager
    def _under_pyro(self, stored: StoredSites) -> Iterator[None]:
        """Handlers that set the sites of Pyro's own statements."""
        handlers = (self._draws(), _SubstituteSites(stored), local_posteriors(), poutine.mask(mask=False))
        with local_params(self.model), ExitStack() as stack:
            for handler in handlers:
                stack.enter_context(handler)
            yield

    def _draws(self) -> Handler:
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


class _SubstituteSites(Handler):
    """Handler that sets global sites to stored values and records the likelihood of the labels without sampling."""

    def __init__(self, stored: StoredSites) -> None:
        super().__init__()
        self.stored = stored

    def _pyro_sample(self, msg: Message) -> None:
        name = msg["name"]
        if name == "y":
            self.stored.likelihood = msg["value"] = msg["fn"]
            msg["done"] = True
        elif isinstance(msg["fn"], TorchDistributionMixin) and not (msg["is_observed"] or is_amortised(msg)):
            msg["value"], msg["done"] = self.stored[name], True


def _has_sites_outside_modules(model: nn.Module, latents: Trace) -> bool:
    """Return True if a global site is not named by the path of one of the modules that can read stored values."""
    paths = {module_path(part) for part in model.modules() if isinstance(part, SiteModule)}
    sites = (name for name, site in latents.nodes.items() if not site["infer"].get("is_auxiliary"))
    return any(name.rpartition(".")[0] not in paths for name in sites)
