"""Evaluation of a trained run: predictions by several methods, their scores, calibration, and a
report's content."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from probattn.experiments.config.schema import Trust
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.displayable import csv_text
from probattn.experiments.evaluation import evaluated_run, kept_predictions, methods
from probattn.experiments.evaluation.baselines import rivals, suited
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.eval_sets import TestSet, eval_sets
from probattn.experiments.evaluation.methods import BASELINE
from probattn.experiments.evaluation.run_result import RunResult, run_result
from probattn.experiments.runs.load import TrainedRun, open_run
from probattn.inference import Prediction
from probattn.inference.io.files import locked, write_bytes


class Evaluation(NamedTuple):
    """Result of an evaluation: content of a report on the posterior predictive, and scores of all
    methods."""

    result: RunResult
    scores: pd.DataFrame


def evaluate(
    folder: Path,
    *,
    root: Path | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    refine: float | None = None,
    by: Sequence[str] = (),
    level: float = 0.9,
    max_risk: float = 0.05,
    baselines: bool = False,
    say: Callable[[str], None] = lambda text: None,
    trust_code: Trust = False,
    **tests: Any,
) -> Evaluation:
    """Evaluate a run's best epoch; write ``scores.csv``, ``evaluation.json``, ``calibration.json``,
    ``predictions/``.

    All data are checked before anything is predicted, and stored predictions that are up to date
    are reused.

    Args:
        folder: the run's folder.
        root: folder of the data sets.
        num_samples: draws of each prediction, by default ``train.num_samples``.
        seed: seed of the draws.
        refine: as for :func:`~probattn.inference.predict`, for classes.
        by: methods in addition to the posterior predictive (see
            :mod:`probattn.experiments.evaluation.methods`).
        level: probability that conformal sets and intervals hold the label.
        max_risk: largest error rate of accepted answers.
        baselines: also fit and score what one would use without attention (see
            :mod:`probattn.experiments.evaluation.baselines`).
        say: called with a message about the progress.
        trust_code: as for :func:`~probattn.experiments.runs.load.open_run`.
        tests: ``shift``, ``corruptions``, ``severities`` and ``ood`` of :func:`eval_sets`.

    Raises:
        SettingsError, CheckpointError: the folder holds no run, or a damaged one; an unknown
        method. filelock.Timeout: another process trains or evaluates the run.
        DatasetError: data that are missing or damaged.
    """
    names = methods.check(by)
    with locked(folder):
        run = open_run(folder, root=root, trust_code=trust_code)
        sets = eval_sets(run.dataset, root=root, **tests)
        if refine is not None and not run.dataset.classes:
            raise SettingsError(f"--refine is for classes, and {folder} predicts numbers")
        draws: dict[str, Any] = {
            "num_samples": num_samples or run.settings.train.num_samples,
            "seed": seed,
            "refine": refine,
        }
        stamp = evaluated_run.run_stamp(folder) | draws
        of_baselines = {name: f"{BASELINE}/{name}" for name in suited(run.dataset)}
        if baselines:
            names = (*names, *of_baselines.values())
        predicted = predict_sets(run, sets, names, stamp=stamp, say=say)
        scores = {name: evaluated_run.score(by_set) for name, by_set in predicted.items()}
        posterior = predicted[methods.POSTERIOR]
        of_posterior = scores[methods.POSTERIOR]
        calibration = Calibration.fit(
            posterior["valid"],
            weights=run.weights,
            level=level,
            max_risk=max_risk,
            **draws,
        )
        for name, row in calibration.by_class(posterior["test"], run.dataset.classes).items():
            of_posterior[f"class/{name}"] = row
        result = run_result(run, posterior, of_posterior, calibration)
        if baselines:
            on_test = {name: predicted[method]["test"] for name, method in of_baselines.items()}
            calibrated = calibration.apply(posterior["test"])
            result = replace(result, rivals=rivals(calibrated, on_test))
        frame = evaluated_run.to_frame(
            scores,
            run=result.name,
            seed=run.settings.train.seed or 0,
        )
        calibration.save(folder)
        write_bytes(folder / evaluated_run.SCORES, csv_text(frame).encode())
        content = {
            "decisions": result.decisions,
            "variants": result.variants,
            "posterior": result.posterior,
            "stamp": stamp,
            "data": {name: test.digest for name, test in sets.items()},
        }
        text = json.dumps(content, indent=2, default=asdict)
        write_bytes(folder / evaluated_run.EVALUATION, text.encode())
    return Evaluation(result, frame)


def _example_frame(name: str, prediction: Prediction) -> pd.DataFrame:
    """Return the examples of a test set as they are kept; labels of unknown inputs mean nothing."""
    if name.startswith("ood/"):
        return kept_predictions.example_frame(replace(prediction, labels=None))
    if name.startswith("shift/"):
        return kept_predictions.example_frame(prediction)
    return kept_predictions.refined_frame(prediction)


def predict_sets(
    run: TrainedRun,
    sets: Mapping[str, TestSet],
    names: Sequence[str],
    *,
    stamp: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, dict[str, Prediction]]:
    """Return predictions by method and test set, stored ones if up to date; images are corrupted
    once for all methods. Baselines predict neither these nor other data.

    The draws start from the seed in every test set, so that draw s is one function on all of them.

    Args:
        run, sets: the run and its test sets.
        names: the methods.
        stamp: of the run, with ``num_samples``, ``seed`` and ``refine`` of the draws.
        say: called with a message about the progress.
    """
    draws = {name: stamp[name] for name in ("num_samples", "seed", "refine")}
    fitted = functools.cache(functools.partial(methods.fit, run, **draws))
    predicted: dict[str, dict[str, Prediction]] = {method: {} for method in names}
    for number, (name, test) in enumerate(sets.items(), 1):
        of_set = {**stamp, "data": test.digest}
        forward = None
        for method in names:
            if method.startswith(BASELINE) and name.startswith(("shift/", "ood/")):
                continue
            file, examples = kept_predictions.stored_files(run.folder, method, name)
            prediction = None
            if kept_predictions.read_examples(examples, stamp=of_set) is not None:
                prediction = evaluated_run.load_prediction(file, stamp=of_set)
            if prediction is None:
                forward = forward or methods.Forward(run, test.load(), **draws)
                prediction = fitted(method)(forward)
                evaluated_run.save_prediction(file, prediction, stamp=of_set)
                # A corrupted image keeps its identity, by which comparisons pair the examples.
                part = run.dataset.test if name.startswith("shift/") else forward.data
                frame = _example_frame(name, prediction)
                kept_predictions.save_examples(examples, frame, part.keys, stamp=of_set)
            predicted[method][name] = prediction
        say(f"{run.folder}: {number} of {len(sets)} test sets predicted")
    return predicted
