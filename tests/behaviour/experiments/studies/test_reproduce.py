"""A small table of a paper is trained, evaluated and written beside the paper's numbers."""

import math

import pandas as pd
import pytest

from probattn.experiments.evaluation import methods
from probattn.experiments.studies import reproduction

TINY = (
    "train.epochs=2 train.warmup_epochs=0 data.limit=100 network.dim=16 network.depth=2 "
    "network.heads=2"
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """An entry of two models on digits, and one of a data set that is missing."""
    head = "entry,block,row,preset,changes,method,set,metric,title,scale,value,std\n"
    softmax, kep = f"digits/softmax,{TINY}", f"digits/kep-svgp,{TINY} layer.rank=4"
    lines = [
        f"digits,MSP,{softmax},posterior,test,accuracy,ACC,100,83.5,0.4",
        f"digits,MSP,{softmax},posterior,shift/noise/1,nll,NLL,10,11.1,",
        f"digits,TS,{softmax},temperature,test,accuracy,ACC,100,83.5,0.4",
        f"digits,TS,{softmax},temperature,shift/noise/1,nll,NLL,10,11.1,",
        f"digits,Ensemble,{softmax},ensemble,test,accuracy,ACC,100,86,",
        f"digits,KEP,{kep},posterior,test,accuracy,ACC,100,84.7,0.6",
        f"digits,KEP,{kep},posterior,log,seconds,s/epoch,1,30,",
        "CIFAR,MSP,kep-svgp/cifar100-softmax,,posterior,test,accuracy,ACC,100,52.8,0.5",
    ]
    (tmp_path / "corruptions.csv").write_text(
        "group,corruptions\nnoise,gaussian_noise shot_noise\n"
    )
    (tmp_path / "entries.csv").write_text(
        "name,title,source,trials,unavailable,note\nmade-up/figure-1,Digits,no paper,5,,A note.\n"
    )
    (tmp_path / "made-up.csv").write_text(
        head + "".join(f"made-up/figure-1,{line}\n" for line in lines)
    )
    monkeypatch.setattr(reproduction, "PAPERS", tmp_path)
    return tmp_path


def test_a_figure_is_reproduced_and_a_second_call_trains_nothing(
    small, tmp_path, command, succeed, monkeypatch, no_network
):
    options = ("--seeds", 2, "--out", tmp_path / "out", "--workers", 1, "--data", tmp_path)
    code, _, err = command("reproduce", "made-up/figure-1", *options)
    assert (code, "CIFAR" in err, (tmp_path / "out").exists()) == (1, True, False)
    arguments = ("reproduce", "made-up/figure-1", "digits/softmax", "digits/kep-svgp", *options)
    succeed(*arguments)
    table = pd.read_csv(tmp_path / "out/made-up/figure-1.csv").set_index(["row", "metric"])
    assert list(table["seeds"]) == [2, 2, 2, 2, 1, 2, 2]
    assert table["low"].notna().sum() == 5  # of all but the ensemble and the seconds
    assert table.loc[("MSP", "accuracy"), "ours"] == table.loc[("TS", "accuracy"), "ours"]
    assert math.isnan(table.loc[("KEP", "seconds"), "difference"])
    page = (tmp_path / "out/made-up/figure-1.md").read_text("utf-8")
    assert "A note." in page
    assert "| the paper | 83.50 ± 0.40 | 11.10 | – |" in page
    assert "| the paper | 84.70 ± 0.60 | – | 30.00 |" in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("last.pt")}
    monkeypatch.setattr(methods, "fit", lambda *args, **options: pytest.fail("predicted"))
    succeed(*arguments)
    assert len(before) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_list_has_every_entry_and_a_dry_run_trains_nothing(succeed, tmp_path):
    shown = succeed("reproduce", "--list")
    assert all(name in shown for name in reproduction.entries().index)
    shown = succeed("reproduce", "kep-svgp/table-5", "--dry-run", "--out", tmp_path)
    assert "kep-svgp/cola" in shown
    assert list(tmp_path.iterdir()) == []
