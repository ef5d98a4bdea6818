"""The report says what it was given: numbers read back from the axes and from the HTML equal the result."""

import base64
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from rich.console import Console

from probattn.experiments.evaluation.metric_display import COLUMNS
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import model_diagnostics, predictions
from probattn.experiments.reporting import html, report
from probattn.inference import Prediction, metrics

VOID = {"meta", "img", "br", "wbr", "hr"}


def result(name="softmax", *, n=60, classes=4, channels=1, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, classes, generator=generator)).softmax(-1)
    labels = torch.where(
        torch.rand(n, generator=generator) < 0.7,
        probs.argmax(-1),
        torch.randint(0, classes, (n,), generator=generator),
    )
    if n:
        labels[0] = (probs[0].argmax() + 1) % classes  # at least one wrong answer
    ramp = torch.arange(n, dtype=torch.uint8)[:, None, None, None]
    given = {
        "name": name,
        "command": f"probattn train {name}",
        "settings": {"epochs": 2, "optimiser.lr": 1e-3},
        "metrics": metrics.evaluate(probs, labels),
        "steps": [
            {"step": t, "epoch": t // 4, "loss": 3.5 - t / 4, "nll": 2.5 - t / 4, "kl/a.u": 1.0, "lr": 0.1}
            for t in range(8)
        ],
        "epochs": [{"epoch": e, "step": 4, "valid/accuracy": 0.5 + e / 4, "valid/nll": 1 - e / 4} for e in (0, 1)],
        "probs": probs,
        "labels": labels,
        "images": ramp.expand(n, channels, 5, 5).contiguous(),  # image i is filled with i
        "classes": tuple(f"class {c}" for c in range(classes)),
        "spectra": {},
        "posterior": [],
        "variants": {},
    }
    return RunResult(**(given | changes))


def probabilistic(name="kep-svgp", n=60, **changes):
    spectra = {"network.blocks.0.attention": (torch.tensor([[4.0, 2, 1], [3, 1, 0.5]]), torch.tensor([[4.0, 2]] * 2))}
    rows = [
        {
            "site": "network.blocks.0.attention.u",
            "kl": 60.0,
            "size": 120,
            "prior_std": 2.0,
            "posterior_std": 0.5,
        },
        {
            "site": "network.blocks.1.attention.u",
            "kl": 3.0,
            "size": 12,
            "prior_std": 1.0,
            "posterior_std": 1.5,
        },
    ]
    posterior = [{**row, "posterior_mean_rms": 0.75} for row in rows]
    base = result(name, seed=1, n=n)
    variants = {"drawn from q": base.metrics, "drawn from the prior": dict.fromkeys(metrics.DISPLAY, 0.4321)}
    similarity = {"network.blocks.0.attention": 0.25, "network.blocks.1.attention": 0.75}
    given = {"spectra": spectra, "posterior": posterior, "variants": variants, "similarity": similarity}
    return replace(base, **(given | changes))


class Reader(HTMLParser):
    """Checks nesting, and collects the tables, images, links and text of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.tables, self.images, self.tags, self.text = [], [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "img":
            self.images.append(dict(attrs))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append({"text": "", "best": False, **dict(attrs)})
        if tag == "strong":
            self.tables[-1][-1][-1]["best"] = True
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if "table" in self.open and self.open[-1] in ("td", "th", "strong", "small"):
            self.tables[-1][-1][-1]["text"] += data


def read(path, results, title="a title", *, draw=False):
    """Write a report and parse it; drawing takes most of the time, and most tests look at other things."""
    with pytest.MonkeyPatch.context() as patch:
        if not draw:
            patch.setattr(html, "svg", lambda _: b"<svg/>")
        report.write(path, results, title=title)
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def heights(container):
    return [bar.get_height() for bar in container]


# ---------------------------------------------------------------- the numbers in the figures


def test_reliability_bars_are_the_accuracies_of_the_bins():
    edge = float(np.linspace(0, 1, 16)[9])  # 0.6, belongs to the bin that it opens
    confidence = torch.tensor([0.55, 0.58, edge, 0.95, 0.97, 1.0], dtype=torch.float64)  # bins 8 8 9 14 14 14
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.tensor([0, 1, 0, 0, 0, 1])
    top, below = predictions.reliability(probs, labels).axes
    accuracy, gap = top.containers
    assert heights(accuracy) == pytest.approx([1 / 2, 1, 2 / 3])
    assert [bar.get_x() + bar.get_width() / 2 for bar in accuracy] == pytest.approx([8.5 / 15, 9.5 / 15, 14.5 / 15])
    assert [bar.get_y() for bar in gap] == pytest.approx([1 / 2, 1, 2 / 3])
    means = [0.565, 0.60, 2.92 / 3]
    assert [bar.get_y() + bar.get_height() for bar in gap] == pytest.approx(means)
    assert heights(below.containers[0]) == [2, 1, 3]
    error = (2 * (0.565 - 0.5) + (1 - 0.6) + 3 * (2.92 - 2) / 3) / 6
    assert top.get_title("left") == f"Reliability: ECE {100 * error:.2f} %"


def test_reliability_title_agrees_with_the_metric():
    run = result(n=400)
    title = predictions.reliability(run.probs, run.labels).axes[0].get_title("left")
    assert title == f"Reliability: ECE {100 * run.metrics['ece']:.2f} %"


def test_risk_coverage_lines_are_the_metric_and_the_best_ranking():
    first, second = result(), result(seed=3)
    runs = {"one": (first.probs, first.labels), "two": (second.probs, second.labels)}
    figure = predictions.risk_coverage(runs)
    lines = figure.axes[0].lines
    for (probs, labels), line, ideal in zip(runs.values(), lines[0:4:2], lines[1:4:2], strict=True):
        coverage, risk = metrics.risk_coverage(probs, labels)
        np.testing.assert_allclose(line.get_xdata(), coverage)
        np.testing.assert_allclose(line.get_ydata(), risk)
        # right answers first, by hand
        right = int((probs.argmax(-1) == labels).sum())
        best = [max(0, kept - right) / kept for kept in range(1, len(labels) + 1)]
        np.testing.assert_allclose(ideal.get_ydata(), best, atol=1e-12)
        assert ideal.get_ydata()[-1] == pytest.approx(risk[-1].item())
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names[:2] == ["one", "two"]
    assert lines[0].get_color() != lines[2].get_color()


def test_confidence_histograms_are_shares_of_right_and_of_wrong():
    confidence = torch.tensor([0.52, 0.97, 0.98, 0.99, 0.61])
    probs = torch.stack([confidence, 1 - confidence], 1)
    right, wrong = predictions.confidence(probs, torch.tensor([0, 0, 0, 0, 1])).axes
    assert right.get_title("left") == "4 right answers"
    assert wrong.get_title("left") == "1 wrong answer"
    shares = heights(right.patches)
    assert (shares[10], shares[19], sum(shares)) == pytest.approx((0.25, 0.75, 1))
    assert heights(wrong.patches)[12] == pytest.approx(1)
    assert to_hex(right.patches[0].get_facecolor()) != to_hex(wrong.patches[0].get_facecolor())


def gallery_indices(figure):
    return [int(ax.images[0].get_array().flat[0]) for ax in figure.axes if ax.images]


@pytest.mark.parametrize("channels", [1, 3])
def test_gallery_shows_exactly_the_most_uncertain_and_the_most_confidently_wrong(channels):
    run = result(channels=channels)
    p = run.probs.double().numpy()
    entropy = -(p * np.log(p)).sum(-1)
    expected = np.argsort(-entropy)[:12].tolist()
    assert predictions.most_uncertain(run.probs) == expected
    figure = predictions.gallery(run.images, run.probs, run.labels, run.classes, expected)
    assert gallery_indices(figure) == expected

    confidence, answer = p.max(-1), p.argmax(-1)
    wrong = [i for i in np.argsort(-confidence) if answer[i] != run.labels[i]][:12]
    assert len(wrong) == 12
    assert predictions.most_confidently_wrong(run.probs, run.labels) == wrong
    figure = predictions.gallery(run.images, run.probs, run.labels, run.classes, wrong)
    assert gallery_indices(figure) == wrong
    for cell, bars, index in zip(figure.subfigs, figure.axes[1::2], wrong, strict=True):
        true, predicted = int(run.labels[index]), int(answer[index])
        assert cell.get_suptitle() == f"true: class {true}, predicted: class {predicted}"
        assert [bar.get_width() for bar in bars.patches] == pytest.approx(p[index].tolist())
        assert to_hex(bars.patches[true].get_facecolor()) == model_diagnostics.BLUE.lower()
        assert to_hex(bars.patches[predicted].get_facecolor()) == model_diagnostics.ORANGE.lower()


def test_ties_in_the_gallery_keep_the_order_of_the_data():
    probs = torch.full((5, 2), 0.5)
    assert predictions.most_uncertain(probs, 3) == [0, 1, 2]
    assert predictions.most_confidently_wrong(probs, torch.tensor([1, 0, 1, 0, 1]), 2) == [0, 2]


def test_gallery_keeps_colours():
    image = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    image[0, 0] = 200  # red
    ax = predictions.gallery(image, torch.tensor([[0.9, 0.1]]), torch.tensor([1]), "ab", [0]).axes[0]
    assert ax.images[0].get_array()[0, 0].tolist() == [200, 0, 0]


def test_gallery_of_many_classes_shows_the_five_likeliest():
    run = result(classes=100)
    bars = predictions.gallery(run.images, run.probs, run.labels, run.classes, [7]).axes[1]
    top = run.probs[7].topk(5)
    assert [bar.get_width() for bar in bars.patches] == pytest.approx(top.values.tolist())
    assert [text.get_text() for text in bars.get_yticklabels()] == [f"class {c}" for c in top.indices.tolist()]


def test_spectrum_lines_are_the_input():
    values, scales = next(iter(probabilistic().spectra.values()))
    (ax,) = model_diagnostics.spectrum({"layer": (values, scales)}).axes
    assert ax.get_yscale() == "log"
    drawn = [line.get_ydata().tolist() for line in ax.lines]
    assert drawn == [*values.tolist(), values.mean(0).tolist(), *scales.tolist()]
    assert [line.get_xdata()[0] for line in ax.lines] == [1] * 5
    assert [line.get_marker() for line in ax.lines] == ["None"] * 3 + ["o"] * 2
    low, high = ax.get_ylim()
    assert low < 0.5 < 4 < high


def test_spectrum_survives_zeros_and_keeps_every_scale_in_view():
    values, scales = torch.tensor([[10.0, 1e-9, 0]]), torch.tensor([[1e-5]])
    zero = torch.zeros(1, 3)
    first, second = model_diagnostics.spectrum({"a": (values, scales), "b": (zero, zero[:, :1])}).axes
    assert 1e-6 < first.get_ylim()[0] < 1e-5
    assert second.get_yscale() == "linear"


def test_spectrum_leaves_out_layers_that_learn_no_scale():
    values, scales = next(iter(probabilistic().spectra.values()))
    spectra = {"softmax": (values, torch.empty(2, 0)), "kep": (values, scales)}
    (ax,) = model_diagnostics.spectrum(spectra).axes
    assert ax.get_title("left") == "kep"
    assert model_diagnostics.spectrum({"softmax": spectra["softmax"]}) is None


def test_spectrum_by_layer_is_the_mean_of_the_heads_cumulative_shares():
    values = torch.tensor([[4.0, 3, 1], [1, 1, 0]])
    spectra = {"network.a": (values, torch.empty(2, 0)), "network.b": (2 * values[:1, :2], torch.ones(1, 2))}
    (ax,) = model_diagnostics.spectrum_by_layer(spectra).axes
    first, second, threshold = ax.lines
    assert first.get_xdata().tolist() == [1, 2, 3]
    assert first.get_ydata().tolist() == pytest.approx([(4 / 8 + 1 / 2) / 2, (7 / 8 + 2 / 2) / 2, 1])
    assert second.get_ydata().tolist() == pytest.approx([4 / 7, 1])
    assert threshold.get_ydata() == [0.95, 0.95]
    assert first.get_color() != second.get_color()
    assert [text.get_text() for text in ax.figure.legends[0].texts] == ["a", "b", "95 %"]


def test_spectrum_by_layer_leaves_out_heads_and_layers_of_zeros():
    values = torch.tensor([[4.0, 1], [0, 0]])
    (ax,) = model_diagnostics.spectrum_by_layer(
        {"a": (values, torch.empty(2, 0)), "b": (0 * values, torch.empty(2, 0))}
    ).axes
    assert [line.get_ydata()[0] for line in ax.lines[:-1]] == pytest.approx([0.8])
    assert model_diagnostics.spectrum_by_layer({"b": (0 * values, torch.empty(2, 0))}) is None


def test_many_lines_are_told_apart_by_colour_and_dashes():
    spectra = {f"layer {i}": (torch.ones(1, 3), torch.empty(1, 0)) for i in range(20)}
    (ax,) = model_diagnostics.spectrum_by_layer(spectra).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines[:-1]}) == 20


def test_similarity_is_a_line_per_run_over_depth():
    runs = {"kep": {"a": 0.25, "b": 0.5, "c": -0.2}, "softmax": {"x": 0.1, "y": math.nan}, "none": {}}
    figure = model_diagnostics.similarity(runs)
    (ax,) = figure.axes
    first, second = ax.lines
    assert first.get_xdata().tolist() == [1, 2, 3]
    assert first.get_ydata().tolist() == [0.25, 0.5, -0.2]
    np.testing.assert_array_equal(second.get_ydata(), [0.1, math.nan])
    low, high = ax.get_ylim()
    assert low < -0.2
    assert high > 1
    assert [text.get_text() for text in figure.legends[0].texts] == ["kep", "softmax"]
    assert model_diagnostics.similarity({"kep": runs["kep"]}).legends == []


def test_posterior_bars_are_nats_per_scalar_and_ratios_of_spreads():
    left, right = model_diagnostics.posterior(probabilistic().posterior).axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([0.5, 0.25])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([0.25, 1.5])
    assert [text.get_text() for text in left.get_yticklabels()] == [
        "blocks.0.attention.u",
        "blocks.1.attention.u",
    ]
    assert right.get_xlim()[1] > 1.5


def test_training_draws_each_term_once_and_exactly():
    run = result()
    axes = {ax.get_title("left"): ax for ax in model_diagnostics.training(run.steps, run.epochs).axes}
    keys = {
        "negative log-likelihood": "nll",
        "KL a.u": "kl/a.u",
        "loss: the sum of all terms": "loss",
        "learning rate": "lr",
    }
    assert list(axes) == [*keys, "validation accuracy", "validation NLL"]
    for title, key in keys.items():
        (line,) = axes[title].lines
        assert line.get_xdata().tolist() == list(range(8))
        assert line.get_ydata().tolist() == [row[key] for row in run.steps]
        assert axes[title].get_xlabel() == "step"
    assert axes["validation accuracy"].lines[0].get_ydata().tolist() == [0.5, 0.75]
    assert axes["validation accuracy"].get_xlabel() == "epoch"
    assert axes["validation accuracy"].yaxis.get_major_formatter()(0.75) == "75\u00a0%"


def test_training_of_many_steps_has_every_point_and_their_moving_mean():
    values = [float(t % 2) for t in range(100)]
    (ax,) = model_diagnostics.training([{"step": t, "nll": value} for t, value in enumerate(values)], []).axes
    raw, mean = ax.lines
    assert raw.get_ydata().tolist() == values
    assert mean.get_ydata()[2] == pytest.approx(0.4)  # of 0 1 0 1 0
    assert mean.get_ydata()[0] == pytest.approx(1 / 3)  # of 0 1 0


def test_training_leaves_gaps_where_numbers_are_not_finite_and_uses_decades():
    rows = [{"step": t, "nll": v, "loss": math.nan} for t, v in enumerate([1000.0, math.inf, 1.0])]
    (ax,) = model_diagnostics.training(rows, []).axes
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1000, math.nan, 1])
    assert ax.get_yscale() == "log"


def test_figures_with_nothing_to_show_are_none():
    empty = torch.empty(0, 2), torch.empty(0, dtype=torch.long)
    assert model_diagnostics.training([], []) is None
    assert model_diagnostics.training([{"step": 0, "nll": math.nan}], []) is None
    assert model_diagnostics.spectrum({}) is None
    assert model_diagnostics.spectrum_by_layer({}) is None
    assert model_diagnostics.similarity({}) is None
    assert model_diagnostics.similarity({"run": {}, "other": {"a": math.nan}}) is None
    assert model_diagnostics.posterior([]) is None
    assert predictions.reliability(*empty) is None
    assert predictions.confidence(*empty) is None
    assert predictions.risk_coverage({"run": empty}) is None
    assert predictions.gallery(torch.zeros(2, 1, 4, 4), torch.eye(2), torch.arange(2), "ab", []) is None


def test_names_are_drawn_as_they_are():
    assert model_diagnostics.short("network.blocks.6.attention.u") == "blocks.6.attention.u"
    assert model_diagnostics.short("0123456789", limit=7) == "01…6789"
    run = result(n=4, classes=2)
    runs = {"_hidden": (run.probs, run.labels), r"$\frac$ and $x$": (run.probs, run.labels)}
    figure = predictions.risk_coverage(runs)
    figure.draw_without_rendering()
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names[:2] == [" _hidden", r"\$\frac\$ and \$x\$"]


# ---------------------------------------------------------------- the tables


def run_with(name, **changed):
    base = {"accuracy": 0.5, "mcc": 0.25, "aurc": 0.04, "auroc": 0.8, "fpr95": 0.6}
    return result(name, n=4, metrics=base | {"ece": 0.1, "nll": 0.9, "brier": 0.3} | changed)


def test_html_table_has_scales_arrows_and_the_best_in_bold(tmp_path):
    first = run_with("first", accuracy=0.8351, aurc=0.0426, ece=0.12871)
    second = run_with("second", accuracy=0.8470, aurc=0.03515, ece=0.12869, nll=math.nan)
    head, *rows = read(tmp_path / "r.html", [first, second]).tables[0]
    titles = ["ACC ↑%", "MCC ↑%", "AURC ↓×10³", "AUROC ↑%", "FPR95 ↓%", "ECE ↓%", "NLL ↓×10", "Brier ↓%"]
    assert [cell["text"] for cell in head] == ["run", *titles]
    texts = [[cell["text"] for cell in row] for row in rows]
    assert texts[0] == ["first", "83.51", "25.00", "42.60", "80.00", "60.00", "12.87", "9.00", "30.00"]
    assert texts[1] == ["second", "84.70", "25.00", "35.15", "80.00", "60.00", "12.87", "–", "30.00"]
    best = [[cell["best"] for cell in row] for row in rows]
    assert best[0] == [False] * 9  # equal as shown is not better, and one number alone is no contest
    assert best[1] == [False, True, False, True, False, False, False, False, False]


def test_best_is_the_lowest_where_lower_is_better_and_ties_share_it(tmp_path):
    names = ("brier", "fpr95", "auroc")
    runs = [run_with(str(v), **dict.fromkeys(names, v)) for v in (0.2, 0.1, 0.1, 0.3, math.nan)]
    columns = {key: 1 + COLUMNS.index(key) for key in names}
    rows = read(tmp_path / "r.html", runs).tables[0][1:]
    for key, column in columns.items():
        expected = [False, False, False, True, False] if key == "auroc" else [False, True, True, False, False]
        assert [row[column]["best"] for row in rows] == expected
    assert best_of([9.5, 10.5], "aurc") == "9500.00"  # compared as numbers, not as text


def best_of(values, key):
    return html.best([{key: value} for value in values], key)


def test_one_run_has_no_best(tmp_path):
    reader = read(tmp_path / "r.html", [result()])
    assert not any(cell["best"] for table in reader.tables for row in table for cell in row)
    assert "bold" not in reader.text


def test_terminal_table_shows_the_same_numbers_and_best():
    table = report.table([run_with("first [b]", aurc=0.05), run_with("second", accuracy=0.25)])
    cells = [list(column.cells) for column in table.columns]
    assert [text.plain for text in cells[0]] == ["first [b]", "second"]
    assert [text.plain for text in cells[1]] == ["50.00", "25.00"]
    assert [text.style for text in cells[1]] == ["bold", ""]
    assert [text.style for text in cells[2]] == ["", ""]
    assert [text.style for text in cells[3]] == ["", "bold"]  # AURC: lower is better
    assert str(table.columns[7].header) == "NLL ↓\n×10"
    output = Console(file=io.StringIO(), width=100)
    output.print(table)
    assert "first [b]" in output.file.getvalue()


def test_runs_of_before_there_was_an_mcc_show_a_dash_for_it(tmp_path):
    old, new = run_with("old"), run_with("new")
    del old.metrics["mcc"]
    rows = read(tmp_path / "r.html", [old, new]).tables[0][1:]
    assert [[cell["text"] for cell in row[:3]] for row in rows] == [["old", "50.00", "–"], ["new", "50.00", "25.00"]]
    column = list(report.table([old, new]).columns[2].cells)
    assert [text.plain for text in column] == ["–", "25.00"]


def test_posterior_and_variants_tables(tmp_path):
    run = probabilistic()
    tables = read(tmp_path / "r.html", [run]).tables
    posterior, variants = tables[-2:]
    row = [cell["text"] for cell in posterior[1]]
    assert row == ["network.blocks.0.attention.u", "120", "60", "0.5", "2", "0.5", "0.25", "0.75"]
    assert [row[0]["text"] for row in variants] == ["each latent site is", "drawn from q", "drawn from the prior"]
    assert [cell["text"] for cell in variants[2][1:]] == ["43.21", "43.21", "432.10", *["43.21"] * 3, "4.32", "43.21"]
    assert variants[1][1]["text"] == f"{100 * run.metrics['accuracy']:.2f}"


def test_variants_of_local_sites_alone_are_shown_beside_the_missing_posterior(tmp_path):
    reader = read(tmp_path / "r.html", [probabilistic("cgp", posterior=[])])
    assert "no random variable that all examples share" in reader.text
    assert [row[0]["text"] for row in reader.tables[-1]] == [
        "each latent site is",
        "drawn from q",
        "drawn from the prior",
    ]
    assert "those that the examples share and those of a single example" in reader.text
    assert "posterior is their prior by design, as that of the output of CGP attention is" in reader.text


def test_the_caption_says_what_the_attention_matrix_of_each_layer_is():
    captions = {panel.key: panel.caption for panel in report.PANELS}
    matrices = {
        "softmax": "the probabilities of softmax attention",
        "kernel, KEP-SVGP": "the kernel between queries and keys of kernel attention and KEP-SVGP",
        "SGPA": "the kernel between tokens of SGPA",
        "CGP": "the map from values to the mean output of CGP",
    }
    assert [layer for layer, words in matrices.items() if words not in captions["spectrum_by_layer"]] == []


# ---------------------------------------------------------------- the page


def test_page_is_whole_self_contained_and_described(tmp_path):
    runs = [result(n=6), probabilistic(n=4)]
    reader = read(tmp_path / "r.html", runs, title="two runs", draw=True)
    for run in runs:
        assert run.name in reader.text
        assert run.command in reader.text
    assert "optimiser.lr" in reader.text
    assert ("h1", {}) in reader.tags
    assert "two runs" in reader.text
    assert len(reader.images) == 2 + 6 + 10
    assert all(len(image["alt"]) > 30 for image in reader.images)
    assert sum("probabilities" not in i["alt"] and "softmax" in i["alt"] for i in reader.images) == 8
    assert len([tag for tag, _ in reader.tags if tag == "figcaption"]) == len(reader.images)
    for tag, attrs in reader.tags:
        assert tag not in ("script", "link", "iframe")
        assert not any(name.startswith("on") for name in attrs)
        assert attrs.get("src", "data:").startswith("data:")
        assert attrs.get("href", "#").startswith("#")
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert ids == ["run-1", "run-2"]
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "http" not in text
    assert "url(" not in text
    for image in reader.images:  # nor may the drawings load anything
        svg = base64.b64decode(image["src"].split(",", 1)[1]).decode()
        assert "<svg" in svg
        assert all(link.startswith(("#", "data:")) for link in re.findall(r'href="([^"]*)"', svg))


def test_user_text_is_escaped(tmp_path):
    evil = "<script>alert('x')</script>\"&amp;"
    run = probabilistic(
        n=4,
        name=evil,
        command=evil,
        settings={evil: evil},
        classes=("<b>", "$\\frac$", "c", evil),
        variants={evil: {}},
        posterior=[{**probabilistic().posterior[0], "site": evil}],
    )
    reader = read(tmp_path / "r.html", [run, run], title=evil, draw=True)
    assert "script" not in [tag for tag, _ in reader.tags]
    assert reader.text.count(evil) >= 2 * 6 + 3
    assert evil in reader.images[1]["alt"]


def test_writing_is_atomic_and_repeatable(tmp_path, monkeypatch):
    path = tmp_path / "new" / "r.html"
    monkeypatch.setattr(report, "PANELS", report.PANELS[:1])
    report.write(path, [result()], title="t")
    first = path.read_bytes()
    report.write(path, [result()], title="t")
    assert path.read_bytes() == first
    monkeypatch.setattr(report.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        report.write(path, [result("other")], title="t")
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]


def test_save_figures_writes_what_there_is_to_show(tmp_path):
    keys = [
        "reliability",
        "risk_coverage",
        "confidence",
        "training",
        "most_uncertain",
        "most_confidently_wrong",
    ]
    assert report.save_figures(tmp_path / "a", result(n=6)) == [tmp_path / "a" / f"{key}.png" for key in keys]
    paths = report.save_figures(tmp_path / "b", probabilistic(n=4))
    assert [path.stem for path in paths] == [*keys, "spectrum", "spectrum_by_layer", "similarity", "posterior"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def evaluated(n):
    """A run that was evaluated on everything there is."""
    run = probabilistic(n=n)
    valid = Prediction(probs=run.probs, labels=run.labels)
    scores = {"fog": {1: run.metrics, 5: run.metrics}, "contrast": {1: run.metrics, 5: run.metrics}}
    return replace(run, valid=valid, shift=scores, outliers={"letters": Prediction(probs=run.probs.flip(0))})


def all_right(run):
    return replace(run, labels=run.probs.argmax(-1))


OF_ANSWERS = {"reliability", "risk_coverage", "confidence", "most_uncertain", "most_confidently_wrong"} | {
    "abstention",
    "set_sizes",
    "outliers",
}
MISSING = {
    "no shift": ({"shift": {}}, {"shift"}, "not evaluated on corrupted images"),
    "no outliers": ({"outliers": {}}, {"outliers"}, "not evaluated on foreign images"),
    "no validation": ({"valid": None}, {"abstention", "set_sizes"}, "no predictions of validation data"),
    "no steps": ({"steps": [], "epochs": []}, {"training"}, "logged no steps"),
    "no images": ({"images": torch.empty(0)}, {"most_uncertain", "most_confidently_wrong"}, "no images"),
    "nan probabilities": (
        {"probs": torch.full((4, 4), math.nan)},
        OF_ANSWERS,
        "probabilities that are not finite",
    ),
    "no spectra": ({"spectra": {}}, {"spectrum", "spectrum_by_layer"}, "no spectrum of an attention matrix"),
    "no similarity": ({"similarity": {}}, {"similarity"}, "did not measure its tokens"),
    "no settings": ({"settings": {}}, set(), "No settings were recorded."),
    "diverged": (
        {"steps": [{"step": 0, "nll": 1.0}, {"step": 1, "nll": math.nan}]},
        set(),
        "in 1 of 2 logged steps",
    ),
    "one epoch": ({"epochs": result().epochs[:1], "steps": result().steps[:1]}, set(), "Training curves"),
    "no answers": (
        {
            "probs": torch.empty(0, 4),
            "labels": torch.empty(0, dtype=torch.long),
            "images": torch.empty(0, 1, 5, 5),
            "metrics": {},
        },
        OF_ANSWERS,
        "0 examples",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_missing_pieces_are_said_and_not_drawn(tmp_path, case):
    changes, absent, sentence = MISSING[case]
    run = replace(evaluated(n=4), **changes)
    saved = {path.stem for path in report.save_figures(tmp_path, run)}
    assert saved == {panel.key for panel in report.PANELS} - absent
    reader = read(tmp_path / "r.html", [run, result("another")])
    assert sentence in reader.text
    shared = 2 if run.similarity else 1
    assert len(reader.images) == shared + 14 - len(absent) + 6


def test_a_network_without_errors_or_random_variables_is_said_so(tmp_path):
    run = all_right(result())
    run = replace(run, metrics=metrics.evaluate(run.probs, run.labels))
    assert len(predictions.confidence(run.probs, run.labels).axes) == 1
    reader = read(tmp_path / "r.html", [run])
    assert "no wrong answers" in reader.text
    assert "no random variable that all examples share" in reader.text
    assert "deterministic" not in reader.text
    assert reader.tables[0][1][1 + COLUMNS.index("auroc")]["text"] == "–"  # it does not exist
    few = replace(run, labels=torch.cat([(run.labels[:2] + 1) % 4, run.labels[2:]]))
    indices = predictions.most_confidently_wrong(few.probs, few.labels)
    assert sorted(indices) == [0, 1]
    assert gallery_indices(predictions.gallery(few.images, few.probs, few.labels, few.classes, indices)) == indices


def test_the_comparison_has_the_similarity_of_all_runs_that_have_one(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report.figures, "similarity", lambda runs: drawn.append(runs))
    measured = probabilistic(n=4)
    read(tmp_path / "r.html", [measured, result(), probabilistic(n=4)])
    assert drawn[0] == {"kep-svgp (1)": measured.similarity, "softmax": {}, "kep-svgp (3)": measured.similarity}
    drawn.clear()
    read(tmp_path / "r.html", [measured])
    assert drawn == [{"kep-svgp": measured.similarity}]


def test_runs_of_one_name_are_told_apart_and_unequal_sizes_are_mentioned(tmp_path):
    reader = read(tmp_path / "r.html", [result(), result(n=30)])
    assert "softmax (1)" in reader.text
    assert "softmax (2)" in reader.text
    assert "different numbers of examples" in reader.text


def test_evidence_that_does_not_fit_together_is_refused(tmp_path):
    with pytest.raises(ValueError, match="60 labels need as many probs and images"):
        replace(result(), probs=torch.eye(4))
    with pytest.raises(ValueError, match="60 labels need as many probs and images"):
        replace(result(), images=torch.zeros(2, 1, 5, 5))
    with pytest.raises(ValueError, match="4 classes, 1 names"):
        replace(result(), classes=("a",))
    with pytest.raises(ValueError, match="at least one run"):
        report.write(tmp_path / "r.html", [], title="t")


def test_notes_are_escaped_and_keep_numbers_with_their_percent_sign():
    assert html.note("<b> 5 %") == '<p class="note">&lt;b&gt; 5&nbsp;%</p>'


def test_every_metric_of_the_table_is_explained():
    assert set(html.MEANING) == set(COLUMNS) <= set(metrics.DISPLAY)
