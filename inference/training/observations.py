"""Observed values and the laws that they are observed under, checked without waiting for the
device."""

from typing import cast

from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from probattn.inference.prediction.mixture import innermost, masked, parameter_checks
from probattn.messages import is_auxiliary, law_of, value_of
from probattn.site_info import info_of


def checks(trace: Trace) -> list[Tensor]:
    """Return True, on the device, for each observed value of a model, and parameter of its law,
    that PyTorch allows."""
    of_sites: list[Tensor] = []
    for site in trace.nodes.values():
        is_observed = site["type"] == "sample" and site["is_observed"]
        if is_observed and not (is_auxiliary(site) or info_of(site).drawn):
            law = law_of(site)
            of_sites += parameter_checks(law)
            of_sites += _value_checks(law, value_of(site))
    return of_sites


def _value_checks(law: Distribution, value: Tensor) -> list[Tensor]:
    """Return whether all values at real tokens have a density; nothing for a distribution that does
    not say which."""
    try:
        is_supported = cast(Constraint, innermost(law).support).check(value)
    except (AttributeError, NotImplementedError):
        return []
    tokens = masked(law)
    if tokens is not None:
        is_supported |= ~tokens._mask
    return [is_supported.all()]
