"""Evaluation of a trained run: predictions by several methods, their scores, calibration, and a report's content."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.evaluation import methods, predictions
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.eval_sets import TestSet, eval_sets
from probattn.experiments.evaluation.evaluated_run import EVALUATION, SCORES, file_digests
from probattn.experiments.evaluation.run_result import RunResult, run_result
from probattn.experiments.evaluation.scores import score, to_frame
from probattn.experiments.runs.folder import read_record
from probattn.experiments.runs.load import TrainedRun, open_run
from probattn.inference import Prediction
from probattn.inference.io.files import locked, write_bytes


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: content of a report on the posterior predictive, scores of all methods, calibration."""

    result: RunResult
    scores: pd.DataFrame
    calibration: Calibration


def evaluate(
    folder: Path,
    *,
    root: Path | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    by: Sequence[str] = (),
    convergence: bool = True,
    level: float = 0.9,
    max_risk: float = 0.05,
    say: Callable[[str], None] = lambda text: None,
    **tests: Any,
) -> Evaluation:
    """Evaluate a run's best epoch; write ``scores.csv``, ``evaluation.json``, ``calibration.json``, ``predictions/``.

    All data are checked before anything is predicted, and stored predictions that are up to date are reused.

    Args:
        folder: the run's folder.
        root: folder of the data sets.
        num_samples: draws of each prediction, by default ``train.num_samples``.
        seed: seed of the draws.
        by: methods in addition to the posterior predictive (see :mod:`probattn.experiments.evaluation.methods`).
        convergence: test whether the posterior has converged (see :func:`run_convergence`).
        level: probability that conformal sets and intervals hold the label.
        max_risk: largest error rate of accepted answers.
        say: called with a message about the progress.
        tests: ``shift``, ``corruptions``, ``severities`` and ``ood`` of :func:`eval_sets`.

    Raises:
        SettingsError, CheckpointError: the folder holds no run, or a damaged one; an unknown method.
        filelock.Timeout: another process trains or evaluates the run.
        DatasetError: data that are missing or damaged.
    """
    names = methods.check(by)
    read_record(folder)  # raises before a folder without a run gets a lock
    with locked(folder):
        run = open_run(folder, root=root)
        sets = eval_sets(run.dataset, root=root, **tests)
        files = file_digests(folder)
        draws = {"num_samples": num_samples or run.settings.train.num_samples, "seed": seed}
        predicted = predict_sets(run, sets, names, key={"files": files, **draws}, say=say)
        scores = {name: score(by_set) for name, by_set in predicted.items()}
        posterior, levels = predicted[methods.POSTERIOR], {"level": level, "max_risk": max_risk}
        calibration = Calibration.fit(posterior["valid"], weights=files["best.pt"], **draws, **levels)
        of_posterior = scores[methods.POSTERIOR]
        options = {"calibration": calibration, "convergence": convergence}
        options["shift_source"] = next((part.source for part in sets.values() if part.source), "")
        result = run_result(run, posterior, of_posterior, **options)
        for row in result.by_class:
            of_posterior[f"class/{row['class']}"] = {key: value for key, value in row.items() if key != "class"}
        frame = to_frame(scores, run=result.label, seed=run.settings.train.seed or 0)
        calibration.save(folder)
        write_bytes(folder / SCORES, frame.to_csv(index=False, lineterminator="\n").encode(errors="backslashreplace"))
        shown = ("decisions", "variants", "unfinished", "shift_source")
        content = {name: getattr(result, name) for name in shown} | {
            "run": run.name,
            "options": draws | levels | tests | {"methods": names, "data": root and str(root)},
            "files": files,
            "data": {name: part.digest() for name, part in sets.items()},
            "posterior": [asdict(site) | {"state": site.state} for site in result.posterior],
            "best_epoch": run.best_epoch,
        }
        write_bytes(folder / EVALUATION, json.dumps(content, indent=2).encode())
    return Evaluation(result, frame, calibration)


def predict_sets(
    run: TrainedRun,
    sets: Mapping[str, TestSet],
    names: Sequence[str],
    *,
    key: Mapping[str, Any],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Prediction]]:
    """Return predictions by method and test set, stored ones if up to date; images are corrupted once for all methods.

    The draws start from the seed in every test set, so that draw s is one function on all of them.

    Args:
        run, sets: the run and its test sets.
        names: the methods.
        key: the run's files, and ``num_samples`` and ``seed`` of the draws.
        say: called with a message about the progress.
    """
    options = {name: key[name] for name in ("num_samples", "seed")}
    fitted = functools.cache(functools.partial(methods.fit, run, **options))
    predicted: dict[str, dict[str, Prediction]] = {method: {} for method in names}
    for number, (name, part) in enumerate(sets.items(), 1):
        stamp, forward = {**key, "digest": part.digest()}, None
        for method in names:
            prediction = predictions.load(run.folder, method, name, key=stamp)
            if prediction is None:
                forward = forward or methods.Forward(run, part.load(), **options)
                prediction = methods.predict(fitted(method), forward)
                predictions.save(run.folder, method, name, prediction, key=stamp)
            predicted[method][name] = prediction
        say(f"{run.folder}: {number} of {len(sets)} test sets predicted")
    return predicted
