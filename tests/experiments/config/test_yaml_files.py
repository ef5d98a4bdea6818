"""Settings as YAML: a file is read as it is printed, and what is wrong with it is named with its line."""

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


def settings(path, preset="text/csv"):
    return PRESETS[preset].with_changes(read(path).changes)


@pytest.mark.parametrize("name", PRESETS)
def test_a_printed_preset_is_read_as_it_was_whatever_it_starts_from(file, name):
    path = file(to_yaml(name, PRESETS[name]))
    assert read(path).preset == name
    assert settings(path, name) == PRESETS[name]
    assert settings(path, "digits/sgpa") == PRESETS[name]


def test_a_part_of_the_settings_changes_only_these(file):
    path = file("train:\n  epochs: 7\n  lr: 1e-3\n  lr_scale: {'a.*': 1e-1, b: 2}\nnetwork:\n  dropout: 0\n")
    found = settings(path)
    assert (found.train.epochs, found.train.lr, found.network.dropout) == (7, 1e-3, 0.0)
    assert found.train.lr_scale == {"a.*": 0.1, "b": 2.0}
    assert found.data == PRESETS["text/csv"].data
    assert read(path).preset is None


def test_lists_words_and_nothing_are_read_as_yaml_means_them(file):
    path = file(
        "data:\n  ignore_columns: [id, 'no']\n  label_column: yes it is\n  limit: null\n"
        "train:\n  deterministic: on\n  seed: ~\nwarm_start:\n"
    )
    found = settings(path, "tabular/csv")
    assert found.data.ignore_columns == ("id", "no")
    assert (found.data.label_column, found.data.limit) == ("yes it is", None)
    assert (found.train.deterministic, found.train.seed, found.warm_start) == (True, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data:\n  pat: 3", ["line 2: unknown key 'data.pat'", "did you mean data.path", "data.label_column"]),
        ("data:\n  path: 3\nfoo: 3", ["line 3: unknown key 'foo'; known keys: preset, data, network"]),
        ("train:\n  lr: 0.1\n  epochs: many", ["line 3: train.epochs: input should be a valid integer", "'many'"]),
        ("train:\n  lr: 0.1\n  kl_weight: -1", ["line 3: ", "kl_weight=-1.0"]),
        ("layer:\n  name: foo", ["line 2: unknown layer 'foo'; known: softmax, kep-svgp"]),
        ("layer:\n  name: sgpa\n  rank: 3", ["line 3: unknown key 'layer.rank'", "layer.inducing"]),
        ("layer:\n\n  merge: sum", ["line 3: layer.merge: input should be 'add', 'concat' or 'concat_lowrank'"]),
        ("train:\n  epochs: 3\n  epochs: 4", ["line 3: 'epochs' is set in line 2 already"]),
        ("train: 3", ["line 1: train needs settings below it, such as 'epochs: 20'"]),
        ("train:\n  - 3", ["line 1: train needs settings below it"]),
        ("train:\n  epochs: [", ["line 2 is not YAML"]),
        ("", ["needs the keys preset, data"]),
        ("data: &a\n  batch_size: 3\ntrain: *a", ["line 3: write the value in place of *a"]),
        ("just a text", ["needs the keys preset, data"]),
    ],
)
def test_what_is_wrong_is_named_with_its_line(file, text, words):
    path = file(text)
    with pytest.raises(SettingsError) as error:
        settings(path)
    message = str(error.value)
    assert message.startswith(str(path))
    assert [word for word in words if word not in message] == []


def test_no_object_is_built_from_a_file(file):
    path = file("train:\n  epochs: !!python/object/apply:os.system [echo]")
    with pytest.raises(SettingsError, match="line 2"):
        settings(path)
