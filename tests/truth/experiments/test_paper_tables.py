"""The transcription of the papers' tables: complete, known names, units, and numbers that the
papers repeat."""

import math

import pandas as pd
import pytest
from scipy import stats

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.data.images.corruptions import ALL, STANDARD
from probattn.experiments.evaluation import methods
from probattn.experiments.studies import paper_comparison, reproduction
from probattn.inference.metrics import OF_CLASSES, ood

METRICS = {
    *OF_CLASSES,
    *(
        f"{detector}_{metric}"
        for detector in ood.DETECTORS
        for metric in ood.OF_DETECTION | ood.WITH_UNKNOWNS
    ),
    "seconds",
}
NAMES = list(reproduction.entries().index)


@pytest.mark.parametrize("name", [name for name in NAMES if len(reproduction.cells_of(name))])
def test_models_methods_and_metrics_are_known_and_numbers_in_their_units(name, tmp_path):
    cells = reproduction.cells_of(name)
    assert set(cells["preset"]) <= set(PRESETS)
    assert {metric for text in cells["metric"] for metric in text.split("+")} <= METRICS
    for method in set(cells["method"]) - {"ensemble"}:
        assert methods.check([method])[-1] == method
    jobs = reproduction.plan(name, out=tmp_path).jobs
    data = [
        jobs[preset, changes][0].settings.data.name
        for preset, changes in cells[["preset", "changes"]].to_numpy()
    ]
    assert (cells.assign(data=data).groupby("block")["data"].nunique() == 1).all()
    assert cells["value"].isna().all() if "figure" in name else cells["value"].notna().all()
    assert not cells.duplicated(["block", "row", "title"]).any()
    largest = cells["scale"] * cells["metric"].map({"nll": 12, "brier": 2, "seconds": 2000}).fillna(
        1
    )
    printed = cells["value"].notna()
    assert cells["value"][printed].between(largest[printed] / 2000, largest[printed]).all()


def test_numbers_agree_where_the_papers_repeat_them():
    """A second check of the transcription."""
    tables = {
        name: reproduction.cells_of(name).set_index(["block", "row", "title"])["value"]
        for name in NAMES
    }
    first, second, fourth = (
        tables[name] for name in ("kep-svgp/table-1", "cgp/table-2", "cgp/table-4")
    )
    for one, other in (
        (first, tables["kep-svgp/table-5"]),
        (first, tables["kep-svgp/table-7"]),
        (second, fourth),
    ):
        common = other.index.intersection(one.index)
        common = common[common.get_level_values("row") == "SGPA"] if one is second else common
        assert len(common) >= 7
        assert (other[common] == one[common]).all()


def test_a_cell_averages_over_its_test_sets():
    assert reproduction.averaged_sets("domain/out-of-domain") == ["domain/out-of-domain"]
    assert reproduction.averaged_sets("ood/svhn+ood/lsun") == ["ood/svhn", "ood/lsun"]
    assert reproduction.averaged_sets("shift/standard/5") == [
        f"shift/{name}/5" for name in STANDARD
    ]
    names = [f"shift/{name}/3" for name in ALL]
    assert sorted(reproduction.averaged_sets("shift/all/3")) == sorted(names)
    categories = [
        reproduction.averaged_sets(f"shift/{name}/3")
        for name in ("noise", "blur", "weather", "digital")
    ]
    assert sorted(sum(categories, [])) == sorted(names)
    frame = pd.DataFrame(
        {"seed": [0, 0, 1], "method": "posterior", "set": ["ood/a", "ood/b", "ood/a"]}
    )
    frame = frame.assign(energy_auroc=[0.5, 0.7, 0.1], entropy_auroc=[0.7, 0.9, 0.1])
    metric = "energy_auroc+entropy_auroc"
    means = paper_comparison.by_seed(
        frame, method="posterior", sets=["ood/a", "ood/b"], metric=metric
    )
    assert means.to_dict() == {0: pytest.approx(0.7)}  # seed 1 lacks a set


def test_the_interval_of_a_difference_is_students_of_our_seeds():
    ours = pd.Series([83.0, 85.0, 84.0])
    row = paper_comparison.difference(ours, 84.58)
    expected = stats.ttest_1samp(ours - 84.58, 0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))
    row = paper_comparison.difference(ours[:1], 84.58)
    assert row["difference"] == pytest.approx(83 - 84.58)
    assert math.isnan(row["low"])
