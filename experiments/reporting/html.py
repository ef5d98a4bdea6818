"""The HTML of a report: small functions from plain values to escaped markup, and the style they share."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape

import matplotlib
from matplotlib.figure import Figure

from probattn.experiments.evaluation.metric_display import COLUMNS, arrow, scale_name
from probattn.inference.metrics import DISPLAY

MEANING = {
    "accuracy": "share of right answers.",
    "mcc": "Matthews correlation of answers and truth: 0 for answers that know nothing of the question, such as always "
    "the same; 100 % where all are right.",
    "aurc": "area under the risk–coverage curve: the error rate among the most confident answers, averaged "
    "over how many of them are kept.",
    "auroc": "chance that a right answer has more confidence than a wrong one; 50 % is guessing.",
    "fpr95": "share of the wrong answers that slip through when 95 % of the right ones are accepted.",
    "ece": "expected calibration error: how far confidence is from accuracy, averaged over 15 bins.",
    "nll": "mean negative log-probability of the true class, in nats.",
    "brier": "squared distance from the probabilities to the truth, summed over the classes.",
}

STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1.5rem 1rem 4rem;background:#fff;color:#222;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0 1rem}
h2{font-size:1.3rem;margin:3rem 0 .5rem;padding-top:1rem;border-top:1px solid #ddd;overflow-wrap:anywhere}
h3{font-size:1.05rem;margin:2rem 0 .25rem}
p,figcaption,dd{max-width:46rem}
a{color:#00568a}
nav ul{padding-left:1.1rem;margin:.25rem 0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .8rem;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}
th{font-weight:600;vertical-align:bottom}
th small{display:block;font-weight:400;color:#595959}
th:first-child,td:first-child{text-align:left;padding-left:0}
tbody th{font-weight:400;white-space:normal;overflow-wrap:break-word;min-width:7rem}
.best{background:#e8f1f8}
.settings th,.settings td{text-align:left;white-space:normal;overflow-wrap:anywhere}
pre{background:#f6f6f6;padding:.6rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
summary{cursor:pointer;color:#00568a}
dt{font-weight:600}
dd{margin:0 0 .4rem}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr));gap:0 1.5rem}
figure{margin:1.2rem 0;break-inside:avoid}
figure img{display:block;width:100%;height:auto;max-width:var(--width)}
.wide{grid-column:1/-1}
.wide img{min-width:min(48rem,var(--width))}
figcaption,.note{font-size:.9rem;color:#444}
.hint{display:none}
@media (max-width:43rem){.hint{display:block;font-size:.8rem;color:#595959}body{font-size:15px}
th,td{padding:.3rem .45rem}}
@media print{body{max-width:none;padding:0;font-size:10.5pt}nav,.hint{display:none}h2{break-before:page}
h3{break-after:avoid}.wide img{min-width:0}.best{outline:1px solid #222}details::details-content{
content-visibility:visible;block-size:auto}}
"""


def page(title: str, body: str) -> str:
    """Return a whole document that needs nothing from anywhere else."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def panel(figure: Figure, *, alt: str, caption: str, wide: bool) -> str:
    """Return a figure, as SVG inside a data URI, with its alt text and a caption under it."""
    width, height = (round(96 * side) for side in figure.get_size_inches())
    data = base64.b64encode(svg(figure)).decode()
    size = f'width="{width}" height="{height}" style="--width:{width}px"'
    image = f'<img alt="{escape(alt)}" {size} src="data:image/svg+xml;base64,{data}">'
    hint = '<span class="hint">Scroll sideways to see all of it.</span>' if wide else ""
    return (
        f'<figure{" class=wide" if wide else ""}>{hint}<div class="scroll">{image}</div>'
        f"<figcaption>{prose(caption)}</figcaption></figure>"
    )


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG, the same bytes for the same figure."""
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "probattn"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def note(text: str) -> str:
    """Return a sentence that stands where something is missing, or that explains."""
    return f'<p class="note">{prose(text)}</p>'


def prose(text: str) -> str:
    """Return escaped text in which no number stands apart from its %."""
    return escape(text).replace(" %", "&nbsp;%")


def breakable(path: str) -> str:
    """Return an escaped name that may be broken after / and . instead of within a word."""
    return escape(path).replace("/", "/<wbr>").replace(".", ".<wbr>")


def shown(metrics: Mapping[str, float], key: str) -> str:
    """Return a metric in the papers' scale with two decimals, – where it is missing or not finite."""
    value = metrics.get(key, math.nan)
    return f"{DISPLAY[key].scale * value:.2f}" if math.isfinite(value) else "–"


def best(runs: Sequence[Mapping[str, float]], key: str) -> str | None:
    """Return the best value of `key` as shown; None for fewer than two values, or where all are the same."""
    values = {shown(run, key) for run in runs} - {"–"}
    if len(values) < 2:
        return None
    return (max if DISPLAY[key].higher_is_better else min)(values, key=float)


def metrics_table(rows: Sequence[tuple[str, Mapping[str, float]]], *, mark: bool, first: str) -> str:
    """Return the metrics, a row per name, arrows and scales in the header; with `mark` the best are bold."""
    head = [f'<th scope="col">{escape(first)}</th>']
    for key in COLUMNS:
        metric = DISPLAY[key]
        scale = scale_name(metric.scale) or "&nbsp;"
        head.append(f'<th scope="col">{escape(metric.title)} {arrow(metric)}<small>{scale}</small></th>')
    winners = {key: best([run for _, run in rows], key) if mark else None for key in COLUMNS}
    lines = []
    for name, run in rows:
        cells = []
        for key in COLUMNS:
            text = shown(run, key)
            won = text == winners[key]
            cells.append(f'<td class="best"><strong>{text}</strong></td>' if won else td(text))
        lines.append(f'<tr><th scope="row">{breakable(name)}</th>{"".join(cells)}</tr>')
    return table_of("".join(head), lines)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, kind: str = "") -> str:
    """Return a table of escaped text; numbers keep three digits, – where they are not finite."""
    lines = []
    for first, *rest in rows:
        cells = "".join(td(value) for value in rest)
        lines.append(f'<tr><th scope="row">{breakable(str(first))}</th>{cells}</tr>')
    return table_of("".join(f'<th scope="col">{escape(name)}</th>' for name in head), lines, kind=kind)


def td(value: object) -> str:
    """Return a cell."""
    if isinstance(value, float):
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        value = text if math.isfinite(value) else "–"
    return f"<td>{escape(str(value))}</td>"


def table_of(head: str, lines: Sequence[str], *, kind: str = "") -> str:
    """Return a table of finished cells, in a box that scrolls on narrow screens."""
    return (
        f'<div class="scroll"><table{f" class={kind}" if kind else ""}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def meanings() -> str:
    """Return what each column of a metrics table means, folded."""
    items = "".join(f"<dt>{escape(DISPLAY[k].title)}</dt><dd>{prose(MEANING[k])}</dd>" for k in COLUMNS)
    return f"<details><summary>What the columns mean</summary><dl>{items}</dl></details>"
