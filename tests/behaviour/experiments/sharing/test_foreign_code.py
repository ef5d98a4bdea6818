"""Folders that somebody else has made run no code, unless the user says so."""

import json
import shlex
import shutil
import sys

import pytest

from probattn.experiments.data.errors import UntrustedCodeError
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline

SOFTMAX = "digits/softmax"
# A module that says that it was imported, and what a run may name.
PLANTED = """
from pathlib import Path

from probattn import SoftmaxAttention
from probattn.experiments.data.images.known_sets import load

Path("was-run").touch()


class Layer(SoftmaxAttention):
    pass


def data(limit_of_mine: int = 200):
    loaded = load("digits", limit=limit_of_mine)
    return loaded.classes, loaded.train, loaded.valid, loaded.test
"""
NAMES = {
    "a file": {"layer.name": "planted:Layer"},
    "JSON alone": {"layer.name": "code:interact"},
    "a function of the system": {"layer.name": "os:abort"},
    "this library's own module": {"layer.name": "probattn.experiments.cli.main:main"},
    "an installed package's name": {"layer.name": "planted-layer"},
    "no text": {"layer.name": ["planted:Layer"]},
    "a likelihood": {"data.likelihood": "planted:Layer"},
}
COMMANDS = {
    "predict": ["predict", "{run}", "{photos}"],
    "evaluate": ["evaluate", "{run}"],
    "compare": ["compare", "{run}", "--out", "{tmp}/compared"],
    "resume": ["train", "--out", "{run}", "--resume"],
    "resume, another layer typed": [
        "train",
        SOFTMAX,
        "--out",
        "{run}",
        "--resume",
        "--layer",
        "kep-svgp",
    ],
    "export": ["export", "{run}", "--out", "{tmp}/shared"],
    "program": ["export", "{run}", "--out", "{tmp}/a.pt2"],
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working folder, which holds the module, also as if a package had been installed there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted.py").write_text(PLANTED)
    package = tmp_path / "planted-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[probattn.layers]\nplanted-layer = planted:Layer\n")
    return tmp_path


def rename(path, names):
    """Write other names into the settings in a JSON file."""
    content = json.loads(path.read_text())
    settings = (content.get("config", {}).get("run") or content)["settings"]
    for name, value in names.items():
        part, _, key = name.partition(".")
        settings[part][key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("kind", "verb"),
    [*((kind, "predict") for kind in NAMES), *(("a file", verb) for verb in COMMANDS)],
)
def test_no_command_runs_the_code_that_a_run_names(refused, home, evaluated, photos, kind, verb):
    run = shutil.copytree(evaluated[SOFTMAX], home / "run")
    rename(run / "settings.json", NAMES[kind])
    places = {"run": run, "photos": photos, "tmp": home}
    err = refused(*(word.format(**places) for word in COMMANDS[verb]))
    assert not (home / "was-run").exists()
    assert ("--trust-code" in err, str(run) in err) == (True, True)
    assert not any((home / name).exists() for name in ("shared", "a.pt2", "compared"))


@pytest.mark.parametrize("kind", NAMES)
def test_a_shared_folder_runs_no_code_and_is_read_by_nothing_but_the_flag(
    refused, home, digits_run, photos, kind
):
    Pipeline.from_pretrained(digits_run).save_pretrained(home / "shared")
    rename(home / "shared" / "config.json", NAMES[kind])
    with pytest.raises(UntrustedCodeError, match="trust_code"):
        Pipeline.from_pretrained(home / "shared")
    assert "--trust-code" in refused("predict", home / "shared", photos)
    assert not (home / "was-run").exists()


@pytest.mark.parametrize(
    "name", ["os:abort", "code:interact", "pathlib:Path", "planted:data", "planted:Path"]
)
def test_a_trusted_name_is_called_only_if_it_is_a_layer(refused, home, digits_run, photos, name):
    Pipeline.from_pretrained(digits_run).save_pretrained(home / "shared")
    rename(home / "shared" / "config.json", {"layer.name": name})
    assert "torch.nn.Module" in refused("predict", "--trust-code", home / "shared", photos)


@pytest.fixture
def own(succeed, home, tiny, assignments):
    """A run with a layer of the user's own, as it is after training; what trained it."""
    arguments = ["train", SOFTMAX, "--layer", "planted:Layer", "--out", "own", *assignments(tiny)]
    succeed(*arguments)
    return arguments


def test_a_run_with_ones_own_layer_is_used_by_the_command_that_the_error_gives(
    command, succeed, home, own, photos
):
    shutil.rmtree(photos / "more")
    (photos / "broken.jpg").unlink()
    for arguments in (
        ["predict", "own", photos],
        ["evaluate", "own"],
        ["compare", "own", "--out", "compared"],
    ):
        code, _, err = command(*arguments)
        assert code == 1
        words = shlex.split(err.rpartition(": ")[2])
        assert words[0] == "probattn"
        succeed(*words[1:])
    succeed("export", "own", "--out", "shared", "--trust-code")
    assert (
        Pipeline.from_pretrained("shared", trust_code=True).run.settings.layer.name
        == "planted:Layer"
    )


@pytest.mark.parametrize("verb", ["predict", "evaluate", "compare"])
def test_code_that_lies_elsewhere_is_no_damage_to_a_run(refused, home, evaluated, photos, verb):
    run = shutil.copytree(evaluated[SOFTMAX], home / "run")
    rename(run / "settings.json", {"layer.name": "gone:Layer"})
    words = [word.format(run=run, photos=photos, tmp=home) for word in COMMANDS[verb]]
    err = refused(*words, "--trust-code")
    assert "gone:Layer" in err
    assert "damaged" not in err


def test_a_run_is_resumed_by_a_name_that_is_typed_again_or_by_the_flag(succeed, home, own):
    for more in (
        ["--layer", "planted:Layer"],
        ["--set", "layer.name=planted:Layer"],
        ["--trust-code"],
    ):
        succeed("train", "--out", "own", "--resume", *more)
    succeed(*own, "--resume")


def test_a_study_with_ones_own_layer_needs_no_flag_also_where_it_goes_on(
    succeed, home, no_figures, tiny, assignments
):
    words = ["--seeds", 1, "--workers", 1, "--method", "none", "--ood", "none", "--no-shift"]
    arguments = [
        "study",
        SOFTMAX,
        "--layers",
        "planted:Layer",
        "--out",
        "studied",
        *words,
        *assignments(tiny),
    ]
    for _ in range(2):
        # the closing line of each kind of run names its layer
        assert "\ndigits/softmax/planted.Layer: " in succeed(*arguments)


def test_the_function_that_loaded_the_data_is_never_imported_to_predict(
    command, succeed, home, photos, tiny, assignments, monkeypatch
):
    changes = assignments([change for change in tiny if not change.startswith("data")])
    named = ["--set", "data.name=planted:data", "--set", "data.limit_of_mine=100"]
    succeed("train", SOFTMAX, *named, "--out", "own", *changes)
    shutil.rmtree(photos / "more")
    (photos / "broken.jpg").unlink()
    for flag in ([], ["--trust-code"]):
        for verb in (
            ["predict", "own", "photos"],
            ["export", "own", "--out", "shared"],
            ["predict", "shared", "photos"],
        ):
            (home / "was-run").unlink(missing_ok=True)
            monkeypatch.delitem(sys.modules, "planted", raising=False)
            code, _, err = command(*verb, *flag)
            assert (code, err, (home / "was-run").exists()) == (0, "", False)
    assert "data.limit_of_mine=100" in (home / "shared" / "README.md").read_text()
    with pytest.raises(UntrustedCodeError, match="data set"):
        open_run(home / "own")
    assert open_run(home / "own", trust_code=True).settings.data.limit_of_mine == 100
