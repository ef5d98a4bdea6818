"""`probattn bench`, from its arguments to its output, on sizes so small that no speed is tested."""

import pandas as pd
import pytest
import torch

from probattn.experiments.bench import measure, suites

TINY = ("network.dim=20", "network.heads=2", "network.depth=1", "network.mlp_dim=8", "data.batch_size=2")
TOY = {"dim": 20, "heads": 2, "batch": 2, "tokens": 64}
ROWS = {"layers": 5, "train": 8, "predict": 2, "scaling": 23}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(measure, "TURN", 0.0)
    monkeypatch.setattr(suites, "SHAPES", ((TOY, ("softmax", "KEP-SVGP concat")), (TOY, ("softmax", "CGP", "SGPA"))))
    monkeypatch.setattr(suites, "SIZES", (8, 16, 24))
    monkeypatch.setattr(suites, "LONGEST", {"kernel": 16})
    monkeypatch.setattr(suites, "SMALL", ("network.depth=2",))
    monkeypatch.setattr(suites, "IMAGES", {"cpu": 6})


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("suite", ROWS)
def test_tables_are_printed_and_written(command, tmp_path, assignments, suite):
    path = tmp_path / "new" / "figures.csv"
    code, text, _ = command("bench", suite, "--rounds", 1, "--out", path, *assignments(TINY))
    assert code == 0
    assert f"torch {torch.__version__}" in text
    rows = pd.read_csv(path)
    assert len(rows) == ROWS[suite]
    timed = rows.dropna(subset="ms")
    assert (timed.groupby("section").ratio.first() == 1).all()
    assert (timed.low <= timed.high).all()
    for ratio in timed.ratio:
        assert f" {ratio:,.3f}" in text
    if suite == "scaling":
        assert "kernel" not in set(rows.case[rows.tokens == 24])
        assert rows.time_power.notna().sum() == 6


def test_powers_are_those_of_the_largest_sizes():
    rows = pd.DataFrame({"case": "a", "tokens": [64, 256, 1024, 4096]})
    rows = rows.assign(ms=3e-3 * rows.tokens**1.5, peak_mib=7.0 * rows.tokens**2)
    rows.loc[0, ["ms", "peak_mib"]] = 10.0**9  # overhead
    found = suites.growth(rows)
    assert (found.time_power[0], found.memory_power[0]) == (pytest.approx(1.5), pytest.approx(2))


def test_an_epoch_sees_every_image_once(monkeypatch):
    monkeypatch.setattr(suites, "measure", lambda title, cases, **options: pd.DataFrame())
    monkeypatch.setattr(suites, "training_steps", lambda *arguments, **options: {})
    monkeypatch.setattr(suites, "IMAGES", {"cpu": 5})
    seen, real = [], suites.fit

    def fit(model, guide, train, **options):
        seen.append((type(model.network.blocks[-1].attention).__name__, sum(len(x) for x, _ in train)))
        return real(model, guide, train, **options)

    monkeypatch.setattr(suites, "fit", fit)
    *_, rows = suites.train(rounds=1, device="cpu", changes=TINY)
    assert seen == 2 * [("SoftmaxAttention", 5), ("KEPSVGPAttention", 5)]
    assert list(rows.case) == ["softmax", "KEP-SVGP"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["layers", "--out", "FILE/x.csv"], "--out"),
        (["layers", "--out", "FOLDER"], "--out"),
        (["predict", "--device", "cuda"], "--device cpu"),
        (["train", "--set", "train.epoch=3"], "did you mean train.epochs"),
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
    assert (code, out) == (1, "")
    assert is_one_message(err, words)
