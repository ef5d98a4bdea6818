"""`probattn compare` and `probattn study`."""

import json
from xml.etree import ElementTree

from probattn.experiments.config import presets
from probattn.experiments.evaluation import evaluate
from probattn.experiments.runs import train
from probattn.experiments.studies import study

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def test_compare_prints_and_writes_tables_and_figures(command, evaluated, tmp_path):
    out, kep, softmax = tmp_path / "compared", evaluated[KEP], evaluated[SOFTMAX]
    code, text, err = command("compare", softmax, kep, "--out", out)
    assert (code, err) == (0, "")
    values = {run: json.loads((run / "metrics.json").read_text())["metrics"] for run in (kep, softmax)}
    for words in ("Test data", "Corrupted test images", "AUROC", KEP, SOFTMAX):
        assert words in text
    difference = 100 * (values[kep]["accuracy"] - values[softmax]["accuracy"])
    assert f"{difference:+.2f}" in text.replace("−", "-")
    names = {path.name for path in out.iterdir()}
    assert {"test.md", "test.tex", "test.csv", "shift.md", "ood-letters-auroc.csv", "ood-letters-fpr95_in.tex"} <= names
    assert "seeds.csv" in names
    assert {"test.svg", "shift.svg", "shift-accuracy.svg", "ood-letters-auroc.svg"} <= names
    lines = (out / "seeds.csv").read_text().splitlines()
    for run, preset in ((kep, KEP), (softmax, SOFTMAX)):
        assert f"{preset},0,test,,accuracy,{values[run]['accuracy']!r}" in lines
    for path in out.glob("*.svg"):
        ElementTree.parse(path)


def test_compare_of_a_run_that_was_not_evaluated(command, kep, tmp_path, is_one_message):
    code, text, err = command("compare", kep, "--out", tmp_path / "out")
    assert (code, text) == (1, "")
    assert is_one_message(err, "was not evaluated", "probattn evaluate")
    assert not (tmp_path / "out").exists()


def test_a_study_takes_presets_or_layers(command, tmp_path, is_one_message):
    code, out, err = command("study", "digits/cgp", "--layers", "softmax", "--out", tmp_path / "study")
    assert (code, out) == (1, "")
    assert is_one_message(err, "give presets, or --layers", "not both")
    assert not (tmp_path / "study").exists()


def test_study_trains_evaluates_and_compares(command, tmp_path, monkeypatch, tiny):
    done = []

    def instead(todo, *, by, workers, say):
        assert by == ["temperature"]
        for job in todo:
            settings = presets.preset(job.preset).with_changes([*tiny, f"train.seed={job.seed}"])
            train.train(settings, job.folder, name=job.preset, progress=False)
            evaluate.evaluate(job.folder)
            done.append((job.preset, job.seed, workers))

    monkeypatch.setattr(study, "run_study", instead)
    code, text, err = command(
        "study", "--out", tmp_path / "study", "--seeds", "2", "--workers", "3", "--method", "temperature"
    )
    assert (code, err) == (0, "")
    assert done == [(name, seed, 3) for seed in (0, 1) for name in (SOFTMAX, KEP)]
    assert "ensemble" in text
    assert (tmp_path / "study" / "comparison" / "test.md").exists()
