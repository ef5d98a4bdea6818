"""The transcription of the papers' tables: complete, known names, units, and numbers that the papers repeat."""

import math

import pandas as pd
import pytest
from scipy import stats

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.data.images.corruptions import ALL, STANDARD
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.metric_display import DETECTORS, DISPLAY, OOD_DISPLAY
from probattn.experiments.studies import paper_comparison, reproduction

NAMES = [f"kep-svgp/table-{n}" for n in range(1, 10)] + [f"kep-svgp/figure-{n}" for n in range(1, 6)]
NAMES += [f"cgp/table-{n}" for n in range(1, 6)] + [f"cgp/figure-{n}" for n in range(1, 5)]
METRICS = {*DISPLAY, *(f"{detector}_{metric}" for detector in DETECTORS for metric in OOD_DISPLAY), "seconds"}
WRONG_AVERAGES = {"Kernel (sym)": {"AUROC", "AUPR-in", "AUPR-out", "FPR95-out"}, "Kernel (asym)": {"AUPR-out"}}
WRONG_AVERAGES["SCGPT"] = WRONG_AVERAGES["Kernel (sym)"]
"""Averages of Table III of the CGP paper that are not those of its rows, as printed."""


def test_all_tables_and_figures_of_both_papers_are_there():
    entries = reproduction.entries()
    assert list(entries.index) == NAMES
    assert [name for name in NAMES if len(reproduction.cells_of(name)) == 0] == list(
        entries.index[entries["unavailable"] != ""]
    )


@pytest.mark.parametrize("name", [name for name in NAMES if len(reproduction.cells_of(name))])
def test_models_methods_and_metrics_are_known_and_numbers_in_their_units(name, tmp_path):
    cells = reproduction.cells_of(name)
    assert set(cells["preset"]) <= set(PRESETS)
    assert {metric for text in cells["metric"] for metric in text.split("+")} <= METRICS
    for method in set(cells["method"]) - {"ensemble"}:
        assert methods.check([method])[-1] == method
    jobs = reproduction.plan(name, out=tmp_path).jobs
    data = [jobs[preset, changes][0].settings.data.name for preset, changes in cells[["preset", "changes"]].to_numpy()]
    assert (cells.assign(data=data).groupby("block")["data"].nunique() == 1).all()
    assert cells["value"].isna().all() if "figure" in name else cells["value"].notna().all()
    assert not cells.duplicated(["block", "row", "title"]).any()
    largest = cells["scale"] * cells["metric"].map({"nll": 12, "brier": 2, "seconds": 2000}).fillna(1)
    printed = cells["value"].notna()
    assert cells["value"][printed].between(largest[printed] / 2000, largest[printed]).all()


def values(name, **where):
    cells = reproduction.cells_of(name)
    for column, value in where.items():
        cells = cells[cells[column] == value]
    return cells.set_index(["block", "row", "title"])["value"]


def test_numbers_agree_where_the_papers_repeat_them():
    """A second check of the transcription."""
    first = values("kep-svgp/table-1")
    for name in ("kep-svgp/table-5", "kep-svgp/table-7"):
        other = values(name)
        common = other.index.intersection(first.index)
        assert len(common) >= 7
        assert (other[common] == first[common]).all()
    second, fourth = values("cgp/table-2", row="SGPA"), values("cgp/table-4", row="SGPA")
    assert len(fourth) == 20
    assert (second == fourth).all()
    third = values("cgp/table-3").unstack("title")
    means = third.drop(index="Average").groupby(level="row").mean()
    for row, wrong in [*WRONG_AVERAGES.items(), ("SGPA", set())]:
        titles = [title for title in means.columns if title not in wrong]
        assert third.loc["Average", titles].loc[row].to_numpy() == pytest.approx(means.loc[row, titles], abs=0.015)


def test_a_cell_averages_over_its_test_sets():
    assert reproduction.averaged_sets("domain/out-of-domain") == ["domain/out-of-domain"]
    assert reproduction.averaged_sets("ood/svhn+ood/lsun") == ["ood/svhn", "ood/lsun"]
    assert reproduction.averaged_sets("shift/standard/5") == [f"shift/{name}/5" for name in STANDARD]
    names = [f"shift/{name}/3" for name in ALL]
    assert sorted(reproduction.averaged_sets("shift/all/3")) == sorted(names)
    categories = [reproduction.averaged_sets(f"shift/{name}/3") for name in ("noise", "blur", "weather", "digital")]
    assert sorted(sum(categories, [])) == sorted(names)
    frame = pd.DataFrame({"seed": [0, 0, 1], "method": "posterior", "set": ["ood/a", "ood/b", "ood/a"]})
    frame = frame.assign(energy_auroc=[0.5, 0.7, 0.1], entropy_auroc=[0.7, 0.9, 0.1])
    metric = "energy_auroc+entropy_auroc"
    means = paper_comparison.by_seed(frame, method="posterior", sets=["ood/a", "ood/b"], metric=metric)
    assert means.to_dict() == {0: pytest.approx(0.7)}  # seed 1 lacks a set


def test_the_interval_of_a_difference_is_students_of_our_seeds():
    ours = pd.Series([83.0, 85.0, 84.0])
    row = paper_comparison.difference(ours, 84.58)
    expected = stats.ttest_1samp(ours - 84.58, 0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))
    row = paper_comparison.difference(ours[:1], 84.58)
    assert row["difference"] == pytest.approx(83 - 84.58)
    assert math.isnan(row["low"])
