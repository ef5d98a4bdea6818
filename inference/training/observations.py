"""Observed values and the laws that they are observed under, checked without waiting for the
device."""

from typing import cast

from pyro.poutine import Trace
from torch import Tensor
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
        if not is_observed or is_auxiliary(site) or info_of(site).drawn:
            continue
        law = law_of(site)
        of_sites += parameter_checks(law)
        try:
            has_density = cast(Constraint, innermost(law).support).check(value_of(site))
        except (AttributeError, NotImplementedError):
            continue  # it does not say which values have a density
        tokens = masked(law)
        if tokens is not None:
            has_density |= ~tokens._mask
        of_sites.append(has_density.all())
    return of_sites
