"""Settings: they have the constructors' options, changes are parsed by their types, and what is wrong is named."""

import inspect
import json
from dataclasses import asdict, fields

import pytest

import probattn
from probattn.experiments.config.layers import KNOWN, Layer, layer_class
from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings, describe
from probattn.experiments.config.validation import SettingsError

KEP, CGP, SGPA = (PRESETS[f"digits/{name}"] for name in ("kep-svgp", "cgp", "sgpa"))


@pytest.mark.parametrize(
    ("settings", "assignment", "value"),
    [
        (KEP, "train.epochs=7", 7),
        (KEP, "train.lr=3e-4", 3e-4),
        (KEP, "layer.learn_scale=false", False),
        (KEP, "data.limit=none", None),
        (KEP, "train.precision=32", "32"),
        (KEP, "train.devices=1", 1),
        (KEP, "train.devices=1,", "1,"),
        (KEP, "train.kl_weight=num_data", "num_data"),
        (SGPA, "layer.inducing=none", None),
        (CGP, "warm_start.symmetric=true", True),
        (PRESETS["text/csv"], "data.label_column=no", "no"),
    ],
)
def test_a_change_is_parsed_by_the_type_of_its_setting(settings, assignment, value):
    key, changed = assignment.partition("=")[0], settings.with_changes([assignment])
    assert changed.flat()[key] == value
    assert type(changed.flat()[key]) is type(value)
    assert {name for name, field in changed.flat().items() if settings.flat()[name] != field} <= {key}
    assert Settings.from_dict(json.loads(json.dumps(asdict(changed)))) == changed


@pytest.mark.parametrize(
    ("settings", "assignment", "word"),
    [
        (KEP, "train.epoch=3", "train.epochs"),
        (KEP, "train.epochs=1.5", "1.5"),
        (KEP, "train.epochs=0", "epochs=0"),
        (KEP, "train.lr=nan", "finite"),
        (KEP, "layer.merge=sum", "concat_lowrank"),
        (KEP, "layer.name=soft", "softmax"),
        (KEP, "data.batch_size=0", "data.batch_size"),
        (KEP, "warm_start.kernel=ard", "warm_start.epochs"),
        (PRESETS["digits/softmax"], "layer.rank=3", "layer.rank"),
    ],
)
def test_a_wrong_change_is_named(settings, assignment, word):
    with pytest.raises(SettingsError) as caught:
        settings.with_changes([assignment])
    assert word in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_json_and_their_own_changes(name):
    settings = PRESETS[name]
    assert Settings.from_dict(json.loads(json.dumps(asdict(settings)))) == settings
    assert settings.with_changes(f"{key}={value}" for key, value in settings.flat().items()) == settings
    other = PRESETS["digits/sgpa"]
    assert other.with_changes(settings.changes_from(other)) == settings


def test_a_warm_up_that_is_set_is_not_scaled_with_the_epochs():
    settings = PRESETS["kep-svgp/cifar10"].with_changes(["train.warmup_epochs=3", "train.lr=0.01"], epochs=30)
    assert (settings.train.epochs, settings.train.warmup_epochs, settings.train.lr) == (30, 3, 0.01)
    assert PRESETS["kep-svgp/cifar10"].with_changes((), epochs=30).train.warmup_epochs == 0.5


@pytest.mark.parametrize("name", PRESETS)
def test_total_epochs_keep_the_shares_of_the_phases(name):
    settings = PRESETS[name]
    assert settings.with_total_epochs(settings.epochs) == settings
    twice = settings.with_total_epochs(2 * settings.epochs)
    assert (twice.epochs, twice.train.epochs) == (2 * settings.epochs, 2 * settings.train.epochs)
    assert twice.train.warmup_epochs == 2 * settings.train.warmup_epochs
    assert settings.with_total_epochs(1).warm_start is None
    for few in (2, 3, 4):
        short = settings.with_total_epochs(few)
        assert short.epochs == few
        assert short.train.epochs >= 1
        assert (short.warm_start is None) == (settings.warm_start is None)


@pytest.mark.parametrize("name", KNOWN)
def test_every_option_of_a_layer_is_a_setting_and_reaches_it(name):
    constructor = layer_class(name).constructor
    parameters = inspect.signature(constructor).parameters.values()
    options = {field.name for field in parameters if field.kind is field.KEYWORD_ONLY} - {"tokens"}
    assert {field.name for field in fields(layer_class(name))} == options | {field.name for field in fields(Layer)}
    layer = layer_class(name)()
    given = layer.factory(None).keywords
    assert {key: given[key] for key in options} == {key: getattr(layer, key) for key in options}
    assert isinstance(layer.factory(16)(20, 2), probattn.SoftmaxAttention | constructor)


def test_every_setting_of_a_preset_has_a_meaning():
    for name in ("digits/kep-svgp", "kep-svgp/cola", "tabular/csv", "finetune/cola", "cgp/cifar10-sparse", "image/hf"):
        described = describe(PRESETS[name])
        assert [key for key, (meaning, _) in described.items() if not meaning] == []
