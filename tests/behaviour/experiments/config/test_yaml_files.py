"""Settings as YAML: a file is read as it is printed, and what is wrong with it is named."""

import pytest

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.config.yaml_files import read, to_yaml


@pytest.fixture
def file(tmp_path):
    """Function that writes a file of settings and returns its path."""

    def write(text):
        path = tmp_path / "settings.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("name", PRESETS)
def test_a_printed_preset_is_read_as_it_was_whatever_it_starts_from(file, name):
    content = read(file(to_yaml(name, PRESETS[name])))
    assert content.pop("preset") == name
    assert PRESETS["digits/sgpa"].merged(content) == PRESETS[name]


def test_values_are_read_by_the_types_of_their_settings(file):
    path = file(
        "data:\n  ignore_columns: [id, 'no']\n  label_column: no\n  likelihood: 'null'\n  limit: null\n"
        "  task: regression\n"
        "train:\n  deterministic: on\n  seed: ~\n  lr: 1e-3\n  precision: 32\n  lr_scale: {'a.*': 1e-1, b: 2}\n"
        "warm_start:\n"
    )
    settings = PRESETS["tabular/csv"].merged(read(path))
    assert settings.data.ignore_columns == ("id", "no")
    assert (settings.data.label_column, settings.data.limit) == ("no", None)
    assert settings.data.likelihood == "null"
    assert (settings.train.deterministic, settings.train.seed, settings.warm_start) == (True, None, None)
    assert (settings.train.lr, settings.train.precision) == (1e-3, "32")
    assert settings.train.lr_scale == {"a.*": 0.1, "b": 2.0}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("foo: 3", "foo"),
        ("train:\n  epochs: many", "train.epochs"),
        ("train:\n  epochs: [", "line 2"),
        ("train:\n  epochs: !!python/object/apply:os.system [echo]", "train.epochs"),
    ],
)
def test_what_is_wrong_is_named(file, text, word):
    with pytest.raises(SettingsError, match=word):
        PRESETS["text/csv"].merged(read(file(text)))
