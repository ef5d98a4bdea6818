"""The report of a classifier of any origin has the numbers of its predictions."""

import numpy as np
import pytest
import torch

from probattn.experiments.reporting.classifier_report import write_classifier_report
from probattn.inference import Kept, metrics

CLASSES = ("cat", "dog", "<b>cow</b>")


def kept(number, *, seed):
    """Return the prediction of random probabilities, as of another framework."""
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(number, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([random.choice(3, p=row) for row in probs])
    return Kept().predict([(torch.tensor(probs), torch.tensor(labels))])


def test_the_page_has_the_metrics_and_decisions_of_kept_probabilities(tmp_path):
    test = kept(300, seed=0)
    path = tmp_path / "new" / "page.html"
    result = write_classifier_report(path, test, kept(200, seed=1), classes=CLASSES, level=0.8)
    page = path.read_text("utf-8")
    assert f"{100 * metrics.evaluate(test)['accuracy']:.1f}" in page
    assert "<b>cow" not in page
    assert result.metrics["nll"] == pytest.approx(metrics.evaluate(test)["nll"])
    coverage = result.decisions["plain sets"]["coverage"]
    assert abs(coverage - 0.8) < 5 * (0.8 * 0.2 * (1 / 300 + 1 / 200)) ** 0.5
    assert set(result.of_kind("class").index) == set(CLASSES)


def test_names_of_too_few_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="classes"):
        write_classifier_report(
            tmp_path / "page.html", kept(50, seed=0), kept(50, seed=1), classes=CLASSES[:2]
        )
