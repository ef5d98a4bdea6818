"""Sweeps: settings that are chosen on validation data."""

import math
from collections import namedtuple

import pytest

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train
from probattn.experiments.studies.sweep import parse, sweep

History = namedtuple("History", "best_value")
NAMES = ("digits/softmax", "digits/kep-svgp")


def test_values_are_for_all_presets_or_for_one_and_commas_in_brackets_separate_none():
    values = parse(["train.lr=1e-3,0.01", "digits/kep-svgp:layer.rank=2,4", 'train.logger=[a,b],"c,d"'], NAMES)
    assert values["digits/softmax"] == {"train.lr": ["1e-3", "0.01"], "train.logger": ['["a", "b"]', "c,d"]}
    assert values["digits/kep-svgp"]["layer.rank"] == ["2", "4"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.lr", r"takes \[PRESET:\]KEY=VALUE"),
        ("train.lr=", r"takes \[PRESET:\]KEY=VALUE"),
        ("digits/cgp:train.lr=1", "of the study's digits/softmax"),
        ("train.seed=1,2", "no common validation metric"),
        ("data.limit=10,20", "no common validation metric"),
    ],
)
def test_what_cannot_be_swept_is_refused(text, words):
    with pytest.raises(SettingsError, match=words):
        parse([text], NAMES)


@pytest.fixture
def runs(monkeypatch):
    """Settings of the runs that a sweep trains, whose validation metric is their learning rate."""
    trained = []

    def instead(settings, folder, **options):
        trained.append((folder, settings))
        return History(None if settings.train.lr == 1 else settings.train.lr)

    monkeypatch.setattr(train, "train", instead)
    return trained


@pytest.mark.parametrize(("monitor", "best"), [("nll", "train.lr=0.1"), ("accuracy", "train.lr=0.3")])
def test_the_best_of_each_preset_is_chosen_by_the_direction_of_its_metric(tmp_path, runs, monitor, best):
    values = parse(["train.lr=0.2,0.1,0.3,1", "digits/kep-svgp:layer.rank=2,4"], NAMES)
    options = {"out": tmp_path, "epochs": 3, "changes": [f"train.monitor={monitor}"]}
    table = sweep(values, workers=1, **options)
    assert len(table) == 4 + 8
    assert math.isnan(table["value"][3])
    chosen = table[table["chosen"]].set_index("preset")["changes"]
    assert dict(chosen) == {"digits/softmax": (best,), "digits/kep-svgp": (best, "layer.rank=2")}
    folder, settings = runs[0]
    assert folder == tmp_path / "digits/softmax" / "train.lr=0.2" / "seed-0"
    assert (settings.train.seed, settings.epochs, settings.train.monitor) == (0, 3, monitor)
    with pytest.raises(SettingsError, match="no run has a valid"):
        sweep(parse(["train.lr=1"], NAMES), workers=1, **options)
