"""HTML reports as pages: whole, self-contained, accessible, escaped, atomic."""

import base64
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from probattn.experiments.plots import model_diagnostics, svg
from probattn.experiments.reporting import report


def test_page_is_whole_self_contained_and_described(result, probabilistic, read, tmp_path):
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


def test_user_text_is_escaped(probabilistic, read, tmp_path):
    evil = "<script>alert('x')</script>\"&amp;"
    run = probabilistic(
        n=4,
        name=evil,
        command=evil,
        settings={evil: evil},
        classes=("<b>", "$\\frac$", "c", evil),
        variants={evil: {}},
        posterior=[replace(probabilistic().posterior[0], site=evil)],
    )
    reader = read(tmp_path / "r.html", [run, run], title=evil, draw=True)
    assert "script" not in [tag for tag, _ in reader.tags]
    assert reader.text.count(evil) >= 2 * 6 + 3
    assert evil in reader.images[1]["alt"]


def test_writing_is_atomic_and_repeatable(result, tmp_path, monkeypatch):
    path = tmp_path / "new" / "r.html"
    monkeypatch.setattr(report, "PANELS", report.PANELS[:1])
    report.write(path, [report.section(result())], title="t")
    first = path.read_bytes()
    report.write(path, [report.section(result())], title="t")
    assert path.read_bytes() == first
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        report.write(path, [report.section(result("other"))], title="t")
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]


def test_the_comparison_has_the_similarity_of_all_runs_that_have_one(
    result, probabilistic, read, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(model_diagnostics, "similarity", lambda runs: drawn.append(runs))
    measured = probabilistic(n=4)
    read(tmp_path / "r.html", [measured, result(), probabilistic(n=4)])
    assert drawn[-1] == {"kep-svgp (1)": measured.similarity, "softmax": {}, "kep-svgp (3)": measured.similarity}
    drawn.clear()
    read(tmp_path / "r.html", [measured])
    assert drawn == [{"kep-svgp": measured.similarity}]


def test_runs_on_corrupted_images_are_compared_in_a_table_and_a_figure(result, read, tmp_path):
    def shifted(name, *accuracies):
        run = result(name)
        corruptions = {f: {3: run.metrics | {"accuracy": a}} for f, a in zip(("fog", "snow"), accuracies, strict=True)}
        return replace(run, shift=corruptions)

    reader = read(tmp_path / "r.html", [shifted("one", 0.5, 0.25), shifted("other", 1, 0.5), result("none")])
    assert [[cell["text"] for cell in row[:2]] for row in reader.tables[1][1:]] == [
        ["one", "37.50"],
        ["other", "75.00"],
    ]
    assert any(image["alt"].startswith("Accuracy on corrupted images of") for image in reader.images)
    without = read(tmp_path / "r.html", [result("one"), result("other")])
    assert not any(image["alt"].startswith("Accuracy on corrupted images of") for image in without.images)


def test_runs_of_one_name_are_told_apart_and_unequal_sizes_are_mentioned(result, read, tmp_path):
    reader = read(tmp_path / "r.html", [result(), result(n=30)])
    assert "softmax (1)" in reader.text
    assert "softmax (2)" in reader.text
    assert "different numbers of examples" in reader.text


def test_evidence_that_does_not_fit_together_is_refused(result, tmp_path):
    with pytest.raises(ValueError, match="60 labels need as many probs and images"):
        replace(result(), probs=torch.eye(4))
    with pytest.raises(ValueError, match="60 labels need as many probs and images"):
        replace(result(), images=torch.zeros(2, 1, 5, 5))
    with pytest.raises(ValueError, match="4 classes, 1 names"):
        replace(result(), classes=("a",))
    with pytest.raises(ValueError, match="at least one run"):
        report.write(tmp_path / "r.html", [], title="t")


def test_captions_are_escaped_and_keep_numbers_with_their_percent_sign(result, read, tmp_path, monkeypatch):
    panel = replace(report.PANELS[0], caption="<b> 5 %", missing="<i> 6 %")
    missing = replace(panel, draw=lambda _: None)
    monkeypatch.setattr(report, "PANELS", [panel, missing])
    read(tmp_path / "r.html", [result()])
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<figcaption>&lt;b&gt; 5\u00a0%</figcaption>" in page
    assert '<p class="note">&lt;i&gt; 6\u00a0%</p>' in page


def test_a_run_that_was_stopped_early_is_said_so(result, read, tmp_path):
    reader = read(tmp_path / "r.html", [result(n=4, unfinished="30 of 40 epochs"), result("other", n=4)])
    assert "Training stopped early, after 30 of 40 epochs." in reader.text
    assert [row[0]["text"] for row in reader.tables[0]] == ["run", "softmax (30 of 40 epochs)", "other"]


def test_figures_have_the_same_bytes_wherever_they_lie_in_memory():
    figures = []
    for _ in range(3):  # all are kept, so that no two share an address
        figures.append(Figure())
        left, right = figures[-1].subplots(1, 2)
        left.imshow([[0, 1], [2, 3]])
        right.barh([0, 1], [0.5, 1]).patches[0].set_clip_path(Circle((0, 0), 0.5, transform=right.transData))
    first, *others = map(svg.to_svg, figures)
    assert first.count(b"<clipPath") >= 2
    assert first.count(b"url(#clip") >= 2
    assert all(other == first for other in others)
