"""Findings of one run in sentences: convergence of its posterior, spread of samples, energy that its scores keep."""

from __future__ import annotations

from collections.abc import Sequence

from probattn.experiments.evaluation.run_result import RunResult
from probattn.inference.diagnostics.convergence import SiteConvergence

SMALL_SHARE = 0.01
"""Share of the entropy below which mutual information counts as practically none."""
WIDE = 0.5
"""Standard deviation, relative to the prior's, from which a posterior is not called narrow."""


def describe_spread(result: RunResult) -> str:
    """Return how far single samples are apart on validation data, and the reason if they hardly are."""
    spread = result.spread
    if spread is None or not result.convergence:
        return ""
    information, quantile = spread["mutual_information"], spread["mutual_information_95"]
    numbers = (
        f"On validation data the mutual information of label and latent variables is {information:.1e} nats (95 % "
        f"quantile {quantile:.1e}), {_percent(_share(spread))} of the entropy of {spread['entropy']:.2f} nats."
    )
    if _share(spread) >= SMALL_SHARE:
        return numbers
    words = "Samples of the attention layers hardly disagree, which says nothing about other inputs."
    return f"{words} {numbers} {_reason(result.convergence)}"


def warnings(result: RunResult) -> list[str]:
    """Return a line for each site whose posterior has not converged, for the terminal."""
    lines = []
    for site in filter(_warns, result.convergence or ()):
        gain = "" if site.gain is None else f", refitting gains {site.gain / site.num_data:.2g} nats per example"
        lines.append(f"posterior of {site.site}: {site.state}{gain}")
    return lines


def describe_energy(result: RunResult) -> str:
    """Return the share of the attention kernel's energy that the scores E keep, by layer."""
    parts = []
    for layer, spectrum in result.spectra.items():
        if spectrum.captured.numel():
            captured, best = (each.mean().item() for each in (spectrum.captured, spectrum.best))
            rank = spectrum.scale.shape[-1]
            parts.append(
                f"In {layer} the {rank} columns of E capture {_percent(captured)} of the energy ‖K_att‖², where "
                f"{rank} columns can capture {_percent(best)}."
            )
    return " ".join(parts)


def describe_examples(result: RunResult) -> str:
    """Return how many examples the spectra are means over, which are few for long inputs."""
    counts = sorted({spectrum.examples for spectrum in result.spectra.values() if spectrum.examples})
    return f"Means over {' to '.join(map(str, counts[:1] + counts[1:][-1:]))} examples." if counts else ""


def _warns(site: SiteConvergence) -> bool:
    return site.state in ("not converged", "collapsed")


def _share(spread: dict[str, float]) -> float:
    return spread["mutual_information"] / spread["entropy"] if spread["entropy"] > 0 else 0.0


def _reason(sites: Sequence[SiteConvergence]) -> str:
    std = _mean_std_ratio(sites)
    if std >= WIDE:
        return (
            f"The posterior's standard deviation is {std:.2f} of the prior's: the latent variables vary, but the "
            "network's output hardly depends on them."
        )
    left = any(site.state == "not converged" for site in sites)
    rest = "; it has not converged, so this is not what the data say" if left else ""
    return f"The posterior's standard deviation is only {std:.2f} of the prior's{rest}."


def _mean_std_ratio(sites: Sequence[SiteConvergence]) -> float:
    return sum(each.size * each.std_ratio[0] for each in sites) / sum(each.size for each in sites)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
