"""Draws of the latent sites in a prediction, as one tensor per site for the whole data set."""

from collections import defaultdict
from collections.abc import Collection, Iterable

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.inference.diagnostics.sequential_draws import SequentialDraws
from probattn.inference.prediction.latents import current_draw, labels_at
from probattn.inference.prediction.predict import predict
from probattn.messages import is_amortised, is_global_latent, is_latent
from probattn.pyro_internals import HANDLERS


class record(Messenger):  # noqa: N801 - lower case like other handlers
    """Handler that records the latent sites that :func:`~probattn.inference.predict` draws in its context.

    >>> with record() as drawn:
    ...     prediction = predict(model, guide, x, num_samples=200, keep_draws=True)  # doctest: +SKIP
    >>> u = drawn.latents["network.blocks.1.attention.u"]  # doctest: +SKIP

    Row s of ``u``, ``(200, *event)``, belongs to ``prediction.draws[s]``.

    Args:
        sites: names of the sites to record, all by default. A local site takes as much memory as S forward passes over
            the data.

    Attributes:
        shared: draws ``(S, *event)`` of the global sites by name.
        local: pieces ``(S, b, *event)`` of the local sites by name, in the order of the data.
    """

    def __init__(self, sites: Collection[str] | None = None) -> None:
        super().__init__()
        self.sites = sites
        self.shared: dict[str, Tensor] = {}
        self.local: dict[str, list[Tensor]] = defaultdict(list)
        self._sequential = SequentialDraws()

    @property
    def latents(self) -> dict[str, Tensor]:
        """Draws by site: ``(S, *event)`` of global sites, ``(S, n, *event)`` of local ones."""
        return self.shared | {name: torch.cat(pieces, dim=1) for name, pieces in self.local.items()}

    def _pyro_post_sample(self, msg: Message) -> None:
        name, value = msg["name"], msg["value"]
        if not _in_model() or (self.sites is not None and name not in self.sites):
            return
        drawn_jointly = current_draw() is None
        is_drawn = is_latent(msg) or is_amortised(msg)
        if not is_drawn or (value := self._sequential.stack(name, value)) is None:
            return
        if is_global_latent(msg):
            self.shared[name] = value.squeeze(1) if drawn_jointly else value
        else:
            self.local[name].append(value)


def posterior_draws(
    model: nn.Module, guide: nn.Module | None, batch: Tensor | Iterable, *, num_samples: int
) -> dict[str, Tensor]:
    """Draw every latent site as a prediction does, in evaluation mode and without gradients.

    Args:
        model, guide: the model and its guide; None draws from the prior.
        batch: data as for ``predict``. Local sites are drawn given its inputs.
        num_samples: S.

    Returns:
        By site name: ``(S, *event)`` of global sites, ``(S, n, *event)`` of local ones, drawn given row s of the sites
        that they depend on. Empty for a network without latent sites.
    """
    with record() as drawn:
        predict(model, guide, batch, num_samples=num_samples)
    return drawn.latents


def _in_model() -> bool:
    """Return True while the model runs, not the guide: ``predict`` wraps only the model in handlers of local sites."""
    return any(isinstance(handler, labels_at) for handler in HANDLERS)
