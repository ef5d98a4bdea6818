"""Posterior samples, of Markov chains or of any other origin, in the place of a guide."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyro.distributions as dist
import torch
from pyro.poutine import Trace
from torch import Tensor

from probattn.handlers import is_latent, is_local


@dataclass(frozen=True, eq=False)
class PosteriorSamples:
    """R joint samples of latent sites; row r of every site belongs together.

    Args:
        samples: by site: ``(R, *event)`` of global sites, ``(R, n, *event)`` of those of n examples.
    """

    samples: Mapping[str, Tensor]
    sites: dict[str, tuple[int, bool]] = field(default_factory=dict, init=False, repr=False)
    """By site, the number of dimensions of its event, and True for one value per example."""

    @classmethod
    def of(cls, source: Any) -> Self | None:
        """Return the samples of a mapping, of :func:`~probattn.inference.nuts`, or of Pyro's ``MCMC``; else None.

        Raises:
            ValueError: no sample, or sites with different numbers of samples.
        """
        if isinstance(source, cls):
            return source
        samples = source if isinstance(source, Mapping) else getattr(source, "draws", None)
        if samples is None and callable(getattr(source, "get_samples", None)):
            samples = source.get_samples()
        if not isinstance(samples, Mapping):
            return None
        numbers = {len(values) for values in samples.values()}
        if len(numbers) != 1 or 0 in numbers:
            raise ValueError(
                f"posterior samples must have the same number R ≥ 1 for every site, got {numbers or 'none'}"
            )
        return cls(samples)

    def check(self, prior: Trace) -> None:
        """Remember which sites belong to single examples, by a trace of the model.

        Args:
            prior: a trace of the model with its sites drawn from their priors, without draws dimension.

        Raises:
            ValueError: samples of a site that the model does not draw, or none of one that it does.
        """
        latent = {name: site for name, site in prior.nodes.items() if site["type"] == "sample" and is_latent(site)}
        missing = [name for name in latent if name not in self.samples]
        if missing or set(self.samples) - set(latent):
            raise ValueError(
                f"posterior samples must be those of the model's latent sites, {', '.join(latent)}; got "
                f"{', '.join(self.samples)}"
            )
        for name, values in self.samples.items():
            event, dims = latent[name]["fn"].event_shape, 1 + is_local(latent[name], prior)
            if values.shape[dims:] != event:
                wanted = ", ".join(["R", *["n"] * (dims - 1), *map(str, event)])
                raise ValueError(
                    f"samples of {name} must have shape ({wanted}), with the chains behind one another; got "
                    f"{tuple(values.shape)}"
                )
        self.sites.update({name: (site["fn"].event_dim, is_local(site, prior)) for name, site in latent.items()})

    def check_examples(self, number: int) -> None:
        """Refuse a prediction of another number of examples than the samples of local sites belong to.

        Raises:
            ValueError: naming the site and the numbers.
        """
        for name, values in self.samples.items():
            if self.sites[name][1] and values.shape[1] != number:
                raise ValueError(
                    f"the samples of {name} belong to the {values.shape[1]} examples that the chain was run on, and "
                    f"{number} were predicted: predict these examples, in their order"
                )

    def trace(self, number: int, row: int | None, *, examples: slice) -> Trace:
        """Return a trace that ``poutine.replay`` takes as a guide's.

        Args:
            number: S, the number of samples that are taken, at equal distances; some come several times if R < S.
            row: which of them, or None for all, with the batch shape of ``draws(S)``.
            examples: which examples run, for sites of single ones.

        Raises:
            ValueError: fewer examples in the samples than that.
        """
        trace = Trace()
        for name, values in self.samples.items():
            chosen = (torch.arange(number) * len(values) // number).to(values.device)
            event_dim, local = self.sites[name]
            if local:
                if examples.stop > values.shape[1]:
                    raise ValueError(
                        f"the samples of {name} belong to the {values.shape[1]} examples that the chain was run on: "
                        "predict these, in their order"
                    )
                picked = values[chosen][:, examples]
            else:
                picked = values[chosen].unsqueeze(1)
            if row is not None:
                picked = picked[row] if local else picked[row, 0]
            fn = dist.Delta(picked, event_dim=event_dim)
            told = {"fn": fn, "value": picked, "is_observed": False, "infer": {}, "cond_indep_stack": (), "scale": 1.0}
            trace.add_node(name, name=name, type="sample", args=(), kwargs={}, mask=None, done=True, **told)
        return trace
