"""Files of runs and shared folders that others have made: only their own files are read, and only
what fits."""

import hashlib
import json
import os
import shutil

import pytest
import torch

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import CheckpointError

SECRET = b"mine alone"


@pytest.fixture
def run(digits_run, tmp_path):
    """A copy of the folder of a run."""
    return shutil.copytree(digits_run, tmp_path / "run")


@pytest.fixture
def shared(digits_run, tmp_path):
    """A folder to share."""
    Pipeline.from_pretrained(digits_run).save_pretrained(tmp_path / "shared")
    return tmp_path / "shared"


def edit(path, change):
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def link(target):
    return lambda path: path.symlink_to(target)


def write_sparse(path):
    with path.open("wb") as file:
        file.truncate(2**40)


def list_file(shared, name, content):
    """Name a file with the digest of this content in the configuration."""
    digest = hashlib.sha256(content).hexdigest()
    edit(shared / "config.json", lambda config: config["files"].update({name: digest}))


UNREADABLE = {
    "device": link("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "endless": write_sparse,
}
PLACES = UNREADABLE | {"link": link("../secret")}
PLACES |= dict.fromkeys(["../secret", "{tmp}/secret", "/dev/zero", "..", "", "sub/secret"])


@pytest.mark.parametrize("name", PLACES)
def test_files_outside_of_a_shared_folder_are_not_read_though_their_digest_is_right(
    shared, tmp_path, name
):
    (tmp_path / "secret").write_bytes(SECRET)
    (shared / "sub").mkdir()
    (shared / "sub" / "secret").write_bytes(SECRET)
    if make := PLACES[name]:
        make(shared / name)
    list_file(shared, name.format(tmp=tmp_path), SECRET)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Pipeline.from_pretrained(shared)


FILES = {
    "shared": ("config.json", "model.safetensors", "preprocessing.json", "calibration.json"),
    "run": ("settings.json", "best.pt", "preprocessing.json", "calibration.json"),
}


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place in FILES for name in FILES[place]]
)
@pytest.mark.parametrize("kind", UNREADABLE)
def test_devices_pipes_folders_and_endless_files_take_no_files_place(request, place, name, kind):
    folder = request.getfixturevalue(place)
    (folder / name).unlink()
    UNREADABLE[kind](folder / name)
    named = name if place == "run" else "config.json|calibration.json"
    with pytest.raises((CheckpointError, DatasetError, SettingsError), match=named):
        Pipeline.from_pretrained(folder)


def test_a_file_that_is_needed_must_be_listed_and_links_of_the_hubs_cache_are_followed(
    shared, tmp_path
):
    edit(shared / "config.json", lambda content: content["files"].pop("preprocessing.json"))
    with pytest.raises(CheckpointError, match="preprocessing.json"):
        Pipeline.from_pretrained(shared)
    list_file(shared, "preprocessing.json", (shared / "preprocessing.json").read_bytes())
    blobs, revision = tmp_path / "model" / "blobs", tmp_path / "model" / "snapshots" / "v1"
    revision.mkdir(parents=True)
    shared.rename(blobs)
    for path in blobs.iterdir():
        (revision / path.name).symlink_to(f"../../blobs/{path.name}")
    assert Pipeline.from_pretrained(revision).calibration is not None


CLASSES = [*"0123456789"]
WRONG = [
    ("temperature", -1.0),
    ("temperature", "NaN"),
    ("quantile", -2.0),
    ("class_quantiles", [0.5]),
    ("adaptive", {"aps": -1.0}),
    ("adaptive", {"lac": 0.5}),
    ("confidence", "many"),
    ("level", 1.5),
    ("max_risk", 0),
    ("num_samples", 0),
    ("seed", -1),
    ("more", 1),
    ("raps", {"penalty": -1}),
    ("raps", {"temperature": 1}),
]


def replaced(key, value):
    """The calibration with another value of a key."""
    return lambda text: json.dumps(json.loads(text) | {key: value})


def always(text):
    return lambda _: text


@pytest.mark.parametrize(
    "change",
    [
        *(replaced(*pair) for pair in WRONG),
        *map(always, ("", "[]", "[" * 5000, '{"weights": {}}', "\0")),
    ],
)
def test_a_calibration_that_no_evaluation_writes_is_refused(run, change):
    path = run / "calibration.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(CheckpointError, match=r"calibration\.json is missing or damaged"):
        Pipeline.from_pretrained(run)


def exchanged(content):
    content["classes"].reverse()


EXCHANGES = {
    "reversed classes": exchanged,
    "a renamed class": lambda content: content["classes"].__setitem__(0, "10"),
    "two classes of one name": lambda content: content["classes"].__setitem__(0, "1"),
    "a class more": lambda content: content["classes"].append("10"),
    "another mean": lambda content: content.update(mean=[0.9]),
    "no deviation": lambda content: content.update(std=[0.0]),
    "another kind": lambda content: content.update(kind="texts", tokens={}),
    "no classes": lambda content: content.pop("classes"),
    "a number of classes": lambda content: content.update(classes=3),
    "another shape": lambda content: content.update(shape=[1, 2**40, 2**40]),
}


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        *(("predict", kind) for kind in EXCHANGES),
        *((verb, "reversed classes") for verb in ("evaluate", "train", "export")),
    ],
)
def test_the_preprocessing_of_a_run_is_that_of_its_weights(
    refused, run, tmp_path, photos, verb, kind
):
    edit(run / "preprocessing.json", EXCHANGES[kind])
    arguments = {
        "predict": [run, photos],
        "evaluate": [run],
        "train": ["--out", run, "--resume", "--epochs", 3],
        "export": [run, "--out", tmp_path / "shared"],
    }
    err = refused(verb, *arguments[verb])
    assert "preprocessing.json" in err
    assert len(err.splitlines()) == 1


OF_THE_AUTHOR = {"reversed classes", "a renamed class", "another mean"}


@pytest.mark.parametrize("kind", sorted(EXCHANGES.keys() - OF_THE_AUTHOR))
def test_a_shared_preprocessing_of_another_structure_is_refused_though_its_digest_is_right(
    shared, kind
):
    path = shared / "preprocessing.json"
    edit(path, EXCHANGES[kind])
    list_file(shared, path.name, path.read_bytes())
    with pytest.raises((DatasetError, CheckpointError)):
        Pipeline.from_pretrained(shared)


def broken(name, change):
    def change_archive(run):
        content = torch.load(run / name, weights_only=True)
        torch.save(change(content), run / name)

    return change_archive


def put(value, *keys):
    """Return a function that puts a value into nested dictionaries and lists."""

    def change(content):
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        if value is None:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        return content

    return change


BEST = [
    lambda content: [content],
    put({1: torch.ones(1)}, "guide"),
    put(torch.ones(2, 2).to_sparse(), "model", "network.norm.weight"),
    put([], "layers"),
    put(None, "extra", "epoch"),
]
OPTIMIZER = "extra", "optimizers", 0, 1
LAST = [
    put(None, "extra", "options"),
    put({"epochs": "many"}, "extra", "options"),
    put([3], "extra", "optimizers"),
    put(7, *OPTIMIZER),
    put(3, *OPTIMIZER, "param_groups", 0, "betas"),
    put(torch.ones(7), *OPTIMIZER, "state", 0, "exp_avg"),
    put("x", "extra", "optimizers", 1, 1, "last_epoch"),
    put(torch.ones(3), "extra", "random", 0, "torch"),
    put("two", "extra", "epoch"),
    put(None, "extra", "num_data"),
]


@pytest.mark.parametrize("change", LAST)
def test_a_last_checkpoint_of_another_structure_is_one_line(refused, run, change):
    broken("last.pt", change)(run)
    assert "last.pt" in refused("train", "--out", run, "--resume", "--epochs", 3)


@pytest.mark.parametrize("change", BEST)
@pytest.mark.parametrize(
    "words",
    [["train", "--resume", "--epochs", "3", "--out"], ["evaluate"], ["predict", "{photos}"]],
)
def test_weights_of_another_structure_are_one_line(refused, run, photos, words, change):
    broken("best.pt", change)(run)
    first, *others = (word.format(photos=photos) for word in words)
    arguments = [first, run, *others] if first == "predict" else [first, *others, run]
    assert "best.pt" in refused(*arguments)


SETTINGS = {
    "a list": lambda content: content.update(settings=[]),
    "no layer": lambda content: content["settings"].pop("layer"),
    "a name of numbers": lambda content: content.update(name=3),
    "an environment of lists": lambda content: content.update(environment=[1]),
    "data of numbers": lambda content: content.update(data={"train": 3}),
    "more": lambda content: content.update(more=3),
    "layers": lambda content: content["settings"]["layer"].update(rank={}),
    "a network of lists": lambda content: content["settings"].update(network=[]),
    "deep": lambda content: content["settings"]["train"].update(
        lr_scale=json.loads("[" * 900 + "]" * 900)
    ),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_of_another_structure_are_one_line(refused, run, shared, photos, kind):
    edit(run / "settings.json", SETTINGS[kind])
    edit(shared / "config.json", lambda content: SETTINGS[kind](content["config"]["run"]))
    for folder, name in ((run, "settings.json"), (shared, "config.json")):
        err = refused("predict", folder, photos)
        assert name in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evaluation.json", "[]"),
        ("evaluation.json", '{"stamp": 3, "data": []}'),
        ("scores.csv", ""),
        ("scores.csv", "a,b\n1,2\n"),
        ("scores.csv", "run,seed,method,set,n,nll\nx,0,posterior,test,many,low\n"),
        ("scores.csv", '"'),
    ],
)
def test_scores_of_another_structure_are_one_line(refused, evaluated, tmp_path, name, content):
    run = shutil.copytree(evaluated["digits/softmax"], tmp_path / "run")
    (run / name).write_text(content)
    err = refused("compare", run, "--out", tmp_path / "out")
    assert name in err
    assert len(err.splitlines()) == 1


def test_a_run_of_an_earlier_version_without_the_digest_is_read(run):
    (run / "calibration.json").unlink()
    broken("best.pt", put(None, "extra", "preprocessing.json"))(run)
    assert open_run(run).dataset.classes == tuple(CLASSES)
