"""Rows of a comparison, from folders of evaluated runs."""

import pytest
from evaluated_runs import random_prediction, run, store

from probattn.experiments.config import presets
from probattn.experiments.config.settings import SettingsError
from probattn.experiments.studies import collect, compare
from probattn.inference import metrics
from probattn.inference.methods.ensemble import mix

BY = {"posterior": 0.5}


def labels(*folders):
    return list(collect.read_runs(folders))


def rows(*paths):
    return collect.rows(collect.read_runs(paths))


def evaluated(folder, name, *changes, **options):
    return run(folder, name, *changes, methods=BY, **options)


def test_runs_of_one_preset_are_rows_of_one_name_from_folders_at_any_depth(tmp_path):
    for layer, value in (("softmax", 0.5), ("kep-svgp", 0.25)):
        for seed in (0, 3):
            folder = tmp_path / layer / "deeper" / f"seed-{seed}"
            run(folder, f"digits/{layer}", seed=seed, methods={"posterior": value + seed})
    frame = rows(tmp_path)
    assert list(frame.columns[:5]) == ["run", "seed", "method", "set", "n"]
    values = frame.set_index(["run", "seed"])["accuracy"].to_dict()
    assert values == {
        ("digits/softmax", 0): 0.5,
        ("digits/softmax", 3): 3.5,
        ("digits/kep-svgp", 0): 0.25,
        ("digits/kep-svgp", 3): 3.25,
    }
    assert (
        len(rows(tmp_path / "softmax", tmp_path / "softmax" / "deeper" / "seed-0")) == 2
    )  # each once


def test_names_have_the_layer_and_the_settings_that_tell_runs_apart(tmp_path):
    plain = evaluated(tmp_path / "a", "digits/softmax")
    wide = evaluated(tmp_path / "b", "digits/softmax", "train.lr=1")
    other = evaluated(tmp_path / "c", "digits/softmax", "train.lr=1", seed=1)
    assert labels(plain, wide, other) == ["digits/softmax", "digits/softmax (train.lr=1.0)"]
    assert labels(wide, other) == ["digits/softmax"]
    settings = presets.with_layer(presets.preset("digits/softmax"), "kep-svgp")
    layer = evaluated(tmp_path / "d", "digits/softmax", settings=settings)
    assert labels(plain, layer) == ["digits/softmax softmax", "digits/softmax kep-svgp"]
    names = labels(wide, evaluated(tmp_path / "g", "digits/kep-svgp"))
    assert names == [
        "digits/softmax (train.lr=1.0)",
        "digits/kep-svgp",
    ]  # what else than the layer differs is said
    here, there = (
        evaluated(tmp_path / str(seed), "tabular/csv", f"data.path={seed}.csv", seed=seed)
        for seed in range(2)
    )
    assert labels(here, there) == ["tabular/csv"]
    with pytest.raises(SettingsError, match="digits/softmax have the same seed"):
        collect.read_runs([plain, evaluated(tmp_path / "f", "digits/softmax")])


def test_runs_with_other_posterior_samples_are_no_rows_of_one_comparison(tmp_path):
    ten = evaluated(tmp_path / "ten", "digits/softmax")
    five = evaluated(tmp_path / "five", "digits/kep-svgp", draws=(5, 0))
    with pytest.raises(SettingsError, match="num_samples"):
        collect.read_runs([ten, five])


@pytest.mark.parametrize(
    ("change", "paired"),
    [
        ("layer.rank=4", True),
        ("train.kl_weight=0.5", True),
        ("train.lr=0.01", False),
        ("data.limit=100", False),
    ],
)
def test_settings_outside_of_the_layer_must_agree(tmp_path, change, paired):
    folders = [
        evaluated(tmp_path / "soft", "digits/softmax"),
        evaluated(tmp_path / "kep", "digits/kep-svgp", change),
    ]
    pairs = compare.twins(labels(*folders))
    assert any(twin not in (row, "") for row, twin in pairs.items()) is paired


def test_the_ensemble_of_runs_is_the_mean_of_their_probabilities(tmp_path):
    folders, members = [], [random_prediction(seed=seed) for seed in range(3)]
    for seed, member in enumerate(members):
        sets = ["valid", "test", *(["ood/letters"] if seed else [])]
        folders.append(
            evaluated(
                tmp_path / str(seed),
                "digits/softmax",
                seed=seed,
                data=dict.fromkeys(sets, "digest"),
            )
        )
        store(folders[-1], dict.fromkeys(sets, member))
    frame = rows(*folders)
    (row,) = frame[frame["method"] == "ensemble of 3"].to_dict("records")  # not all have letters
    assert (row["run"], row["set"], row["n"]) == ("digits/softmax", "test", 40)
    expected = metrics.evaluate(mix(members))
    assert {key: row[key] for key in expected} == pytest.approx(expected)
    assert set(rows(folders[0])["method"]) == {"posterior"}
