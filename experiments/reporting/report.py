"""Reports of evaluated runs: a self-contained HTML page, and figures as SVG."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from probattn.experiments.evaluation.metric_display import displays
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import model_diagnostics, predictions, shift
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting import html
from probattn.experiments.reporting.html import EmbeddedFigure
from probattn.experiments.reporting.panels import PANELS, Panel
from probattn.experiments.reporting.table import Table, metrics_table, plain_table
from probattn.inference.diagnostics.convergence import SiteConvergence
from probattn.inference.io.files import write_bytes

MEANINGS = {
    "accuracy": "share of right answers.",
    "mcc": "Matthews correlation of answers and truth: 0 for answers that know nothing of the question, such as always "
    "the same; 100 % where all are right.",
    "aurc": "area under the risk–coverage curve: the error rate among the most confident answers, averaged "
    "over how many of them are kept.",
    "auroc": "chance that a right answer has more confidence than a wrong one; 50 % is guessing.",
    "fpr95": "share of the wrong answers that slip through when 95 % of the right ones are accepted.",
    "ece": "expected calibration error: how far confidence is from accuracy, averaged over 15 bins.",
    "nll": "mean negative log-probability of the true class, or log-density of the true number, in nats.",
    "rmse": "root mean squared error of the predicted mean, in units of the labels.",
    "mae": "mean absolute error of the predicted median, in units of the labels.",
    "crps": "continuous ranked probability score, in units of the labels: the absolute error, for distributions.",
    "pit_error": "how far the shares of true numbers below the predicted quantiles are from their levels, on average.",
    "width_90": "mean width of the central 90 % intervals, in units of the labels.",
    "brier": "squared distance from the probabilities to the truth, summed over the classes.",
}


@dataclass(frozen=True)
class Section:
    """Section of a report on one run: its tables, and each panel with its figure, None if it is missing."""

    result: RunResult
    settings: Table
    domains: Table | None
    panels: list[tuple[Panel, EmbeddedFigure | None]]
    diverged_steps: int
    posterior: Table | None
    verdicts: Table | None
    variants: Table | None


def summary_table(results: Sequence[RunResult]) -> Table:
    """Return the table of a report: a row per run in the papers' scale, the best of several in bold."""
    rows = [(result.label, result.metrics) for result in results]
    return metrics_table(rows, corner="run", mark_best=True)


def shift_table(results: Sequence[RunResult]) -> Table | None:
    """Return the means over corruptions and severities, a row per run; None without runs on corrupted images."""
    rows = [(each.label, each.mean_shift) for each in results if each.shift]
    return metrics_table(rows, corner="run, corrupted images", mark_best=True) if rows else None


def write(path: str | os.PathLike, sections: Sequence[Section], *, title: str) -> None:
    """Write a report as one self-contained HTML file, atomically.

    Args:
        path: the file.
        sections: those of its runs, see :func:`section`.
        title: heading of the page.

    Raises:
        ValueError: no runs.
    """
    if not sections:
        raise ValueError("a report needs at least one run")
    results = [each.result for each in sections]
    names = _number_duplicates([result.label for result in results])
    text = html.render(
        "report.html",
        title=title,
        summary=summary_table(results),
        shifted=shift_table(results) if len(results) > 1 else None,
        sizes_differ=len({len(result.labels) for result in results}) > 1,
        meanings=[(metric.title, MEANINGS[key]) for key, metric in displays(results[0].metrics).items()],
        comparisons=list(_comparisons(dict(zip(names, results, strict=True)))) if len(results) > 1 else [],
        names=names,
        runs=sections,
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())


def save_figures(folder: str | os.PathLike, result: RunResult) -> list[Path]:
    """Save the run's figures as ``folder/KEY.svg`` and return their paths; missing ones are left out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for panel in _panels(result):
        figure = panel.draw(result)
        if figure is not None:
            paths.append(folder / f"{panel.key}.svg")
            save_figure(paths[-1], figure)
    return paths


def _comparisons(results: dict[str, RunResult]) -> Iterator[EmbeddedFigure]:
    """Embed the figures that compare several runs."""
    subjects = (
        (
            "Risk–coverage curves",
            predictions.risk_coverage({n: (e.probs, e.labels) for n, e in results.items() if e.has_predictions}),
            "The error rate among the answers kept, for all runs (dashed: the best possible at each run's "
            "accuracy). The lower curve is the better network to rely on when one may decline to answer.",
        ),
        (
            "Accuracy on corrupted images",
            shift.boxes({n: e.shift for n, e in results.items() if e.shift}, metric="accuracy"),
            "The accuracy of all runs on the test images under each corruption of CIFAR-C, over the severities "
            "evaluated.",
        ),
        (
            "Similarity of tokens by depth",
            model_diagnostics.similarity({n: e.similarity for n, e in results.items()}),
            "The mean cosine between the tokens after each attention layer, from the first to the last, for all "
            "runs. A line that climbs towards 1 is a network that makes its tokens alike as it gets deeper.",
        ),
    )
    for subject, figure, caption in subjects:
        if figure is not None:
            yield html.embed(figure, alt=f"{subject} of {', '.join(results)}. {caption}", caption=caption)


def section(result: RunResult) -> Section:
    """Return the section of a report on one run, with its figures drawn."""
    domains = [("test data", result.metrics), *result.domains.items()] if result.domains else []
    rows = [[value for value in step.values() if isinstance(value, float)] for step in result.steps]
    return Section(
        result,
        settings=plain_table(("setting", "value"), [(key, str(value)) for key, value in result.settings.items()]),
        domains=metrics_table(domains, corner="domain") if domains else None,
        panels=[(panel, _embed_panel(panel, result)) for panel in _panels(result)],
        diverged_steps=sum(not all(map(math.isfinite, row)) for row in rows),
        posterior=_posterior_table(result.posterior) if result.posterior else None,
        verdicts=_verdicts_table(result.convergence) if result.convergence else None,
        variants=metrics_table(list(result.variants.items()), corner="each latent site is")
        if result.variants
        else None,
    )


def _panels(result: RunResult) -> list[Panel]:
    """Return the panels that suit a run: its kind of data and of predictions."""
    no_images, is_numbers = bool(result.texts) or result.is_table, result.probs is None
    return [
        panel
        for panel in PANELS
        if not (panel.of_images and no_images)
        and not (panel.of_classes and is_numbers)
        and not (panel.of_numbers and not is_numbers)
    ]


def _embed_panel(panel: Panel, result: RunResult) -> EmbeddedFigure | None:
    figure = panel.draw(result)
    if figure is None:
        return None
    caption = f"{panel.finding(result)} {panel.caption}".strip()
    return html.embed(figure, alt=f"{panel.title} of {result.label}. {caption}", caption=caption, wide=panel.wide)


def _posterior_table(sites: Sequence[SiteConvergence]) -> Table:
    rows = [(row.site, row.size, row.kl, model_diagnostics.ratio(row.kl, row.size), row.std_ratio[0]) for row in sites]
    return plain_table(("site", "scalars", "KL (nats)", "KL per scalar", "ratio of stds"), rows)


def _verdicts_table(sites: Sequence[SiteConvergence]) -> Table:
    rows = []
    for site in sites:
        gain = math.nan if site.gain is None else site.gain / site.num_data
        rows.append((site.site, site.state, gain, site.kl))
    return plain_table(("site", "verdict", "gain of refitting (nats per example)", "KL"), rows)


def _number_duplicates(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once."""
    return [f"{name} ({at})" if names.count(name) > 1 else name for at, name in enumerate(names, 1)]
