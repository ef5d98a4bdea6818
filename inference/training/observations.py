"""Observed values and the laws that they are observed under, checked without waiting for the device."""

from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution

from probattn.inference.prediction.mixture import innermost, masked, parameter_checks
from probattn.inference.programs import required
from probattn.messages import is_auxiliary, law_of, value_of


def checks(trace: Trace) -> list[Tensor]:
    """Return True, on the device, for each observed value of a model, and parameter of its law, that PyTorch allows."""
    found = []
    for site in trace.nodes.values():
        if site["type"] == "sample" and site["is_observed"] and not is_auxiliary(site):
            found += [*parameter_checks(law_of(site)), *_value_checks(law_of(site), value_of(site))]
    return found


def _value_checks(law: Distribution, value: Tensor) -> list[Tensor]:
    """Return whether all values at real tokens have a density; nothing for a distribution that does not say which."""
    inner, tokens = innermost(law), masked(law)
    try:
        is_supported = required(inner.support).check(value)
    except (AttributeError, NotImplementedError):
        return []
    return [(is_supported if tokens is None else is_supported | ~tokens._mask).all()]
