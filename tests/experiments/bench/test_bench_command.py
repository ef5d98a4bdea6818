"""`probattn bench`, from its arguments to its output, on sizes so small that no speed is tested."""

import pandas as pd
import pytest
import torch

from probattn.experiments.bench import measure, suites

TINY = ("network.dim=20", "network.heads=2", "network.depth=1", "network.mlp_dim=8", "data.batch_size=2")
TOY = {"dim": 20, "heads": 2, "batch": 2, "tokens": 64}
ROWS = {"layers": 5, "scaling": 2, "vit": 4}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(measure, "TURN", 0.0)
    layers = ((("softmax", "KEP-SVGP concat"), TOY), (("softmax", "CGP", "SGPA"), TOY))
    monkeypatch.setattr(suites, "SHAPES", {"layers": layers, "scaling": ((("softmax", "kernel"), TOY),)})


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("suite", ROWS)
def test_tables_are_printed_and_written(command, tmp_path, assignments, suite):
    path = tmp_path / "new" / "figures.csv"
    code, text, _ = command("bench", suite, "--rounds", 1, "--out", path, *assignments(TINY))
    assert code == 0
    assert f"torch {torch.__version__}" in text
    rows = pd.read_csv(path)
    assert len(rows) == ROWS[suite]
    assert (rows.groupby("section").ratio.first() == 1).all()
    assert (rows.low <= rows.high).all()
    for ratio in rows.ratio:
        assert f" {ratio:,.3f}" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["layers", "--out", "FILE/x.csv"], "file"),
        (["layers", "--out", "FOLDER"], "--out"),
        (["vit", "--device", "cuda"], "--device cpu"),
        (["vit", "--set", "train.epoch=3"], "did you mean train.epochs"),
    ],
)
def test_what_cannot_be_measured_or_written_is_refused_before(
    command, monkeypatch, tmp_path, is_one_message, arguments, words
):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(suites, "measure", lambda *arguments, **options: pytest.fail("measured"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    places = {"FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path)}
    for name, place in places.items():
        arguments = [each.replace(name, place) for each in arguments]
    code, out, err = command("bench", *arguments)
    assert (code in (1, 2), out) == (True, "")
    assert is_one_message(err, words)
