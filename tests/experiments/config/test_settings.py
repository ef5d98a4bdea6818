"""Settings: changes from the command line, what settings.json keeps, and what is refused."""

import inspect
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import probattn
from probattn.experiments.config.layers import (
    CGPSettings,
    KEPSVGPSettings,
    KernelSettings,
    SGPASettings,
    SoftmaxSettings,
    SparseCGPSettings,
)
from probattn.experiments.config.presets import PRESETS, preset
from probattn.experiments.config.settings import WarmStartSettings, from_json
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs.folder import read_record

KEP, CGP, SGPA = (PRESETS[f"digits/{name}"] for name in ("kep-svgp", "cgp", "sgpa"))


def saved(settings=KEP):
    return json.loads(json.dumps(asdict(settings)))


def loaded(values):
    return from_json(json.dumps(values))


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


@pytest.mark.parametrize(
    ("settings", "assignment", "key", "value"),
    [
        (CGP, "warm_start.epochs=2", "warm_start.epochs", 2),
        (CGP, "warm_start.kernel=ard", "warm_start.kernel", "ard"),
        (CGP, "warm_start.symmetric=true", "warm_start.symmetric", True),
        (CGP, "layer.last=none", "layer.last", None),
        (CGP, "layer.last=2", "layer.last", 2),
        (CGP, "layer.noisy_output=false", "layer.noisy_output", False),
        (CGP, "train.schedule=linear", "train.schedule", "linear"),
        (CGP, "train.alpha_start=0.5", "train.alpha_start", 0.5),
        (SGPA, "layer.inducing=none", "layer.inducing", None),
        (SGPA, "layer.prior=laplace", "layer.prior", "laplace"),
        (SGPA, "layer.prior=None", "layer.prior", None),
        (KEP, "layer.last=none", "layer.last", None),
        (KEP, "layer.mean=softmax", "layer.mean", "softmax"),
        (KEP, "layer.projection=svd", "layer.projection", "svd"),
        (KEP, "layer.residual=1", "layer.residual", 1.0),
    ],
)
def test_a_change_of_the_newer_settings(settings, assignment, key, value):
    changed = settings.with_changes([assignment])
    assert changed.flat()[key] == value
    assert type(changed.flat()[key]) is type(value)
    assert {name for name, each in changed.flat().items() if settings.flat()[name] != each} <= {key}
    assert loaded(saved(changed)) == changed


def test_a_warm_start_can_be_added_changed_and_taken_away():
    added = KEP.with_changes(["layer.merge=add", "warm_start.epochs=3", "warm_start.symmetric=true"])
    assert added.warm_start == WarmStartSettings(epochs=3, symmetric=True)
    assert added.with_changes(["warm_start.kernel=ard"]).warm_start == replace(added.warm_start, kernel="ard")
    none = added.with_changes(["warm_start=none"])
    assert none.warm_start is None
    assert none.flat()["warm_start"] is None
    assert not any(key.startswith("warm_start.") for key in none.flat())
    assert "warm_start" not in added.flat()
    for settings in (added, none):
        assert loaded(saved(settings)) == settings
        assert KEP.with_changes(f"{key}={value}" for key, value in settings.flat().items()) == settings
    assert CGP.with_changes(["warm_start=none", "warm_start.epochs=4"]).warm_start == WarmStartSettings(epochs=4)
    assert CGP.with_changes(["warm_start.epochs=4", "warm_start=None"]).warm_start is None


@pytest.mark.parametrize(
    ("settings", "assignments", "words"),
    [
        (CGP, ["warm_start.epochs=0"], ["warm_start.epochs: ", "greater than 0", "'0'"]),
        (CGP, ["warm_start.epochs=none"], ["warm_start.epochs", "int"]),
        (CGP, ["warm_start.epoch=1"], ["unknown key", "did you mean warm_start.epochs"]),
        (CGP, ["warm_start=3"], ["unknown key 'warm_start'", "warm_start.epochs"]),
        (CGP, ["layer=none"], ["unknown key 'layer'"]),
        (KEP, ["warm_start.kernel=ard"], ["no warm start", "warm_start.epochs=N"]),
        (CGP, ["warm_start=none", "warm_start.kernel=ard"], ["no warm start", "warm_start.epochs=N"]),
        (CGP, ["warm_start.kernel=linear"], ["'rbf', 'ard' or 'exponential'", "got 'linear'"]),
        (SGPA, ["layer.prior=cauchy"], ["'normal', 'laplace' or 'student_t'", "got 'cauchy'"]),
        (SGPA, ["layer.inducing=0"], ["layer.inducing: ", "greater than 0", "'0'"]),
        (CGP, ["layer.last=0"], ["layer.last: ", "greater than 0", "'0'"]),
        (PRESETS["digits/sparse-cgp"], ["layer.last=0"], ["layer.last: ", "'0'"]),
        (PRESETS["digits/sparse-cgp"], ["layer.inducing=0"], ["layer.inducing: ", "'0'"]),
        (CGP, ["train.alpha_end=-1"], ["alpha_end=-1.0"]),
        (CGP, ["train.schedule=step"], ["'cosine' or 'linear'", "got 'step'"]),
        (PRESETS["digits/softmax"], ["warm_start.epochs=2"], ["softmax", "warm_start=none"]),
    ],
)
def test_a_wrong_change_of_the_newer_settings_is_named(settings, assignments, words):
    with pytest.raises(SettingsError) as caught:
        settings.with_changes(assignments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_settings_of_before_there_were_warm_starts_are_read():
    values = saved()
    del values["warm_start"]
    for newer in ("schedule", "alpha_start", "alpha_end"):
        del values["train"][newer]
    assert loaded(values) == KEP


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"epochs": "2"}, ["warm_start.epochs", "'2'"]),
        ({"epochs": 0}, ["warm_start.epochs: ", "greater than 0", "got 0"]),
        ({}, ["warm_start.epochs: field required"]),
        ({"epochs": 1, "speed": 2}, ["warm_start.speed: unexpected", "got 2"]),
        (3, ["warm_start: ", "got 3"]),
    ],
)
def test_a_damaged_warm_start_is_named(value, words):
    with pytest.raises(SettingsError) as caught:
        loaded(saved(CGP) | {"warm_start": value})
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("name", PRESETS)
def test_total_epochs_keep_the_shares_of_the_phases(name):
    settings = PRESETS[name]
    assert settings.with_total_epochs(settings.epochs) == settings
    twice = settings.with_total_epochs(2 * settings.epochs)
    assert twice.epochs == 2 * settings.epochs
    assert twice.train.epochs == 2 * settings.train.epochs
    assert twice.train.warmup_epochs == 2 * settings.train.warmup_epochs
    for few in (2, 3, 4):
        short = settings.with_total_epochs(few)
        assert short.epochs == few
        assert short.train.epochs >= 1
        assert (short.warm_start is None) == (settings.warm_start is None)
        assert short.warm_start is None or short.warm_start.epochs >= 1
        assert {key for key in short.flat() if short.flat()[key] != settings.flat()[key]} <= {
            "train.epochs",
            "train.warmup_epochs",
            "warm_start.epochs",
        }


def test_fewer_epochs_than_phases_are_refused():
    assert KEP.with_total_epochs(1).train.epochs == 1
    with pytest.raises(SettingsError, match="2 phases"):
        CGP.with_total_epochs(1)
    with pytest.raises(SettingsError, match="1 epochs"):
        KEP.with_total_epochs(0)


def test_the_first_phase_is_kernel_attention_in_the_same_blocks():
    settings = CGP.with_changes(
        ["layer.last=2", "warm_start.epochs=1", "warm_start.kernel=ard", "warm_start.bias=true", "train.patience=3"]
    )
    first = settings.first_phase()
    assert first.layer == KernelSettings(last=2, kernel="ard", bias=True)
    assert (first.data, first.network, first.warm_start) == (settings.data, settings.network, None)
    assert (first.train.epochs, first.train.patience) == (1, None)
    assert first.train.warmup_epochs == pytest.approx(CGP.train.warmup_epochs / CGP.train.epochs)
    assert replace(first.train, epochs=30, warmup_epochs=CGP.train.warmup_epochs) == replace(CGP.train, epochs=30)
    with pytest.raises(SettingsError, match="no warm start"):
        KEP.first_phase()


@pytest.mark.parametrize(
    ("settings", "layer", "apart"),
    [
        (KernelSettings(), probattn.KernelAttention, set()),
        (SGPASettings(), probattn.SGPAttention, {"guide", "guide_scale", "init_loc"}),
        (CGPSettings(), probattn.CGPAttention, set()),
        (SparseCGPSettings(), probattn.SparseCGPAttention, {"mixtures"}),
    ],
)
def test_the_options_and_defaults_are_the_layers(settings, layer, apart):
    """Every option of the layer can be set and has the layer's default."""
    parameters = inspect.signature(layer).parameters.values()
    expected = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    expected.pop("tokens", None)
    found = {key: value for key, value in asdict(settings).items() if key not in {"name", "last"} | apart}
    assert found == expected
    assert settings.last is None


def test_every_option_reaches_the_layer():
    layer = KernelSettings(kernel="ard", symmetric=True).factory(16)(8, 2)
    assert layer.symmetric
    assert type(layer.kernel).__name__ == "ARD"
    layer = SGPASettings(inducing=None, draws="joint").factory(16)(8, 2)
    assert (layer.inducing, layer.draws) == (None, "joint")
    settings = KEPSVGPSettings(projection="svd", mean="softmax", amplitude=0.2, dropout=0.1, residual=0.5)
    layer = settings.factory(16)(20, 2)
    assert layer.solves
    assert (layer.mean.amplitude.item(), layer.dropout) == (pytest.approx(0.2), 0.1)
    assert layer.log_residual_amplitude.exp().tolist() == pytest.approx([0.5, 0.5])
    settings = CGPSettings(canonical_guide="learned", output="mean", alpha=0.5, noise=0.2, noisy_output=False)
    layer = settings.factory(16)(8, 2)
    assert (layer.canonical_guide, layer.output, layer.alpha, layer.noisy_output) == ("learned", "mean", 0.5, False)
    assert layer.log_noise.exp().tolist() == pytest.approx([0.2, 0.2])
    layer = SparseCGPSettings(inducing=3, inducing_keys=5).factory(16)(8, 2)
    assert [len(points[0]) for points in layer.inducing] == [3, 5]
    assert layer.tokens is None
    assert SparseCGPSettings(inducing=3, mixtures=True).factory(16)(8, 2).tokens == 16


def test_the_standard_form_of_sgpa_has_a_guide_of_no_site_and_no_choice_of_one():
    layer = SGPASettings(inducing=None).factory(16)(8, 2)
    assert list(probattn.guides.for_model(layer, SGPASettings(inducing=None).family).parameters()) == []
    with pytest.raises(ValueError, match="no site for a guide of family 'diagonal'"):
        probattn.guides.for_model(layer, SGPASettings(inducing=None, guide="diagonal").family)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("softmax", SoftmaxSettings),
        ("kep-svgp", KEPSVGPSettings),
        ("kernel", KernelSettings),
        ("sgpa", SGPASettings),
        ("cgp", CGPSettings),
        ("sparse-cgp", SparseCGPSettings),
    ],
)
def test_layers_are_known_by_their_names(name, kind):
    assert loaded(saved() | {"layer": {"name": name}}).layer == kind()
    assert kind().name == name


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
        ("train.epoch=3", ["unknown key 'train.epoch'", "did you mean train.epochs", "train.warmup_epochs"]),
        ("=3", ["unknown key ''", "`probattn presets NAME` lists all keys"]),
        ("epochs=3", ["unknown key 'epochs'", "train.epochs"]),
        ("train.__class__=3", ["unknown key"]),
        ("train.epochs=many", ["train.epochs", "int", "'many'"]),
        ("train.epochs=1.5", ["train.epochs", "int", "'1.5'"]),
        ("train.epochs=", ["train.epochs", "int", "''"]),
        ("train.epochs=none", ["train.epochs", "int", "'none'"]),
        ("train.lr=fast", ["train.lr", "valid number", "'fast'"]),
        ("train.lr=nan", ["train.lr", "finite", "'nan'"]),
        ("layer.eta=inf", ["layer.eta", "finite", "'inf'"]),
        ("train.clip_norm=inf", ["train.clip_norm", "finite"]),
        ("layer.learn_scale=maybe", ["layer.learn_scale", "valid boolean", "'maybe'"]),
        ("layer.amplitude=0", ["layer.amplitude", "greater than 0"]),
        ("layer.residual=-1", ["layer.residual", "greater than 0"]),
        ("layer.residual=0", ["layer.residual", "greater than 0"]),
        ("layer.mean=linear", ["layer.mean", "'zero' or 'softmax'", "'linear'"]),
        ("layer.merge=sum", ["layer.merge", "'add', 'concat' or 'concat_lowrank'", "'sum'"]),
        ("layer.guide=fat", ["layer.guide", "'full', 'diagonal', 'lowrank' or 'delta'", "'fat'"]),
        ("layer.name=soft", ["unknown layer 'soft'", "did you mean softmax", "kep-svgp"]),
        ("data.limit=few", ["data.limit", "int", "'few'"]),
        ("data.limit=0", ["data.limit: ", "greater than 0", "'0'"]),
        ("data.batch_size=0", ["data.batch_size: ", "greater than 0", "'0'"]),
        ("network.patch_size=0", ["network.patch_size: ", "'0'"]),
        ("network.depth=0", ["network.depth: ", "'0'"]),
        ("network.heads=-1", ["network.heads: ", "'-1'"]),
        ("network.mlp_dim=-1", ["network.mlp_dim: ", "'-1'"]),
        ("train.epochs=0", ["epochs=0"]),
        ("train.lr=0", ["lr=0.0"]),
        ("train.warmup_epochs=40", ["warmup_epochs=40"]),
        ("train.kl_weight=-1", ["kl_weight=-1"]),
        ("train.kl_weight=num_dat", ["train.kl_weight", "num_dat"]),
        ("train.patience=0", ["patience=0"]),
        ("train.num_samples=0", ["num_samples=0"]),
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
    assert loaded(saved(settings)) == settings
    changed = settings.with_changes(["data.limit=5", "train.clip_norm=1", "train.lr=0.01"])
    assert loaded(saved(changed)) == changed


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("layer", "name", "mystery", ["mystery"]),
        ("layer", "new_option", 1, ["new_option"]),
        ("train", "speed", "fast", ["speed"]),
        ("layer", "rank", "8", ["layer.rank", "'8'"]),
        ("layer", "rank", 8.5, ["layer.rank", "8.5"]),
        ("layer", "rank", True, ["layer.rank", "True"]),
        ("layer", "rank", None, ["layer.rank", "None"]),
        ("layer", "last", "1", ["layer.last", "'1'"]),
        ("layer", "merge", "sum", ["layer.merge", "sum"]),
        ("layer", "learn_scale", 1, ["layer.learn_scale", "1"]),
        ("train", "epochs", "2", ["train.epochs", "'2'"]),
        ("train", "epochs", 0, ["epochs=0"]),
        ("network", "dim", 0, ["network.dim: ", "got 0"]),
        ("network", "dim", [16], ["network.dim", "[16]"]),
    ],
)
def test_a_damaged_value_is_named(part, key, value, words):
    values = saved()
    values[part][key] = value
    with pytest.raises(SettingsError) as caught:
        loaded(values)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("values", [{}, [], "text", None, {"layer": None}, {"layer": {"name": []}}])
def test_what_are_no_settings_is_refused(values):
    with pytest.raises(SettingsError, match="input should be an object|layer: "):
        loaded(values)


def test_a_run_from_before_there_were_texts_is_one_of_images():
    values = saved()
    del values["network"]["kind"]
    assert loaded(values) == KEP


RUNS = sorted((Path(__file__).parents[3] / "experiments" / "results").rglob("settings.json"))


def test_runs_are_committed():
    assert len(RUNS) >= 50


@pytest.mark.parametrize("path", RUNS, ids=lambda path: "-".join(path.parts[-4:-1]))
def test_committed_runs_can_be_read(path):
    record = read_record(path.parent)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (record.name, record.environment) == (content["name"], content["environment"])
    found = saved(record.settings)
    content["settings"]["train"].pop("capture", None)  # an option of older runs
    for part, values in content["settings"].items():
        assert values is None or {key: found[part][key] for key in values} == values


@pytest.mark.parametrize("part", ["data", "network", "layer", "train"])
def test_a_missing_part_is_named(part):
    values = saved()
    del values[part]
    with pytest.raises(SettingsError, match=part):
        loaded(values)


def test_a_missing_required_value_is_named():
    values = saved()
    del values["network"]["heads"]
    with pytest.raises(SettingsError, match="heads"):
        loaded(values)


def test_integers_stand_for_floats():
    values = saved()
    values["train"]["lr"] = 1
    assert loaded(values) == replace(KEP, train=replace(KEP.train, lr=1))


def test_a_probabilistic_layer_in_no_block_is_refused():
    with pytest.raises(SettingsError, match="last"):
        preset("digits/kep-svgp").with_changes(["layer.last=0"])
