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
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import CheckpointError

SECRET = b"mine alone"


@pytest.fixture
def shared(digits_run, tmp_path):
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


PLACES = {
    "../secret": None,
    "{tmp}/secret": None,
    "/dev/zero": None,
    "..": None,
    ".": None,
    "": None,
    "sub/secret": None,
    "a": link("../secret"),
    "b": link("/dev/zero"),
    "c": link("/proc/self/environ"),
    "d": os.mkfifo,
    "e": os.mkdir,
    "f": write_sparse,
}


@pytest.mark.parametrize("name", PLACES)
def test_files_outside_of_a_shared_folder_are_not_read_though_their_digest_is_right(
    shared, tmp_path, name
):
    (tmp_path / "secret").write_bytes(SECRET)
    (shared / "sub").mkdir()
    (shared / "sub" / "secret").write_bytes(SECRET)
    if make := PLACES[name]:
        make(shared / name)
    digest = hashlib.sha256(SECRET).hexdigest()
    edit(
        shared / "config.json",
        lambda content: content["files"].update({name.format(tmp=tmp_path): digest}),
    )
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Pipeline.from_pretrained(shared)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "preprocessing.json", "calibration.json"]
)
@pytest.mark.parametrize("kind", ["b", "d", "e", "f"])
def test_devices_pipes_folders_and_endless_files_take_no_files_place(shared, name, kind):
    (shared / name).unlink()
    PLACES[kind](shared / name)
    with pytest.raises((CheckpointError, DatasetError), match="config.json|calibration.json"):
        Pipeline.from_pretrained(shared)


@pytest.mark.parametrize(
    "name", ["settings.json", "best.pt", "preprocessing.json", "calibration.json"]
)
@pytest.mark.parametrize("kind", ["b", "d", "e", "f"])
def test_nor_in_the_folder_of_a_run(digits_run, tmp_path, name, kind):
    run = shutil.copytree(digits_run, tmp_path / "run")
    (run / name).unlink()
    PLACES[kind](run / name)
    with pytest.raises((CheckpointError, DatasetError, SettingsError), match=name):
        Pipeline.from_pretrained(run)


def test_a_file_that_is_needed_must_be_listed_and_links_of_the_hubs_cache_are_followed(
    shared, tmp_path
):
    edit(shared / "config.json", lambda content: content["files"].pop("preprocessing.json"))
    with pytest.raises(CheckpointError, match="preprocessing.json"):
        Pipeline.from_pretrained(shared)
    digest = hashlib.sha256((shared / "preprocessing.json").read_bytes()).hexdigest()
    edit(
        shared / "config.json",
        lambda content: content["files"].update({"preprocessing.json": digest}),
    )
    blobs, revision = tmp_path / "model" / "blobs", tmp_path / "model" / "snapshots" / "v1"
    revision.mkdir(parents=True)
    shared.rename(blobs)
    for path in blobs.iterdir():
        (revision / path.name).symlink_to(f"../../blobs/{path.name}")
    assert Pipeline.from_pretrained(revision).calibration is not None


CLASSES = [*"0123456789"]
WRONG = {
    "temperature": -1.0,
    "temperature ": 0.0,
    "temperature  ": 1e-300,
    "temperature   ": "NaN",
    "quantile": "NaN",
    "quantile ": -2.0,
    "class_quantiles": [0.5],
    "class_quantiles ": [],
    "confidence": None,
    "confidence ": -1.0,
    "confidence  ": "many",
    "level": 1.5,
    "max_risk": 0,
    "num_samples": 0,
    "seed": -1,
    "more": 1,
}


@pytest.mark.parametrize("key", WRONG)
def test_a_calibration_that_no_evaluation_writes_is_refused(digits_run, tmp_path, key):
    run = shutil.copytree(digits_run, tmp_path / "run")
    edit(run / "calibration.json", lambda content: content.update({key.strip(): WRONG[key]}))
    with pytest.raises(CheckpointError, match=r"calibration\.json is missing or damaged"):
        Pipeline.from_pretrained(run)


@pytest.mark.parametrize("content", ["", "[]", "3", "[" * 5000, '{"weights": {}}', "\0"])
def test_a_calibration_of_another_structure_is_refused(digits_run, tmp_path, content):
    run = shutil.copytree(digits_run, tmp_path / "run")
    (run / "calibration.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"calibration\.json is missing or damaged"):
        Pipeline.from_pretrained(run)


def test_every_calibration_that_is_written_is_read(digits_run, tmp_path):
    run = shutil.copytree(digits_run, tmp_path / "run")
    weights = Pipeline.from_pretrained(run).run.weights
    common = {"weights": weights, "num_samples": 3, "seed": 0}
    infinite = {
        "quantile": float("inf"),
        "class_quantiles": (float("inf"),) * 10,
        "confidence": float("inf"),
    }
    for temperature in (0.05, 1.0, 20.0):
        written = Calibration(temperature=temperature, **common, **infinite)
        written.save(run)
        assert Calibration.load(run, weights=weights, classes=10) == written


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


@pytest.mark.parametrize("kind", EXCHANGES)
@pytest.mark.parametrize("verb", ["predict", "evaluate", "train", "export"])
def test_the_preprocessing_of_a_run_is_that_of_its_weights(
    command, digits_run, tmp_path, photos, verb, kind
):
    run = shutil.copytree(digits_run, tmp_path / "run")
    edit(run / "preprocessing.json", EXCHANGES[kind])
    arguments = {
        "predict": [run, photos],
        "evaluate": [run],
        "train": ["--out", run, "--resume", "--epochs", 3],
        "export": [run, "--out", tmp_path / "shared"],
    }
    code, out, err = command(verb, *arguments[verb])
    assert (code, out, "preprocessing.json" in err, len(err.splitlines())) == (1, "", True, 1)


@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_shared_preprocessing_of_another_structure_is_refused_though_its_digest_is_right(
    shared, kind
):
    edit(shared / "preprocessing.json", EXCHANGES[kind])
    digest = hashlib.sha256((shared / "preprocessing.json").read_bytes()).hexdigest()
    edit(
        shared / "config.json",
        lambda content: content["files"].update({"preprocessing.json": digest}),
    )
    if kind in ("reversed classes", "a renamed class", "another mean"):
        return  # as the author of the folder says
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


ARCHIVES = {
    "best.pt": [
        lambda content: [content],
        lambda content: torch.ones(3),
        put("x", "model"),
        put({1: torch.ones(1)}, "guide"),
        put([1], "model", "network.norm.weight"),
        put(torch.ones(2, 2).to_sparse(), "model", "network.norm.weight"),
        put([], "layers"),
        put([], "extra"),
        put(None, "extra", "epoch"),
        put("3", "extra", "epoch"),
        put(None, "guide"),
    ],
    "last.pt": [
        lambda content: [content],
        put([], "extra"),
        put(None, "extra", "options"),
        put([1], "extra", "options"),
        put({"epochs": "many"}, "extra", "options"),
        put(None, "extra", "optimizers"),
        put([3], "extra", "optimizers"),
        put(7, "extra", "optimizers", 0, 1),
        put([], "extra", "optimizers", 0, 1, "param_groups"),
        put("x", "extra", "random"),
        put([], "extra", "random"),
        put([{}], "extra", "random"),
        put(torch.ones(3), "extra", "random", 0, "torch"),
        put(2**80, "extra", "random", 0, "python"),
        put([], "extra", "random", 0, "generators"),
        put(torch.ones(7), "extra", "optimizers", 0, 1, "state", 0, "exp_avg"),
        put("x", "extra", "optimizers", 0, 1, "state", 0, "exp_avg"),
        put("x", "extra", "optimizers", 0, 1, "state", 0, "step"),
        put(torch.ones(3), "extra", "optimizers", 0, 1, "state", 0, "step"),
        put("x", "extra", "optimizers", 0, 1, "param_groups", 0, "lr"),
        put(3, "extra", "optimizers", 0, 1, "param_groups", 0, "betas"),
        put("x", "extra", "optimizers", 1, 1, "last_epoch"),
        put("x", "extra", "optimizers", 1, 1, "base_lrs"),
        put("two", "extra", "epoch"),
        put(-1, "extra", "step"),
        put("yes", "extra", "should_stop"),
        put(None, "extra", "num_data"),
    ],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, kinds in ARCHIVES.items() for n in range(len(kinds))]
)
def test_checkpoints_of_another_structure_are_one_line(
    command, trained, tmp_path, photos, name, number
):
    run = shutil.copytree(trained["digits/kep-svgp"], tmp_path / "run")
    broken(name, ARCHIVES[name][number])(run)
    verb = ["train", "--out", run, "--resume", "--epochs", 3]
    for arguments in (
        [verb] if name == "last.pt" else [verb, ["evaluate", run], ["predict", run, photos]]
    ):
        code, out, err = command(*arguments)
        assert (code, out, name in err) == (1, "", True), err
        assert err.startswith("error: ")


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
def test_settings_of_another_structure_are_one_line(
    command, digits_run, shared, tmp_path, photos, kind
):
    run = shutil.copytree(digits_run, tmp_path / "run")
    edit(run / "settings.json", SETTINGS[kind])
    edit(shared / "config.json", lambda content: SETTINGS[kind](content["config"]["run"]))
    for arguments in (
        ["predict", run, photos],
        ["predict", shared, photos],
        ["evaluate", run],
        ["train", "--out", run, "--resume"],
        ["export", run, "--out", tmp_path / "out"],
    ):
        code, out, err = command(*arguments)
        assert (code, out, "settings.json" in err or "config.json" in err) == (1, "", True)
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evaluation.json", "[]"),
        ("evaluation.json", "{}"),
        ("evaluation.json", '{"stamp": {}, "data": {}}'),
        ("evaluation.json", '{"stamp": 3, "data": []}'),
        ("evaluation.json", "[" * 5000),
        ("scores.csv", ""),
        ("scores.csv", "a,b\n1,2\n"),
        ("scores.csv", "run,seed,method,set,n,nll\nx,0,posterior,test,many,low\n"),
        ("scores.csv", '"'),
    ],
)
def test_scores_of_another_structure_are_one_line(command, evaluated, tmp_path, name, content):
    run = shutil.copytree(evaluated["digits/softmax"], tmp_path / "run")
    (run / name).write_text(content)
    code, out, err = command("compare", run, "--out", tmp_path / "out")
    assert (code, out, name in err, len(err.splitlines())) == (1, "", True, 1)


def test_a_run_of_an_earlier_version_without_the_digest_is_read(digits_run, tmp_path):
    run = shutil.copytree(
        digits_run, tmp_path / "run", ignore=shutil.ignore_patterns("calibration.json")
    )
    broken("best.pt", put(None, "extra", "preprocessing.json"))(run)
    assert open_run(run).dataset.classes == tuple(CLASSES)
