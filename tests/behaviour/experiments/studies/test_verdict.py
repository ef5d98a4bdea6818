"""The conclusion of a comparison says what its intervals say."""

import math
from dataclasses import replace

import pytest
from evaluated_runs import random_prediction, run, store

from probattn.experiments.evaluation.seed_statistics import Cell
from probattn.experiments.studies import compare
from probattn.experiments.studies.verdict import Gap, verdict
from probattn.inference import metrics


def results(folder, rises, *, seeds):
    """Return the results of runs on digits: layer → numbers by which its log probabilities of the
    true class of even and odd examples are raised."""
    folders = []
    for layer, (even, odd) in rises.items():
        for seed in range(seeds):
            prediction = random_prediction(200, seed=seed)
            labels = prediction.labels
            logits = prediction.probs.log()
            logits[range(0, 200, 2), labels[0::2]] += even + 0.01 * seed
            logits[range(1, 200, 2), labels[1::2]] += odd + 0.01 * seed
            prediction = replace(prediction, probs=logits.softmax(-1))
            scores = {"test": {"n": 200} | metrics.evaluate(prediction)}
            kept = run(
                folder / layer / str(seed),
                f"digits/{layer}",
                seed=seed,
                methods={"posterior": scores},
            )
            store(kept, {"test": prediction})
            folders.append(kept)
    return compare.read(folders)


def test_a_clear_difference_is_named_first_and_equal_networks_differ_by_chance(tmp_path):
    clear = verdict(results(tmp_path / "a", {"softmax": (0, 0), "anchored": (1, 1)}, seeds=3))
    assert clear[0].startswith("Take digits/anchored")
    assert "better than digits/softmax by more than chance" in clear[0]
    equal = verdict(results(tmp_path / "b", {"softmax": (0, 0), "anchored": (1, -0.8)}, seeds=3))
    assert not equal[0].startswith("Take")


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_seeds_are_said_and_two_have_no_star(tmp_path, seeds):
    found = results(tmp_path, {"softmax": (0, 0), "anchored": (1, 1)}, seeds=seeds)
    text = " ".join(verdict(found))
    assert {1: "one seed", 2: "two seeds"}[seeds] in text
    assert ("more than chance by" in text or "by more than chance" in text) == (seeds == 1)
    stars = [table.frame.to_string().count("]*") for table in tables(found)]
    assert (sum(stars) > 0) == (seeds == 1)


def tables(found):
    return compare.tables(found.scores, found.comparisons).values()


@pytest.mark.parametrize(
    ("low", "high", "p_value", "word"),
    [
        (0.5, 1.5, math.nan, "on these seeds worse than"),  # two seeds
        (-1.5, -0.5, 0.2, "on these seeds better than"),
        (-1.5, -0.5, 0.01, "better than"),
        (-0.5, 1.5, 0.5, "not distinguishable from"),
    ],
)
def test_a_gap_whose_interval_excludes_zero_is_not_called_indistinguishable(
    low, high, p_value, word
):
    cell = Cell(n=2, mean=1.0, difference=(low + high) / 2, low=low, high=high, p_value=p_value)
    assert Gap("other", 1.0, cell).verdict == word
