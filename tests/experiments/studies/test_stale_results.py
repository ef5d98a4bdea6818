"""Results that belong to other weights, data or numbers of samples are not compared."""

import shutil

import pytest

from probattn.experiments.config import presets
from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.experiments.evaluation import evaluate
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.reporting import evaluation_tables
from probattn.experiments.runs import train
from probattn.experiments.studies import collect, compare
from probattn.experiments.studies.collect import Rows
from probattn.inference.training import trainer

SOFTMAX = "digits/softmax"


def train_seed(folder, tiny, *, seed):
    settings = presets.preset(SOFTMAX).with_changes([*tiny, "train.monitor=nll", f"train.seed={seed}"])
    train.train(settings, folder, name=SOFTMAX, progress=False, resume=True)


@pytest.fixture(scope="module")
def interrupted_once(tmp_path_factory, tiny):
    """Folders of runs of two seeds that were interrupted in their second epoch."""
    folders = [tmp_path_factory.mktemp("interrupted") / str(seed) for seed in range(2)]
    validate = trainer.validate
    for seed, folder in enumerate(folders):
        epochs = iter([1])

        def interrupt(*arguments, epochs=epochs, **options):
            if next(epochs, None) is None:
                raise KeyboardInterrupt
            return validate(*arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "validate", interrupt)
            with pytest.raises(KeyboardInterrupt):
                train_seed(folder, tiny, seed=seed)
    return folders


@pytest.fixture
def interrupted(interrupted_once, tmp_path):
    return [shutil.copytree(folder, tmp_path / folder.name) for folder in interrupted_once]


def test_scores_of_an_epoch_before_the_run_was_resumed_are_refused(interrupted, tiny):
    first, _ = interrupted
    evaluate.evaluate(first)
    assert list(collect.rows([first]).scores) == [f"{SOFTMAX} (1 of 2 epochs)"]
    train_seed(first, tiny, seed=0)
    with pytest.raises(SettingsError, match=f"{first}.*weights.*probattn evaluate {first}"):
        collect.rows([first])
    evaluate.evaluate(first)
    assert list(collect.rows([first]).scores) == [SOFTMAX]


def test_ensembles_do_not_mix_epochs(interrupted, tiny):
    for seed, folder in enumerate(interrupted):
        evaluate.evaluate(folder, ood=("letters",))
        train_seed(folder, tiny, seed=seed)
        evaluate.evaluate(folder)
    found = collect.rows(interrupted)
    assert found.scores[f"{SOFTMAX}, ensemble of 2"][0].ood == {}


def test_ensembles_do_not_mix_numbers_of_samples_of_an_interrupted_evaluation(interrupted, monkeypatch):
    def kill(*arguments):
        raise KeyboardInterrupt

    for folder in interrupted:
        evaluate.evaluate(folder)
    second = interrupted[1]
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "write_json", kill)
        with pytest.raises(KeyboardInterrupt):
            evaluate.evaluate(second, num_samples=1)
    with pytest.raises(SettingsError, match=rf"{second}.*number of samples.*probattn evaluate {second}"):
        collect.rows(interrupted)


def test_one_sample_is_not_compared_with_ten(interrupted):
    first, second = interrupted
    evaluate.evaluate(first)
    evaluate.evaluate(second, num_samples=1)
    with pytest.raises(SettingsError, match=r"cannot be compared.* number of samples \(10 and 1\)"):
        collect.rows(interrupted)


def test_ensembles_do_not_mix_data(interrupted, tiny):
    """All predictions of one member were made again after the validation part had changed, of the other none."""
    first, second = interrupted
    for folder in interrupted:
        evaluate.evaluate(folder)
    content = read_json(second / "metrics.json")
    content["provenance"]["posterior"]["data"]["valid"] = "of other images"
    write_json(second / "metrics.json", content)
    with pytest.raises(SettingsError, match=rf"{first} and {second} cannot be mixed .* data \(valid\)"):
        collect.rows(interrupted)


def test_a_baseline_with_another_number_of_samples_is_refused(interrupted):
    shift = {"shift": True, "corruptions": ("fog",), "severities": (1,)}
    first, second = interrupted
    done = evaluate.evaluate(first, **shift)
    evaluate.evaluate(second, num_samples=1, **shift)
    baseline = evaluation_tables.read_baseline(second)
    with pytest.raises(SettingsError, match=r"number of samples \(10 and 1\)"):
        evaluation_tables.save(first, done, baselines=[baseline])
    assert not (first / "tables").exists()


def test_a_baseline_needs_scores_under_shift(interrupted):
    evaluate.evaluate(interrupted[0])
    with pytest.raises(SettingsError, match=rf"{interrupted[0]} was not evaluated under shift.* --shift`"):
        evaluation_tables.read_baseline(interrupted[0])


def test_files_of_a_former_comparison_are_removed(tmp_path):
    def write(sources, **parts):
        scores = {"row": {0: Scores({"accuracy": 0.5}, **parts)}}
        rows = Rows(scores, {}, {"": ["row"]}, ["row"], sources)
        return compare.write(tmp_path, rows, compare.comparisons(rows))

    former = write({"run": "1"}, domain={"far": {"accuracy": 0.25}})
    (tmp_path / "mine.md").write_text("")
    now = write({"run": "2"})
    assert {path.name for path in tmp_path.iterdir()} == {"mine.md", "generated.json", *(path.name for path in now)}
    assert len(now) < len(former)
    record = read_json(tmp_path / "generated.json")
    assert record["sources"] == {"run": "2"}
