"""A metric that is declared once is evaluated, monitored, stored, and shown in every table."""

import pandas as pd
import pytest
import torch
from evaluated_runs import random_prediction
from pyro.distributions import Normal

from probattn.experiments.evaluation import evaluated_run
from probattn.experiments.evaluation.metric_display import columns
from probattn.experiments.reporting import report
from probattn.experiments.studies import compare
from probattn.inference import Prediction, metrics
from probattn.inference.metrics import Metric, ood


def share_wrong(probs, labels):
    return 1 - metrics.accuracy(probs, labels)


ERROR = Metric(share_wrong, "ERR", 100, False, "share of wrong answers, of which fewer are better")


@pytest.fixture
def declared(monkeypatch):
    """The record of a new metric of classes, in the table of its kind."""
    monkeypatch.setitem(metrics.OF_CLASSES, "error", ERROR)


def of_numbers(n=20):
    torch.manual_seed(0)
    law = Normal(torch.randn(3, n, 1), torch.ones(3, n, 1)).to_event(1)
    return Prediction(
        mean=law.mean.mean(0),
        variance=torch.ones(n, 1),
        labels=torch.randn(n, 1),
        components=(law,),
    )


def test_a_new_metric_is_in_scores_comparison_and_report(declared, result):
    parts = {"kep": random_prediction(seed=1), "softmax": random_prediction(seed=2)}
    wrong = {
        name: float((part.predicted != part.labels).double().mean()) for name, part in parts.items()
    }
    frames = [
        evaluated_run.to_frame(
            {"posterior": evaluated_run.score({"test": part})}, run=f"digits/{name}", seed=0
        )
        for name, part in parts.items()
    ]
    results = pd.concat(frames)
    assert list(results["error"]) == pytest.approx(list(wrong.values()))
    compared = compare.comparisons(results)["Test data"]
    cell = compared.cells["digits/kep"]["error"]
    assert cell.difference == pytest.approx(wrong["kep"] - wrong["softmax"])
    table = report.summary_table([result(parts["kep"], name="kep")]).frame
    assert list(table["ERR % ↓"]) == [f"{100 * wrong['kep']:.2f}"]


def test_a_new_metric_is_explained_on_the_page_of_a_run(declared, result, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "figures", lambda result: {})
    report.write(
        tmp_path / "report.html", [report.section(result(random_prediction()))], title="a run"
    )
    page = (tmp_path / "report.html").read_text("utf-8")
    assert ERROR.meaning in page


@pytest.mark.parametrize(
    ("kind", "computed"),
    [
        (metrics.OF_CLASSES, metrics.evaluate(random_prediction())),
        (metrics.OF_NUMBERS, metrics.evaluate(of_numbers())),
        (
            metrics.OF_LABELS,
            metrics.label_metrics(torch.tensor([[0.2, 0.7]]), torch.tensor([[0, 1]])),
        ),
    ],
    ids=["classes", "numbers", "labels"],
)
def test_what_is_computed_and_monitored_is_what_is_declared(kind, computed):
    assert list(computed) == list(kind)
    in_tables = [key for key, metric in kind.items() if metric.in_tables]
    assert list(columns(computed)) == in_tables
    directions = {key: metric.higher_is_better for key, metric in kind.items()}
    monitored = {key: metrics.MONITORS.get(key) for key in kind}
    assert monitored == directions


def test_a_new_metric_of_detection_is_a_column_of_every_detector(monkeypatch):
    def gap(scores, is_ood):
        return float(scores[is_ood].mean() - scores[~is_ood].mean())

    monkeypatch.setitem(ood.OF_DETECTION, "gap", Metric(gap, "Gap", 1, True, "difference of means"))
    parts = {name: random_prediction(seed=n) for n, name in enumerate(("test", "ood/a", "valid"))}
    scores = {"posterior": evaluated_run.score(parts)}
    results = evaluated_run.to_frame(scores, run="softmax", seed=0)
    compared = compare.compare_results(results, "ood/a", metric="gap")
    cell = compared.cells["softmax"]["max_softmax_gap"]
    expected = parts["test"].confidence.mean() - parts["ood/a"].confidence.mean()
    assert cell.mean == pytest.approx(float(expected), rel=1e-5)
