"""Other domains of the same task, from predictions to comparisons, and texts in the report."""

import json
import math

import pytest
import torch

from probattn.experiments.data.text.text_dataset import load
from probattn.experiments.data.text.tokens import TokenSettings
from probattn.experiments.evaluation import eval_sets
from probattn.experiments.evaluation.scores import Scores, score
from probattn.experiments.plots import examples
from probattn.experiments.studies import compare
from probattn.experiments.studies.collect import Rows
from probattn.inference import Prediction, metrics


def prediction(number, seed):
    torch.manual_seed(seed)
    return Prediction(probs=torch.rand(number, 2).softmax(-1), labels=torch.randint(2, (number,)))


def test_a_domain_has_all_metrics_of_its_own():
    sets = {"valid": prediction(9, 0), "test": prediction(12, 1), "domain/out-of-domain": prediction(7, 2)}
    found = score(sets)
    outside = sets["domain/out-of-domain"]
    assert found.domain == {"out-of-domain": metrics.evaluate(outside.probs, outside.labels)}
    assert set(found.to_json()) == {"test", "domain"}


def test_scores_of_domains_survive_json():
    stored = json.loads('{"test": {"mcc": 0.5}, "domain": {"a": {"mcc": 0.25, "auroc": null}}}')
    found = Scores.from_json(stored)
    assert found.domain["a"]["mcc"] == 0.25
    assert math.isnan(found.domain["a"]["auroc"])


def test_comparisons_have_a_subject_for_each_domain_with_the_rows_that_know_it():
    def run(value):
        return Scores({"mcc": 0.9}, domain={"far": {"mcc": value}})

    rows = Rows(
        {
            "a/cola": {0: run(0.1), 1: run(0.3)},
            "a/cola-softmax": {0: run(0.2), 1: run(0.5)},
            "b": {0: Scores({"mcc": 1})},
        },
        {"a/cola": "a/cola-softmax"},
        {"single models": ["a/cola", "a/cola-softmax", "b"]},
        ["a/cola", "a/cola-softmax", "b"],
    )
    found = compare.comparisons(rows)
    assert list(found) == ["test", "domain-far"]
    assert compare.title("domain-far") == "Test data, far"
    comparison = found["domain-far"]
    assert list(comparison.cells) == ["a/cola", "a/cola-softmax"]
    assert comparison.cells["a/cola"]["mcc"].mean == pytest.approx(0.2)
    drawn = compare.figures(rows, found)
    assert {"domain-far", "domain-far-differences"} <= drawn.keys()
    assert "test-differences" not in drawn  # the test scores are equal: there is no interval


def test_sets_of_a_run_are_its_parts_and_domains(corpus):
    dataset = load("cola", TokenSettings(12, 1, None, 0, None), root=corpus)
    sets = eval_sets.own_sets(dataset)
    assert list(sets) == ["valid", "test", "domain/out-of-domain"]
    assert sets["domain/out-of-domain"].load() is dataset.domains["out-of-domain"]
    assert sets["valid"].load() is dataset.valid


def test_excerpts_show_the_texts_asked_for_and_their_answers(tmp_path):
    texts = ("one costs $5 and two cost $9", "short", "long " * 100, "four")
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.5, 0.5]])
    figure = examples.excerpts(texts, probs, torch.tensor([0, 0, 1, 1]), ("bad", "good"), [2, 0])
    shown = [" ".join(cell.axes[0].texts[0].get_text().split()) for cell in figure.subfigs[:2]]
    assert shown[0].startswith("long long")
    assert shown[0].endswith("…")
    assert len(shown[0]) <= 150
    assert shown[1] == r"one costs \$5 and two cost \$9"
    assert [cell.get_suptitle() for cell in figure.subfigs[:2]] == [
        "true: good, predicted: good",
        "true: bad, predicted: bad",
    ]
    assert [bar.get_width() for bar in figure.subfigs[0].axes[1].patches] == pytest.approx([0.4, 0.6])
    figure.savefig(tmp_path / "excerpts.png")  # dollars are no formula


def test_without_texts_there_are_no_excerpts():
    assert examples.excerpts((), torch.ones(0, 2), torch.ones(0), ("a", "b"), []) is None
