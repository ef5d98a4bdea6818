"""HTML reports as pages: whole, self-contained, escaped, small, for any kind of data."""

import base64
import re
import sys
import unicodedata
from dataclasses import replace
from xml.etree import ElementTree

import torch
from pyro.distributions import Normal

from probattn.experiments.data.tables.table_dataset import Table
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.displayable import displayable
from probattn.inference import Prediction, metrics

HOSTILE = ("\x01\x1b[31m", "\u202edcba\udcff", "a\nb\x00\ufffe", "<script>alert('x')</script>\"&amp; $\\frac$ _^{}%#~")
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe]")


def test_no_character_at_all_controls_a_terminal_or_breaks_xml_and_the_text_of_any_language_stays():
    """XML 1.0 allows no control characters but tab and line breaks, no surrogates, neither U+FFFE nor U+FFFF."""
    shown = displayable("".join(map(chr, [*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode])))
    assert {unicodedata.category(character) for character in shown}.isdisjoint({"Cc", "Cs", "Cn", "Co", "Zl", "Zp"})
    assert {character for character in shown if unicodedata.category(character) == "Cf"} == {"\u200c", "\u200d"}
    assert displayable("naïve ± 1 µm, 中文, 👩\u200d🔬") == "naïve ± 1 µm, 中文, 👩\u200d🔬"
    assert displayable("\x1b[31m\t\u202e\udcff") == r"\x1b[31m\t\u202e\udcff"


def numbers(result, n=40):
    """Result of a regression whose errors are 0 and whose intervals are far too wide."""
    truth = torch.linspace(0, 1, n)[:, None]
    law = Normal(truth.expand(2, n, 1), torch.ones(2, n, 1)).to_event(1)
    prediction = Prediction(mean=truth, variance=torch.ones(n, 1), labels=truth, components=(law,))
    scores = metrics.evaluate(prediction)
    return replace(result(n=n), test=prediction, metrics=scores, data=Table(truth, truth), classes=())


def test_page_of_one_run_is_whole_self_contained_and_small(probabilistic, read, tmp_path):
    run = probabilistic(n=60)
    run = replace(run, shift={"fog/3": run.metrics}, ood={"letters": run.test})
    reader = read([run], title="one run", draw=True)
    assert all(text in reader.text for text in (run.command, "optimiser.lr", "one run"))
    for tag, attrs in reader.tags:
        assert tag not in ("script", "link", "iframe")
        assert attrs.get("src", "data:").startswith("data:")
    page = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert len(page) < 1e6
    assert "http" not in page
    for image in reader.images:  # nor may the drawings load anything
        assert image["alt"]
        content = base64.b64decode(image["src"].split(",", 1)[1])
        if content.startswith(b"<?xml"):
            assert all(link.startswith(b"#") for link in re.findall(rb'href="([^"]*)"', content))


def test_any_text_is_visible_and_escaped(probabilistic, read, tmp_path):
    name = "".join(HOSTILE)
    run = probabilistic(n=8, name=name, command=name, settings={name: name}, classes=HOSTILE, domains={name: {}})
    texts = Texts(tuple(f"{HOSTILE[place % 4]} {place}" for place in range(8)), run.test.labels)
    run = replace(run, data=texts, posterior=[replace(run.posterior[0], site=name)])
    reader = read([run, run], title=name)
    assert "script" not in [tag for tag, _ in reader.tags]
    page = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert not RAW.search(page)
    heading = ElementTree.fromstring(re.search(r"<h1>.*?</h1>", page)[0]).text
    assert heading == f"{displayable(name)}".replace(" %", "\u00a0%")


def test_classes_are_listed_the_worst_first_with_counts_and_coverage(result, read):
    labels, answers = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 2, 2, 2])
    covered = {"b": {"coverage": 0.5, "coverage_by_class": 1.0}}
    run = result(n=6, classes=4, labels=labels, probs=0.9 * torch.eye(4)[answers] + 0.025)
    sets = {"plain sets": {"coverage": 0.9, "size": 1.0}}
    run = replace(run, classes=("a", "b", "c", "absent"), by_class=covered, decisions=sets)
    table = read([run]).tables[1]
    assert table == [
        ["class", "examples", "accuracy", "taken for", "in sets", "in sets by class"],
        ["b", "2", "0.0 %", "c (2)", "50.0 %", "100.0 %"],
        ["a", "3", "66.7 %", "b (1)", "–", "–"],
        ["c", "1", "100.0 %", "", "–", "–"],
        ["absent", "0", "–", "", "–", "–"],
    ]


def test_numbers_have_a_page_with_their_intervals_and_largest_errors(result, read):
    reader = read([numbers(result)], draw=True)
    assert "too wide" in reader.text
    assert {row[0].split()[0] for row in reader.tables[0][1:]} == {"RMSE", "MAE", "CRPS", "NLL", "PIT", "width"}
    assert len([image for image in reader.images if image["alt"].startswith(("Predicted", "Calibration"))]) == 2
    assert "Classes" not in reader.text
