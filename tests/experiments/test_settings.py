"""Settings: changes from the command line, what settings.json keeps, and what is refused."""

import json
from dataclasses import asdict, replace

import pytest

from probattn.experiments.presets import PRESETS, preset
from probattn.experiments.settings import SettingsError, from_dict

KEP = PRESETS["digits/kep-svgp"]


def saved(settings=KEP):
    return json.loads(json.dumps(asdict(settings)))


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("train.epochs=7", "train.epochs", 7),
        ("network.dim=32", "network.dim", 32),
        ("train.lr=3e-4", "train.lr", 3e-4),
        ("train.lr=1", "train.lr", 1.0),
        ("layer.learn_scale=false", "layer.learn_scale", False),
        ("layer.learn_scale=True", "layer.learn_scale", True),
        ("data.limit=100", "data.limit", 100),
        ("data.limit=none", "data.limit", None),
        ("train.seed=None", "train.seed", None),
        ("train.clip_norm=0.5", "train.clip_norm", 0.5),
        ("train.clip_norm=none", "train.clip_norm", None),
        ("layer.merge=add", "layer.merge", "add"),
        ("train.precision=bf16-mixed", "train.precision", "bf16-mixed"),
        ("train.devices=1", "train.devices", 1),
        ("train.devices=1,", "train.devices", "1,"),
        ("train.monitor=none", "train.monitor", None),
        ("train.precision=32", "train.precision", "32"),
        ("train.monitor=nll", "train.monitor", "nll"),
    ],
)
def test_a_change_is_parsed_as_its_field_is(assignment, key, value):
    flat = KEP.with_changes([assignment]).flat()
    assert flat[key] == value
    assert type(flat[key]) is type(value)
    assert {name for name in flat if flat[name] != KEP.flat()[name]} <= {key}


def test_every_setting_can_be_written_and_read_back():
    for settings in PRESETS.values():
        assignments = [f"{key}={value}" for key, value in settings.flat().items()]
        assert settings.with_changes(assignments) == settings


def test_no_changes():
    assert KEP.with_changes([]) == KEP


def test_changes_are_made_together_in_any_order():
    changes = ["train.epochs=2", "train.warmup_epochs=0"]  # 2 epochs with the preset's 2 of warm-up would be refused
    first, second = KEP.with_changes(changes), KEP.with_changes(reversed(changes))
    assert first == second
    assert (first.train.epochs, first.train.warmup_epochs) == (2, 0)


def test_the_last_of_two_changes_counts():
    assert KEP.with_changes(["train.epochs=9", "train.epochs=11"]).train.epochs == 11


def test_a_preset_is_never_changed():
    before = saved()
    KEP.with_changes(["layer.rank=3", "train.epochs=9"])
    assert saved() == before


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.epochs", ["key=value", "'train.epochs'"]),
        ("train.epoch=3", ["unknown key 'train.epoch'", "did you mean train.epochs", "layer.rank", "data.limit"]),
        ("=3", ["unknown key ''", "train.epochs"]),
        ("epochs=3", ["unknown key 'epochs'", "train.epochs"]),
        ("train.__class__=3", ["unknown key"]),
        ("train.epochs=many", ["train.epochs", "int", "'many'"]),
        ("train.epochs=1.5", ["train.epochs", "int", "'1.5'"]),
        ("train.epochs=", ["train.epochs", "int", "''"]),
        ("train.epochs=none", ["train.epochs", "int", "'none'"]),
        ("train.lr=fast", ["train.lr", "float", "'fast'"]),
        ("train.lr=nan", ["train.lr", "finite", "'nan'"]),
        ("layer.eta=inf", ["layer.eta", "finite", "'inf'"]),
        ("train.clip_norm=inf", ["train.clip_norm", "finite"]),
        ("layer.learn_scale=yes", ["layer.learn_scale", "true or false", "'yes'"]),
        ("layer.merge=sum", ["layer.merge", "add, concat, concat_lowrank", "'sum'"]),
        ("layer.guide=fat", ["layer.guide", "full, diagonal, lowrank, delta", "'fat'"]),
        ("layer.name=softmax", ["layer.name", "kep-svgp", "'softmax'"]),
        ("data.limit=few", ["data.limit", "int", "'few'"]),
        ("data.limit=0", ["limit=0", "at least 1"]),
        ("data.batch_size=0", ["batch_size=0", "at least 1"]),
        ("network.patch_size=0", ["patch_size=0"]),
        ("network.depth=0", ["depth=0"]),
        ("network.heads=-1", ["heads=-1"]),
        ("network.mlp_dim=-1", ["mlp_dim=-1"]),
        ("train.epochs=0", ["epochs=0"]),
        ("train.lr=0", ["lr=0.0"]),
        ("train.warmup_epochs=40", ["warmup_epochs=40"]),
        ("train.kl_weight=-1", ["kl_weight=-1"]),
        ("train.patience=0", ["patience=0"]),
        ("train.num_draws=0", ["num_draws=0"]),
        ("train.log_every=0", ["log_every=0"]),
        ("train.monitor=f1", ["monitor='f1'"]),
    ],
)
def test_a_wrong_change_is_named_with_what_is_known(assignment, words):
    with pytest.raises(SettingsError) as caught:
        KEP.with_changes([assignment])
    assert [word for word in words if word not in str(caught.value)] == []


def test_keys_of_another_layer_are_unknown():
    with pytest.raises(SettingsError, match="unknown key 'layer.rank'"):
        PRESETS["digits/softmax"].with_changes(["layer.rank=3"])


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_json(name):
    settings = PRESETS[name]
    assert from_dict(saved(settings)) == settings
    changed = settings.with_changes(["data.limit=5", "train.clip_norm=1", "train.lr=0.01"])
    assert from_dict(saved(changed)) == changed


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("layer", "name", "sgpa", ["sgpa"]),
        ("layer", "new_option", 1, ["new_option"]),
        ("train", "speed", "fast", ["speed"]),
        ("layer", "rank", "8", ["layer.rank", "'8'"]),
        ("layer", "rank", 8.5, ["layer.rank", "8.5"]),
        ("layer", "rank", True, ["layer.rank", "True"]),
        ("layer", "rank", None, ["layer.rank", "None"]),
        ("layer", "merge", "sum", ["layer.merge", "sum"]),
        ("layer", "learn_scale", 1, ["layer.learn_scale", "1"]),
        ("train", "epochs", "2", ["train.epochs", "'2'"]),
        ("train", "epochs", 0, ["epochs=0"]),
        ("network", "dim", 0, ["dim=0"]),
        ("network", "dim", [16], ["network.dim", "[16]"]),
    ],
)
def test_a_damaged_value_is_named(part, key, value, words):
    values = saved()
    values[part][key] = value
    with pytest.raises(SettingsError) as caught:
        from_dict(values)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("values", [{}, [], "text", None, {"layer": None}, {"layer": {"name": []}}])
def test_what_are_no_settings_is_refused(values):
    with pytest.raises(SettingsError, match="another version"):
        from_dict(values)


@pytest.mark.parametrize("part", ["data", "network", "layer", "train"])
def test_a_missing_part_is_named(part):
    values = saved()
    del values[part]
    with pytest.raises(SettingsError, match=part):
        from_dict(values)


def test_a_missing_required_value_is_named():
    values = saved()
    del values["network"]["heads"]
    with pytest.raises(SettingsError, match="heads"):
        from_dict(values)


def test_integers_stand_for_floats():
    values = saved()
    values["train"]["lr"] = 1
    assert from_dict(values) == replace(KEP, train=replace(KEP.train, lr=1))


def test_a_probabilistic_layer_in_no_block_is_refused():
    with pytest.raises(SettingsError, match="last"):
        preset("digits/kep-svgp").with_changes(["layer.last=0"])
