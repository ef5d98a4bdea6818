"""Evaluated runs: refused after any change of the run, and not compared with runs of other data, samples or libraries.

The weights of these runs are any bytes: nothing here opens them.
"""

import re
import shlex
import shutil

import pytest
from evaluated_runs import run, scored, write_metrics

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.experiments.evaluation import evaluate
from probattn.experiments.evaluation.evaluated_run import check_comparable, check_mixable, read_evaluated_run
from probattn.experiments.evaluation.options import EvaluationOptions
from probattn.inference.training.run_log import RunLog

SOFTMAX = "digits/softmax"
TWO_EPOCHS = ("train.epochs=2", "train.warmup_epochs=0")
SCORES = {"posterior": scored(0.5), "temperature": scored(0.25)}


@pytest.fixture
def folder(tmp_path):
    """Folder of an evaluated run with a checkpoint and a tokenizer."""
    folder = run(tmp_path / "run", SOFTMAX)
    for name in ("best.pt", "last.pt", "tokenizer.json"):
        (folder / name).write_text(name)
    write_metrics(folder, methods=SCORES)
    return folder


def evaluated(folder, *, seed=0, **options):
    return read_evaluated_run(run(folder, SOFTMAX, seed=seed, methods=SCORES, **options))


def test_an_evaluated_run_is_read(folder):
    found = read_evaluated_run(folder)
    assert found.scores["temperature"].test == {"accuracy": 0.25}
    assert found.test_sets == ["valid", "test"]
    assert found.command == f"probattn evaluate {folder} --num-samples 10 --method temperature"


@pytest.mark.parametrize(
    ("name", "words"),
    [("best.pt", "weights (trained on since, or another best.pt)"), ("tokenizer.json", "tokens of the texts")],
)
@pytest.mark.parametrize("change", ["other", None])
def test_a_changed_or_missing_file_of_the_run_outdates_its_scores(folder, name, words, change):
    path = folder / name
    path.unlink() if change is None else path.write_text(change)
    command = f"probattn evaluate {folder} --num-samples 10 --method temperature"
    with pytest.raises(SettingsError, match=re.escape(words)) as refused:
        read_evaluated_run(folder)
    assert str(refused.value).startswith(f"{folder} has changed since it was evaluated: ")
    assert str(refused.value).endswith(f"evaluate it again with `{command}`")


def test_changed_settings_outdate_the_scores(folder):
    other = run(folder.parent / "other", SOFTMAX, "data.seed=1")
    shutil.copy(other / "settings.json", folder / "settings.json")
    with pytest.raises(SettingsError, match=r"has changed since it was evaluated: settings \(settings\.json\);"):
        read_evaluated_run(folder)


def test_scores_of_another_run_are_refused(folder):
    other = run(folder.parent / "other", SOFTMAX, seed=1)
    (other / "best.pt").write_text("of seed 1")
    write_metrics(other, methods=SCORES)
    shutil.copy(other / "metrics.json", folder / "metrics.json")
    with pytest.raises(SettingsError, match=r"evaluated: weights .*; settings .*; tokens of the texts"):
        read_evaluated_run(folder)


def test_a_copy_of_the_folder_is_as_good(folder):
    copy = shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    assert read_evaluated_run(copy).scores["posterior"].test == {"accuracy": 0.5}


def test_results_without_checkpoints_can_be_read(folder):
    for name in ("best.pt", "last.pt"):
        (folder / name).unlink()
    assert read_evaluated_run(folder).scores["posterior"].test == {"accuracy": 0.5}


def test_files_that_no_result_depends_on_may_change(folder):
    (folder / "warm-start").mkdir()
    for name in ("last.pt", "log.jsonl", "warm-start/best.pt"):
        (folder / name).write_text("")
    assert read_evaluated_run(folder).scores["posterior"].test == {"accuracy": 0.5}


def test_a_run_that_went_on_without_a_better_epoch_is_finished(tmp_path):
    folder = run(tmp_path / "run", SOFTMAX, *TWO_EPOCHS, methods=SCORES, epochs_done=1)
    assert read_evaluated_run(folder).unfinished == "1 of 2 epochs"
    log = RunLog(folder / "log.jsonl", step=10**9)
    for epoch in (1, 2):
        log.write("epoch", epoch, epoch=epoch)
    assert read_evaluated_run(folder).unfinished == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("options", "provenance", "methods") for value in ({}, [], {"posterior": {}})),
        *((key, None) for key in ("options", "provenance", "methods", "best_epoch", "epochs_done")),
    ],
)
def test_scores_that_do_not_say_what_they_are_of_are_refused(folder, key, value):
    content = read_json(folder / "metrics.json")
    content[key] = value
    if value is None:
        del content[key]
    write_json(folder / "metrics.json", content)
    with pytest.raises(SettingsError, match=rf"metrics\.json cannot be used .*`probattn evaluate {folder}`") as refused:
        read_evaluated_run(folder)
    assert "\n" not in str(refused.value)


DIFFERENCES = {
    "number of samples (10 and 1)": {"num_samples": 1},
    "seed of the samples (0 and 3)": {"seed": 3},
    "version of probattn (1 and 2)": {"versions": {"probattn": "2"}},
    "version of torch (None and 2)": {"versions": {"torch": "2"}},
    "data (test)": {"data": {"test": "other"}},
}


@pytest.mark.parametrize("words", DIFFERENCES)
def test_runs_that_differ_in_data_samples_or_libraries_are_not_compared(tmp_path, words):
    options = dict(DIFFERENCES[words])
    one = evaluated(tmp_path / "one")
    folder = run(tmp_path / "other", SOFTMAX, seed=1)
    write_metrics(folder, methods=SCORES, **options)
    other = read_evaluated_run(folder)
    with pytest.raises(SettingsError) as refused:
        check_comparable([one, other])
    again = f"probattn evaluate {folder} --num-samples 10 --method temperature"
    assert str(refused.value) == (
        f"{one.folder} and {folder} cannot be compared, they differ in {words}; evaluate both again with "
        f"`{one.command}` and `{again}`"
    )


def test_runs_of_different_splits_are_not_compared(tmp_path):
    one = evaluated(tmp_path / "one")
    other = read_evaluated_run(run(tmp_path / "two", SOFTMAX, "data.seed=1", methods=SCORES, data={"test": "other"}))
    with pytest.raises(SettingsError, match=r"data \(test\); they were trained with another data\.seed: compare"):
        check_comparable([one, other])


def test_training_data_may_differ_where_runs_are_compared_but_not_in_an_ensemble(tmp_path):
    one, other = evaluated(tmp_path / "one"), evaluated(tmp_path / "two", data={"train": "other", "valid": "other"})
    check_comparable([one, other])
    with pytest.raises(SettingsError, match=r"cannot be mixed to an ensemble, they differ in data \(train, valid\)"):
        check_mixable([one, other], ["test"])


def test_other_severities_are_not_compared(tmp_path):
    sets = {f"shift/fog/{severity}": "digest" for severity in (1, 5)}
    options = {"shift": True, "corruptions": ["fog"]}
    one = evaluated(tmp_path / "one", data=sets, severities=[1, 5], **options)
    other = evaluated(tmp_path / "two", seed=1, data={"shift/fog/1": "digest"}, severities=[1], **options)
    with pytest.raises(SettingsError, match=re.escape("test sets (shift/fog/5 in one only)")) as refused:
        check_comparable([one, other])
    assert f"{other.folder} --num-samples 10 --method temperature --shift --corruptions fog --severities 1,5`" in str(
        refused.value
    )


def test_other_corrupted_images_are_not_compared(tmp_path):
    one, other = (evaluated(tmp_path / name, data={"shift/fog/1": name}) for name in ("official", "generated"))
    with pytest.raises(SettingsError, match=r"data \(shift/fog/1\)"):
        check_comparable([one, other])


def test_a_run_may_lack_test_sets_of_another(tmp_path):
    sets = {"shift/fog/1": "digest", "ood/letters": "digest", "domain/far": "digest"}
    runs = [evaluated(tmp_path / name, data=data) for name, data in (("one", sets), ("two", {}))]
    check_comparable(runs)
    ood = evaluated(tmp_path / "three", data={"ood/letters": "other"})
    check_comparable([runs[1], ood])
    with pytest.raises(SettingsError, match=r"one and .*three cannot be compared, they differ in data \(ood/letters\)"):
        check_comparable([*runs, ood])


def test_the_command_repeats_all_options(command, tmp_path, monkeypatch):
    data = tmp_path / "my data"
    data.mkdir()
    options = EvaluationOptions(
        num_samples=3,
        seed=4,
        by=("temperature", "laplace+temperature"),
        shift=True,
        corruptions=("fog", "frost"),
        severities=(1, 5),
        ood=("letters", "./my photos"),
        root=str(data),
    )
    given = {}

    def stop(folder, **arguments):
        given.update(arguments, folder=folder)
        raise SettingsError("stopped")

    monkeypatch.setattr(evaluate, "evaluate", stop)
    program, *words = shlex.split(options.command(tmp_path))
    assert program == "probattn"
    assert command(*words)[2] == "error: stopped\n"
    del given["say"]
    assert {name: str(value) if name == "root" else value for name, value in given.items()} == {
        **{name: list(value) if name in ("by", "ood") else value for name, value in vars(options).items()},
        "folder": tmp_path,
    }
