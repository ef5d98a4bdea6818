"""Settings: they have the constructors' options, changes and files are parsed by type, and what is
wrong is named."""

import inspect
import json
from dataclasses import asdict, fields

import pytest
import torch

import probattn
from probattn import families, priors
from probattn.experiments.config.layers import KNOWN, Layer, layer_class
from probattn.experiments.config.presets import PRESETS, preset, with_layer
from probattn.experiments.config.schema import meanings
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.config.yaml_files import read, to_yaml
from probattn.experiments.runs.folder import train_command

KEP, CGP = PRESETS["digits/kep-svgp"], PRESETS["digits/cgp"]


@pytest.mark.parametrize(
    ("settings", "assignment", "value"),
    [
        (KEP, "train.epochs=7", 7),
        (KEP, "train.lr=3e-4", 3e-4),
        (KEP, "layer.learn_scale=false", False),
        (KEP, "data.limit=none", None),
        (KEP, "train.devices=1", 1),
        (KEP, "train.devices=1,", "1,"),
        (KEP, "train.kl_weight=num_data", "num_data"),
        (CGP, "warm_start.symmetric=true", True),
        (PRESETS["text/csv"], "data.label_column=no", "no"),
    ],
)
def test_a_change_is_parsed_by_the_type_of_its_setting(settings, assignment, value):
    key, changed = assignment.partition("=")[0], settings.with_changes([assignment])
    assert changed.flat()[key] == value
    assert type(changed.flat()[key]) is type(value)
    assert {name for name, field in changed.flat().items() if settings.flat()[name] != field} <= {
        key
    }


WRONG = {
    "concat_lowrank": (KEP, "layer.merge=sum"),
    "softmax": (KEP, "layer.name=soft"),
    "warm_start.epochs": (KEP, "warm_start.kernel=ard"),
    "layer.rank": (PRESETS["digits/softmax"], "layer.rank=3"),
    "layer.mean": (KEP, "layer.dropout=0.1"),
    "data.task": (PRESETS["tabular/csv"], "data.likelihood=student-t"),
    "data.augment": (PRESETS["vit/folder"].with_changes(["data.flip=true"]), "data.augment=false"),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_change_is_named(word):
    settings, assignment = WRONG[word]
    with pytest.raises(SettingsError, match=word):
        settings.with_changes([assignment])


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_json_yaml_and_their_own_changes(name, tmp_path):
    settings, other = PRESETS[name], PRESETS["digits/sgpa"]
    assert Settings.from_dict(json.loads(json.dumps(asdict(settings)))) == settings
    assert (
        settings.with_changes(f"{key}={value}" for key, value in settings.flat().items())
        == settings
    )
    assert other.with_changes(settings.changes_from(other)) == settings
    (tmp_path / "settings.yaml").write_text(to_yaml(name, settings), encoding="utf-8")
    content = read(tmp_path / "settings.yaml")
    assert content.pop("preset") == name
    assert other.merged(content) == settings


def test_runs_of_earlier_versions_have_gaussian_beside_classes_of_a_table():
    stored = asdict(PRESETS["tabular/csv"])
    stored["data"]["likelihood"] = "gaussian"
    assert Settings.from_dict(stored).data.likelihood == "gaussian"


class OwnLayer:
    """A layer.

    Args:
        rank: as for :class:`KEPSVGPAttention`.
        width: as for :class:`SomethingElse`.
        size: as for :class:`KEPSVGPAttention`, doubled.
    """


def test_texts_that_refer_to_a_layer_are_its_texts_and_others_stay_as_they_are():
    assert meanings(OwnLayer) == {
        "rank": meanings(probattn.KEPSVGPAttention)["rank"],
        "width": "as for :class:`SomethingElse`.",
        "size": "as for :class:`KEPSVGPAttention`, doubled.",
    }


def test_values_in_a_file_are_read_by_the_types_of_their_settings(tmp_path):
    (tmp_path / "settings.yaml").write_text(
        "data:\n  ignore_columns: [id, 'no']\n  label_column: no\n  likelihood: 'null'\n  limit: "
        "null\n"
        "  task: regression\n"
        "train:\n  deterministic: on\n  seed: ~\n  lr: 1e-3\n  precision: 32\n  lr_scale: {'a.*': "
        "1e-1, b: 2}\n"
        "warm_start:\n"
    )
    settings = PRESETS["tabular/csv"].merged(read(tmp_path / "settings.yaml"))
    data, train = settings.data, settings.train
    assert (data.ignore_columns, data.label_column, data.likelihood, data.limit) == (
        ("id", "no"),
        "no",
        "null",
        None,
    )
    assert (train.deterministic, train.seed, settings.warm_start) == (True, None, None)
    assert (train.lr, train.precision, train.lr_scale) == (1e-3, "32", {"a.*": 0.1, "b": 2.0})


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("foo", "foo: 3"),
        ("line 2", "train:\n  epochs: ["),
        ("train.epochs", "train:\n  epochs: many"),
        ("train.epochs", "train:\n  epochs: !!python/object/apply:os.system [echo]"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, text, word):
    (tmp_path / "settings.yaml").write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=word):
        PRESETS["text/csv"].merged(read(tmp_path / "settings.yaml"))


def test_a_warm_up_that_is_set_is_not_scaled_with_the_epochs():
    for changes, expected in ((["train.warmup_epochs=3"], 3), ([], 0.5)):
        train = PRESETS["kep-svgp/cifar10"].with_changes(changes, epochs=30).train
        assert (train.epochs, train.warmup_epochs) == (30, expected)


@pytest.mark.parametrize("name", PRESETS)
def test_total_epochs_keep_the_shares_of_the_phases(name):
    settings = PRESETS[name]
    assert settings.with_total_epochs(settings.epochs) == settings
    once, twice = settings.train, settings.with_total_epochs(2 * settings.epochs).train
    assert (twice.epochs, twice.warmup_epochs) == (2 * once.epochs, 2 * once.warmup_epochs)
    assert settings.with_total_epochs(1).warm_start is None
    short = settings.with_total_epochs(3)
    assert (short.epochs, short.train.epochs >= 1) == (3, True)
    assert (short.warm_start is None) == (settings.warm_start is None)


@pytest.mark.parametrize("name", KNOWN)
def test_every_option_of_a_layer_is_a_setting_and_reaches_it(name):
    layer = layer_class(name)()
    parameters = inspect.signature(layer.constructor).parameters.values()
    options = {option.name for option in parameters if option.kind is option.KEYWORD_ONLY} - {
        "tokens"
    }
    assert {option.name for option in fields(layer)} == options | {
        option.name for option in fields(Layer)
    }
    assert {key: layer.factory(None).keywords[key] for key in options} == {
        key: getattr(layer, key) for key in options
    }
    assert isinstance(layer.factory(16)(20, 2), probattn.SoftmaxAttention | layer.constructor)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_guide_of_a_layer_is_of_the_family_that_is_set(family):
    changes = [f"layer.guide={family}", "layer.guide_scale=0.5"]
    layer = KEP.with_changes(changes).layer
    prior = priors.normal(torch.full((1, 2, 3), 4.0))
    guide = layer.family(prior)
    assert isinstance(guide, families.FAMILIES[family])
    assert guide(prior).stddev.mean().item() == pytest.approx(
        0 if family == "delta" else 2, rel=0.3
    )


CHANGES = {
    "digits/kep-svgp": ["train.lr=0.01", "layer.merge=add"],
    "digits/cgp": ["warm_start=none"],
    "digits/sgpa": ["warm_start.epochs=3", "warm_start.kernel=ard"],
    "finetune/cola-softmax": ["layer.name=sparse-cgp", "layer.last=1", "train.alpha_start=0.0"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_reports_command_repeats_the_run(name):
    settings = preset(name).with_changes(CHANGES[name])
    words = train_command(name, settings).split()
    assert words[:3] == ["probattn", "train", name]
    assert preset(name).with_changes(words[4::2]) == settings
    assert words[3::2] == ["--set"] * len(words[4::2])


@pytest.mark.parametrize("layer", KNOWN)
def test_a_layer_is_chosen_for_the_same_data_network_and_epochs(layer):
    for name in ("vit/folder", "text/csv", "tabular/csv", "digits/sgpa", "finetune/cola"):
        before, settings = PRESETS[name], with_layer(PRESETS[name], layer)
        assert settings.layer.name == layer
        assert (settings.data, settings.network, settings.epochs) == (
            before.data,
            before.network,
            before.epochs,
        )
        assert layer != "softmax" or (settings.warm_start, settings.train.guide_lr) == (None, None)
    if f"digits/{layer}" in PRESETS:
        chosen, known = with_layer(PRESETS["digits/softmax"], layer), PRESETS[f"digits/{layer}"]
        assert (chosen.train, chosen.warm_start) == (known.train, known.warm_start)
