"""`probattn bench`, from its arguments to its output, on sizes so small that no speed is tested."""

import pandas as pd
import pytest

from probattn.experiments.bench import measure, suites
from probattn.models.layer_factories import LAYERS

TINY = (
    "network.dim=20",
    "network.heads=2",
    "network.depth=1",
    "network.mlp_dim=8",
    "data.batch_size=2",
)
TOY = {"dim": 20, "heads": 2, "batch": 2, "tokens": 64}


@pytest.mark.parametrize(("suite", "number"), [("layers", 5), ("vit", 4)])
def test_tables_are_printed_and_written(succeed, tmp_path, monkeypatch, assignments, suite, number):
    monkeypatch.setattr(measure, "TURN", 0.0)
    layers = ((("softmax", "kep-svgp concat"), TOY), (("softmax", "cgp", "sgpa"), TOY))
    monkeypatch.setattr(suites, "SHAPES", {"layers": layers})
    path = tmp_path / "new" / "figures.csv"
    text = succeed("bench", suite, "--rounds", 1, "--out", path, *assignments(TINY))
    rows = pd.read_csv(path)
    assert len(rows) == number
    assert (rows.groupby("section").ratio.first() == 1).all()
    assert (rows.low <= rows.high).all()
    for ratio in rows.ratio:
        assert f" {ratio:,.3f}" in text


def test_every_layer_is_a_case_under_its_name():
    names, _ = suites.SHAPES["layers"][-1]
    assert set(LAYERS) < set(names)
    assert names[0] == "softmax"
