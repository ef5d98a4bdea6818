"""The papers' tables are complete; a small one is trained, evaluated and written beside the paper's numbers."""

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
TINY = "train.epochs=3 train.warmup_epochs=0 data.limit=200 network.dim=16 network.depth=2 network.heads=2"
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


@pytest.fixture
def small(tmp_path, monkeypatch):
    """An entry of two models on digits, and one of a data set that is missing."""
    head = "entry,block,row,preset,changes,method,set,metric,title,scale,value,std\n"
    lines = [
        f"made-up/figure-1,digits,MSP,digits/softmax,{TINY},posterior,test,accuracy,ACC,100,83.5,0.4",
        f"made-up/figure-1,digits,MSP,digits/softmax,{TINY},posterior,shift/noise/1,nll,NLL,10,11.1,",
        f"made-up/figure-1,digits,TS,digits/softmax,{TINY},temperature,test,accuracy,ACC,100,83.5,0.4",
        f"made-up/figure-1,digits,TS,digits/softmax,{TINY},temperature,shift/noise/1,nll,NLL,10,11.1,",
        f"made-up/figure-1,digits,Ensemble,digits/softmax,{TINY},ensemble,test,accuracy,ACC,100,86,",
        f"made-up/figure-1,digits,KEP,digits/kep-svgp,{TINY} layer.rank=4,posterior,test,accuracy,ACC,100,84.7,0.6",
        f"made-up/figure-1,digits,KEP,digits/kep-svgp,{TINY} layer.rank=4,posterior,log,seconds,s/epoch,1,30,",
        "made-up/figure-1,CIFAR,MSP,kep-svgp/cifar100-softmax,,posterior,test,accuracy,ACC,100,52.8,0.5",
    ]
    (tmp_path / "corruptions.csv").write_text("group,corruptions\nnoise,gaussian_noise shot_noise\n")
    (tmp_path / "entries.csv").write_text(
        "name,title,source,trials,unavailable,note\nmade-up/figure-1,Digits,no paper,5,,A note.\n"
    )
    (tmp_path / "made-up.csv").write_text(head + "\n".join(lines) + "\n")
    monkeypatch.setattr(reproduction, "PAPERS", tmp_path)
    return tmp_path


def test_a_figure_is_reproduced_and_a_second_call_trains_nothing(small, tmp_path, command, monkeypatch, no_network):
    options = ("--seeds", 2, "--out", tmp_path / "out", "--workers", 1, "--data", tmp_path)
    code, _, err = command("reproduce", "made-up/figure-1", *options)
    assert (code, "CIFAR" in err, (tmp_path / "out").exists()) == (1, True, False)
    arguments = ("reproduce", "made-up/figure-1", "digits/softmax", "digits/kep-svgp", *options)
    assert command(*arguments)[0] == 0
    table = pd.read_csv(tmp_path / "out/made-up/figure-1.csv").set_index(["row", "metric"])
    assert list(table["seeds"]) == [2, 2, 2, 2, 1, 2, 2]
    assert table["low"].notna().sum() == 5  # of all but the ensemble and the seconds
    assert table.loc[("MSP", "accuracy"), "ours"] == table.loc[("TS", "accuracy"), "ours"]
    assert math.isnan(table.loc[("KEP", "seconds"), "difference"])
    page = (tmp_path / "out/made-up/figure-1.md").read_text(encoding="utf-8")
    assert "A note." in page
    assert "| the paper | 83.50 ± 0.40 | 11.10 | – |" in page
    assert "| the paper | 84.70 ± 0.60 | – | 30.00 |" in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("last.pt")}
    monkeypatch.setattr(methods, "fit", lambda *args, **options: pytest.fail("predicted"))
    assert command(*arguments)[0] == 0
    assert len(before) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_models_are_chosen_by_preset_and_changes_are_said(small, tmp_path):
    options = {"only": ["digits/kep-svgp"], "seeds": 1, "changes": ["train.epochs=4"]}
    plan = reproduction.plan("made-up/figure-1", out=tmp_path, **options)
    assert set(plan.cells["row"]) == {"KEP"}
    assert "train.epochs=4" in plan.title
    ((job,),) = plan.jobs.values()
    assert job.settings.epochs == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kep-svgp/tabel-2"], ("unknown table or figure", "kep-svgp/table-2")),
        (["kep-svgp/table-8"], ("not reproduced", "probattn bench")),
        (["kep-svgp/table-1", "kep-svgp/cifar10-sofmax"], ("unknown preset", "kep-svgp/cifar10-softmax")),
    ],
)
def test_what_cannot_be_reproduced_is_an_error_of_one_line(arguments, words, command, is_one_message):
    code, _, err = command("reproduce", *arguments)
    assert code == 1
    assert is_one_message(err, *words)


def test_the_list_has_every_entry_and_a_dry_run_trains_nothing(command, tmp_path):
    code, shown, _ = command("reproduce", "--list")
    assert code == 0
    assert all(name in shown for name in NAMES)
    line = next(line for line in shown.splitlines() if "kep-svgp/table-5" in line)
    assert [cell.strip() for cell in line.split("│")[4:6]] == ["cola", "20"]
    code, shown, _ = command("reproduce", "kep-svgp/table-5", "--dry-run", "--out", tmp_path)
    assert code == 0
    assert shown.count("5 seeds, 50 epochs") == 4
    assert list(tmp_path.iterdir()) == []
