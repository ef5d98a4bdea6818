"""Results that belong to other weights, data or numbers of samples are not compared."""

import shutil

import pytest

from probattn.experiments.config import presets
from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation import evaluate
from probattn.experiments.runs import train
from probattn.experiments.studies import collect
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
    with pytest.raises(SettingsError, match=r"number of samples.*10.*1"):
        collect.rows(interrupted)
