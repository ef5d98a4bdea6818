"""Comparison of results in the wide form: public functions on a pandas frame."""

import numpy as np
import pandas as pd
import pytest
from evaluated_runs import random_prediction, run, store

from probattn.experiments.studies import compare
from probattn.experiments.studies.compare import compare_results, comparisons
from probattn.inference import metrics


def frame(values, name="test", **columns):
    """Return results: run → method → accuracy by seed."""
    rows = [
        {
            "run": label,
            "seed": seed,
            "method": method,
            "set": name,
            "n": 50,
            "accuracy": accuracy,
            **columns,
        }
        for label, methods in values.items()
        for method, accuracies in methods.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    return pd.DataFrame(rows)


def test_each_method_is_compared_with_softmax_by_the_same_method_or_alone():
    by = dict.fromkeys(("posterior", "mc-dropout", "temperature"), (0.1, 0.2))
    results = frame({"a/softmax": by, "a/kep": by | {"laplace": (0.3, 0.5)}})
    table = compare_results(results)
    assert table.baselines == {
        "a/softmax + MC dropout": "a/softmax",
        "a/softmax + temperature scaling": "a/softmax",
        "a/kep": "a/softmax",
        "a/kep + MC dropout": "a/softmax + MC dropout",
        "a/kep + temperature scaling": "a/softmax + temperature scaling",
        "a/kep + KFLLLA": "a/softmax",
    }
    cell = table.cells["a/kep + KFLLLA"]["accuracy"]
    assert (cell.mean, cell.difference) == pytest.approx((0.4, 0.25))
    fewer = results.drop(
        results[(results["method"] == "temperature") & (results["run"] == "a/softmax")].index[:1]
    )
    assert (
        compare_results(fewer).baselines["a/kep + temperature scaling"] == "a/softmax"
    )  # without one seed


def test_the_softmax_run_of_the_same_family_and_changes_is_the_baseline_unless_named():
    one = {"posterior": (0.5,)}
    names = [
        "k/imdb-softmax",
        "k/cola-softmax",
        "k/imdb",
        "k/cola (layer.rank=4)",
        "k/cola (train.lr=1)",
        "c/cola",
    ]
    results = frame(dict.fromkeys(names, one))
    pairs = {"k/imdb": "k/imdb-softmax", "k/cola (layer.rank=4)": "k/cola-softmax"}
    assert compare_results(results).baselines == pairs
    replaced = frame(
        dict.fromkeys(
            ["d/softmax softmax", "d/softmax my.package:Attention", "d/softmax (x=1)"], one
        )
    )
    assert compare_results(replaced).baselines == {
        "d/softmax my.package:Attention": "d/softmax softmax"
    }


def test_subjects_are_test_domains_the_mean_over_corruptions_and_detectors_of_each_ood_set():
    one = {"softmax": {"posterior": (0.9,)}, "kep": {"posterior": (0.8,)}}
    shifts = [
        frame({name: {"posterior": (value,)}}, f"shift/fog/{level}")
        for name, value in (("softmax", 0.5), ("kep", 0.3))
        for level in (1, 5)
    ]
    shifts[-1]["accuracy"] = 0.7
    shifts.append(frame({"kep": {"posterior": (0.1,)}}, "shift/snow/1"))
    letters = frame(one, "ood/letters", entropy_auroc=0.6, entropy_fpr95_in=0.4).drop(
        columns="accuracy"
    )
    results = pd.concat(
        [frame(one), frame(one, "domain/far"), *shifts, letters, frame(one, "class/cat")]
    )
    compared = comparisons(results)
    means = [
        f"{kind}, mean"
        for kind in ("Corrupted test images", "Photometric corruptions", "Other corruptions")
    ]
    assert list(compared) == ["Test data", "Test data, far", *means, "Detection of letters, AUROC"]
    values = [compared[title].cells["kep"]["accuracy"].mean for title in means]
    assert values == pytest.approx([(0.3 + 0.7 + 0.1) / 3, 0.5, 0.1])
    assert [
        display.title for display in compared["Detection of letters, AUROC"].metrics.values()
    ] == ["Entropy"]
    fpr = compare_results(results, "ood/letters", metric="fpr95_in")
    assert fpr.cells["kep"]["entropy_fpr95_in"].mean == 0.4


def test_with_one_seed_intervals_are_those_of_resampled_test_examples(tmp_path):
    parts = {"softmax": random_prediction(seed=1), "kep-svgp": random_prediction(seed=2)}
    for layer, part in parts.items():
        scores = {"posterior": {"test": {"n": 40, **metrics.evaluate(part)}}}
        store(run(tmp_path / layer, f"digits/{layer}", methods=scores), {"test": part})
    results = compare.read([tmp_path])
    compared = results.comparisons
    cell = compared["Test data"].cells["digits/kep-svgp"]["nll"]
    draws = np.random.default_rng(0).integers(40, size=(300, 40))
    loss = {layer: -part.log_prob(part.labels).numpy() for layer, part in parts.items()}
    differences = (loss["kep-svgp"] - loss["softmax"])[draws].mean(1)
    half = 1.959964 * differences.std(ddof=1)
    ends = cell.difference - half, cell.difference + half
    assert (cell.low, cell.high) == pytest.approx(ends, rel=1e-5)
    assert "300 paired resamples" in compared["Test data"].note
    compare.write(tmp_path / "out", results)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "results.csv",
        "results.parquet",
        "comparison.md",
        "comparison.tex",
        "differences.svg",
    }
    again = compare.read([tmp_path / "out" / "results.csv"])
    pd.testing.assert_frame_equal(again.scores, results.scores, check_dtype=False)
    assert again.comparisons["Test data"].cells["digits/kep-svgp"]["nll"][:7] == pytest.approx(
        cell[:7], nan_ok=True
    )
    (tmp_path / "out" / "results.parquet").unlink()
    without = compare.read([tmp_path / "out" / "results.csv"]).comparisons["Test data"]
    assert without.cells["digits/kep-svgp"]["nll"].difference == pytest.approx(cell.difference)
    assert "resamples" not in without.note
