"""Evaluated runs, read from their folders: refused if a run has changed since, or if two cannot be compared."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.sealed_files import read_json
from probattn.experiments.evaluation import methods, prediction_store
from probattn.experiments.evaluation.options import EvaluationOptions
from probattn.experiments.evaluation.provenance import FITTED_ON, Provenance, differences, state_of
from probattn.experiments.evaluation.run_result import describe_unfinished, last_epoch
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.runs.folder import read_record
from probattn.inference import Prediction
from probattn.inference.training.run_log import read_log


@dataclass(frozen=True)
class EvaluatedRun:
    """A run with its scores.

    Args:
        folder: the run's folder.
        preset, settings: of the run.
        options: options of the evaluation.
        scores: method → scores.
        provenance: method → what its scores were computed from.
        unfinished: epochs of a run that was stopped early, such as "30 of 40 epochs".
        shift_source: where its corrupted images are from; empty without them.
        sizes: number of examples of each test set with labels.
    """

    folder: Path
    preset: str
    settings: Settings
    options: EvaluationOptions
    scores: dict[str, Scores]
    provenance: dict[str, Provenance]
    unfinished: str
    shift_source: str
    sizes: dict[str, int]

    @property
    def command(self) -> str:
        """The command that evaluates the run again."""
        return self.options.command(self.folder)

    @property
    def test_sets(self) -> list[str]:
        """Names of the test sets that it was evaluated on, the validation part included."""
        return [name for name in self.provenance[methods.POSTERIOR].data if name != "train"]

    def predictions(self, names: Iterable[str], method: str) -> dict[str, Prediction]:
        """Load the predictions on some test sets that the scores were computed from.

        Raises:
            CheckpointError: a damaged file.
            SettingsError: a prediction that is missing, or not the one that was scored.
        """
        try:
            return prediction_store.load_predictions(self.folder, names, self.provenance[method])
        except SettingsError as error:
            raise SettingsError(f"{error}, unlike its score; evaluate the run again with `{self.command}`") from error


def read_evaluated_run(folder: Path) -> EvaluatedRun:
    """Read the scores of a run from its ``metrics.json``.

    Raises:
        SettingsError: no run, one that was not evaluated, a damaged file, or a run that has changed since.
    """
    record = read_record(folder)
    path = folder / "metrics.json"
    try:
        content = read_json(path, advice=f"evaluate the run again with `probattn evaluate {folder}`")
        options = EvaluationOptions.from_json(content["options"])
        scores = {method: Scores.from_json(each) for method, each in content["methods"].items()}
        provenance = {method: Provenance.from_json(content["provenance"][method]) for method in scores}
        best_epoch, epochs_done = content["best_epoch"], content["epochs_done"]
        shift_source, sizes = content["shift_source"], dict(content["sizes"])
        _ = scores[methods.POSTERIOR]
    except FileNotFoundError as error:
        raise SettingsError(f"{folder} was not evaluated; do it with `probattn evaluate {folder}`") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{path} cannot be used ({type(error).__name__}: {error}); evaluate the run again with "
            f"`probattn evaluate {folder}`"
        ) from error
    now = state_of(folder)
    changed = dict.fromkeys(each for then in provenance.values() for each in differences(then, replace(then, **now)))
    if changed:
        raise SettingsError(
            f"{folder} has changed since it was evaluated: {'; '.join(changed)}; evaluate it again with "
            f"`{options.command(folder)}`"
        )
    log = folder / "log.jsonl"
    epochs_done = last_epoch(read_log(log)) if log.exists() else epochs_done  # a resumed run may keep its best epoch
    unfinished = describe_unfinished(record.settings.train, epochs_done=epochs_done, best_epoch=best_epoch)
    about = options, scores, provenance, unfinished, shift_source, sizes
    return EvaluatedRun(folder, record.name, record.settings, *about)


def check_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Check that runs have the same test images or texts, samples, seed of the samples and libraries.

    A run may lack test sets of another. Of corruptions, whose mean is compared, all runs have the same, or none.

    Raises:
        SettingsError: two runs that cannot be compared; says in what they differ.
    """
    for one, other in itertools.combinations(runs, 2):
        names = (set(one.test_sets) & set(other.test_sets)) - set(FITTED_ON)
        shifts = [{name for name in run.test_sets if name.startswith("shift/")} for run in (one, other)]
        _check_same(one, other, names.union(*shifts) if all(shifts) else names, verb="compared")


def check_mixable(runs: Sequence[EvaluatedRun], names: Collection[str]) -> None:
    """Check that predictions of runs on some test sets may be mixed: all data are the same, those of training, too.

    Raises:
        SettingsError: two runs that cannot be mixed; says in what they differ.
    """
    for one, other in itertools.combinations(runs, 2):
        _check_same(one, other, {*FITTED_ON, *names}, verb="mixed to an ensemble")


def _check_same(one: EvaluatedRun, other: EvaluatedRun, names: Collection[str], *, verb: str) -> None:
    """Compare the provenance of two runs, apart from what belongs to a run, on some test sets."""
    changed = {}
    for method in (name for name in one.provenance if name in other.provenance):
        pair = (_without_run(run.provenance[method], names) for run in (one, other))
        changed |= dict.fromkeys(differences(*pair))
    if not changed:
        return
    data = [{f"data.{key}": value for key, value in vars(run.settings.data).items()} for run in (one, other)]
    differing = [key for key in data[0] if key != "data.batch_size" and data[0][key] != data[1].get(key)]
    again = replace(other, options=replace(one.options, by=other.options.by)).command
    remedy = (
        f"they were trained with another {' and '.join(differing)}: compare runs on the same data"
        if differing
        else f"evaluate both again with `{one.command}` and `{again}`"
    )
    raise SettingsError(
        f"{one.folder} and {other.folder} cannot be {verb}, they differ in {'; '.join(changed)}; {remedy}"
    )


def _without_run(provenance: Provenance, names: Collection[str]) -> Provenance:
    data = {name: each for name, each in provenance.data.items() if name in names}
    return replace(provenance, weights="", settings="", tokens="", data=data)
