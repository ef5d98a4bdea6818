"""What came out of evaluated runs: a table for the terminal, a page of HTML, figures as PNG."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.table import Table
from rich.text import Text

from probattn.experiments.evaluation.metric_display import COLUMNS, arrow, scale_name
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import model_diagnostics, predictions
from probattn.experiments.reporting import html
from probattn.experiments.reporting.panels import PANELS
from probattn.inference.metrics import DISPLAY


def table(results: Sequence[RunResult]) -> Table:
    """Return a table for the terminal: a row per run in the papers' scale, the best of several in bold."""
    result = Table()
    result.add_column("run", overflow="fold")
    for key in COLUMNS:
        metric = DISPLAY[key]
        head = f"{metric.title} {arrow(metric)}\n{scale_name(metric.scale)}"
        result.add_column(Text(head), justify="right", no_wrap=True)
    runs = [result.metrics for result in results]
    winners = {key: html.best(runs, key) for key in COLUMNS}
    for each in results:
        texts = {key: html.shown(each.metrics, key) for key in COLUMNS}
        cells = [Text(text, style="bold" if text == winners[key] else "") for key, text in texts.items()]
        result.add_row(Text(each.name), *cells)
    return result


def write(path: str | os.PathLike, results: Sequence[RunResult], *, title: str) -> None:
    """Write one self-contained HTML file; it appears whole, replacing an earlier one, or not at all."""
    if not results:
        raise ValueError("a report needs at least one run")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = _comparison(results) + "".join(_run(each, place) for place, each in enumerate(results, 1))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
        draft = Path(beside) / path.name
        draft.write_text(html.page(title, body), encoding="utf-8")
        os.replace(draft, path)


def save_figures(folder: str | os.PathLike, result: RunResult) -> list[Path]:
    """Save the run's figures as `folder`/KEY.png, those with nothing to show left out; return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for panel in PANELS:
        figure = panel.draw(result)
        if figure is not None:
            paths.append(folder / f"{panel.key}.png")
            figure.savefig(paths[-1], dpi=150)
    return paths


def _comparison(results: Sequence[RunResult]) -> str:
    several = len(results) > 1
    parts = [html.metrics_table([(e.name, e.metrics) for e in results], mark=several, first="run")]
    words = "↑: higher is better, ↓: lower is better. – means that the number does not exist for this run."
    parts.append(html.note(words + (" The best of each column is bold." if several else "")))
    if len({len(e.labels) for e in results}) > 1:
        parts.append(html.note("The runs answered different numbers of examples: compare with care."))
    parts.append(html.meanings())
    if several:
        names = _unique([e.name for e in results])
        runs = dict(zip(names, results, strict=True))
        shared = (
            (
                "Risk–coverage curves",
                predictions.risk_coverage({n: (e.probs, e.labels) for n, e in runs.items() if e.answered}),
                "The error rate among the answers kept, for all runs (dashed: the best possible at each run's "
                "accuracy). The lower curve is the better network to rely on when one may decline to answer.",
            ),
            (
                "Similarity of tokens by depth",
                model_diagnostics.similarity({n: e.similarity for n, e in runs.items()}),
                "The mean cosine between the tokens behind each attention layer, from the first to the last, for all "
                "runs. A line that climbs towards 1 is a network that makes its tokens alike as it gets deeper.",
            ),
        )
        for subject, figure, caption in shared:
            if figure is not None:
                alt = f"{subject} of {', '.join(names)}. {caption}"
                parts.append(html.panel(figure, alt=alt, caption=caption, wide=False))
        links = (f'<li><a href="#run-{at}">{escape(name)}</a></li>' for at, name in enumerate(names, 1))
        parts.append(f"<nav>Run by run:<ul>{''.join(links)}</ul></nav>")
    return "\n".join(parts)


def _run(result: RunResult, place: int) -> str:
    parts = [f'<section id="run-{place}">\n<h2>{escape(result.name)}</h2>']
    parts.append(html.note(f"{len(result.labels)} examples, {len(result.classes)} classes. Made by:"))
    parts.append(f"<pre><code>{escape(result.command)}</code></pre>")
    rows = [(key, str(value)) for key, value in result.settings.items()]
    settings = html.plain_table(("setting", "value"), rows, kind="settings")
    if rows:
        parts.append(f"<details><summary>Settings</summary>{settings}</details>")
    else:
        parts.append(html.note("No settings were recorded."))
    if result.domains:
        rows = [("test data", result.metrics), *result.domains.items()]
        parts.append(html.metrics_table(rows, mark=False, first="domain"))
    parts.append('<div class="panels">')
    for panel in PANELS:
        if panel.of_images and result.texts:
            continue
        figure = panel.draw(result)
        head = f"<h3>{escape(panel.title)}</h3>"
        alt = f"{panel.title} of {result.name}. {panel.caption}"
        parts.append(f'<div class="{"wide" if panel.wide else ""}">{head}')
        if figure is None:
            parts.append(html.note(panel.missing))
        else:
            parts.append(html.panel(figure, alt=alt, caption=panel.caption, wide=panel.wide))
        parts.append((_divergence(result) if panel.key == "training" else "") + "</div>")
    return "\n".join([*parts, "</div>", _posterior_tables(result), "</section>"])


def _divergence(result: RunResult) -> str:
    rows = [[value for value in row.values() if isinstance(value, float)] for row in result.steps]
    bad = sum(not all(map(math.isfinite, row)) for row in rows)
    words = f"Training diverged: in {bad} of {len(rows)} logged steps a term is infinite or not a number."
    return html.note(words) if bad else ""


def _posterior_tables(result: RunResult) -> str:
    parts = []
    if result.posterior:
        stds = ("prior std", "posterior std", "ratio of stds", "RMS of the mean")
        head = ("site", "scalars", "KL (nats)", "KL per scalar", *stds)
        rows = []
        for row in result.posterior:
            kl, prior, spread = (float(row[key]) for key in ("kl", "prior_std", "posterior_std"))
            ratios = model_diagnostics.ratio(kl, row["size"]), prior, spread, model_diagnostics.ratio(spread, prior)
            rows.append((row["site"], str(row["size"]), kl, *ratios, float(row["posterior_mean_rms"])))
        parts.append(html.plain_table(head, rows))
    if result.variants:
        parts.append(html.metrics_table(list(result.variants.items()), mark=False, first="each latent site is"))
        parts.append(
            html.note(
                "The same network with all its latent sites, those that the examples share and those of a single "
                "example, at the mean of their posterior q, drawn from q, and drawn from their priors. Draws from "
                "the prior should be clearly worse: if they are not, the sites have learned nothing, or their "
                "posterior is their prior by design, as that of the output of CGP attention is. Draws from q should "
                "be about as accurate as the mean, and better calibrated."
            )
        )
    return "".join(parts)


def _unique(names: Sequence[str]) -> list[str]:
    """Return names, numbered where one occurs more than once, so that all can be told apart."""
    return [f"{name} ({at})" if names.count(name) > 1 else name for at, name in enumerate(names, 1)]
