"""Evaluation of a trained run: predictions by one or several methods, their scores, and the content of a report."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.evaluation import eval_sets, methods, prediction_store
from probattn.experiments.evaluation.decisions import decide
from probattn.experiments.evaluation.eval_sets import TestSet
from probattn.experiments.evaluation.run_result import RunResult, describe_unfinished
from probattn.experiments.evaluation.scores import Scores, score
from probattn.experiments.runs.build import find_device
from probattn.experiments.runs.command import train_command
from probattn.experiments.runs.environment import environment
from probattn.experiments.runs.folder import read_record
from probattn.experiments.runs.load import TrainedRun, open_run
from probattn.inference import Prediction, attention_spectra, posterior_summary, posterior_variants, token_similarity
from probattn.inference.diagnostics.posterior_collapse import local_latent_sites
from probattn.inference.distributed.collectives import (
    broadcast_result,
    gather_results,
    make_fabric,
    rank_zero_first,
    world,
)
from probattn.inference.io.lock import locked
from probattn.inference.io.sealed_files import write_json
from probattn.inference.training.run_log import read_log

EXAMPLES = 256
"""Test examples that spectra and similarities are measured on, at most."""


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: the report's content for the posterior predictive, and the scores of each method."""

    result: RunResult
    scores: dict[str, Scores]


def evaluate(
    folder: Path,
    *,
    root: Path | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    by: Sequence[str] = (),
    shift: bool = False,
    corruptions: Sequence[str] = eval_sets.STANDARD,
    severities: Sequence[int] = eval_sets.SEVERITIES,
    ood: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate a run's best epoch and write ``metrics.json`` and ``predictions/``.

    All data are checked before anything is predicted, and stored predictions that are up to date are reused. Under
    torchrun the processes share the groups of test sets, and the first one writes.

    Args:
        folder: the run's folder.
        root: folder of the data sets.
        num_samples: draws of each prediction, by default ``train.num_samples``.
        seed: seed of the draws.
        by: methods in addition to the posterior predictive (see :mod:`probattn.experiments.evaluation.methods`).
        shift: evaluate on corrupted test images, too.
        corruptions, severities: those of ``shift``.
        ood: names of OOD image sets (see :mod:`probattn.experiments.data.ood.datasets`).
        say: called with a message about the progress.

    Raises:
        SettingsError, CheckpointError: the folder holds no run, or a damaged one; an unknown method.
        BlockingIOError: another process trains or evaluates the run.
        DatasetError: data that are missing or damaged.
    """
    names = tuple(dict.fromkeys((methods.POSTERIOR, *map(methods.check, by))))
    settings = read_record(folder).settings  # raises before a folder without a run gets a lock
    if world().size > 1:
        make_fabric(find_device(settings.train.accelerator), devices=1)

    def open_with_sets() -> tuple[TrainedRun, dict[str, TestSet]]:
        run = open_run(folder, root=root)
        sets = eval_sets.own_sets(run.dataset)
        if shift:
            sets |= eval_sets.shifted_sets(run.dataset, root=root, corruptions=corruptions, severities=severities)
        return run, sets | eval_sets.ood_sets(run.dataset, ood, root=root)

    with ExitStack() as stack:
        broadcast_result(lambda: stack.enter_context(locked(folder)))
        run, sets = rank_zero_first(open_with_sets)
        num_samples = num_samples or run.settings.train.num_samples
        predictions = predict_sets(run, sets, names, num_samples=num_samples, seed=seed, say=say)
        scores = {name: score(by_set) for name, by_set in predictions.items()}
        posterior = predictions[methods.POSTERIOR], scores[methods.POSTERIOR]
        result = _run_result(run, *posterior, num_samples=num_samples, seed=seed)
        content = {
            "run": run.name,
            "metrics": result.metrics,
            "variants": result.variants,
            "posterior": result.posterior,
            "similarity": result.similarity,
            "methods": {name: each.to_json() for name, each in scores.items()},
            "decisions": result.decisions.to_json(),
            "best_epoch": run.best_epoch,
            "epochs_done": _epochs_done(result.epochs),
            "num_samples": num_samples,
            "seed": seed,
            "trained_on": run.environment,
            "evaluated_on": environment(run.device),
        }
        broadcast_result(lambda: write_json(folder / "metrics.json", content))
        return Evaluation(result, scores)


def predict_sets(
    run: TrainedRun,
    sets: Mapping[str, TestSet],
    names: Sequence[str],
    *,
    num_samples: int,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Prediction]]:
    """Return predictions by method and test set, stored ones if up to date; images are corrupted once for all methods.

    The draws start from the seed in every test set. So draw s is one function on all of them, and the processes of
    torchrun, each of which takes every ``world``-th group of test sets, predict what one process would.
    """
    weights = hashlib.sha256((run.folder / "best.pt").read_bytes()).hexdigest()
    origin = {"draws": num_samples, "seed": seed, "weights": weights, "probattn": version("probattn")}
    options = {"num_samples": num_samples, "seed": seed}
    fitted = functools.cache(functools.partial(methods.fit, run, **options))

    def predict_group(group: Sequence[str]) -> dict[str, dict[str, Prediction]]:
        origins = {each: {**origin, "images": sets[each].origin} for each in group}
        forward = functools.cache(lambda each: methods.CachedForward(run, sets[each].load(), **options))

        def predict(each: str, *, name: str) -> Prediction:
            return methods.predict(fitted(name), forward(each))

        return {
            name: prediction_store.load_or_predict(run.folder, name, origins, functools.partial(predict, name=name))
            for name in names
        }

    predictions: dict[str, dict[str, Prediction]] = {name: {} for name in names}
    groups, (rank, size) = prediction_store.groups(sets), world()
    for start in range(0, len(groups), size):
        chunk = groups[start : start + size]
        for results in gather_results(lambda own=chunk[rank : rank + 1]: list(map(predict_group, own))):
            for name in names:
                predictions[name] |= results[0][name] if results else {}
        say(f"{run.folder}: {start + len(chunk)} of {len(groups)} groups of sets")
    return predictions


def _run_result(
    run: TrainedRun, predictions: Mapping[str, Prediction], scores: Scores, *, num_samples: int, seed: int
) -> RunResult:
    model, guide, data = run.model, run.guide, run.dataset.test
    batches, test = run.batches(data), predictions["test"]
    log = run.folder / "log.jsonl"
    records = read_log(log) if log.exists() else []
    epochs = [record for record in records if record["kind"] == "epoch"]
    examples = [tuple(part[:EXAMPLES] for part in next(iter(batches)))]
    torch.manual_seed(seed)
    posterior = posterior_summary(model, guide)
    has_latents = posterior or local_latent_sites(model, examples[0][0][:2])
    progress = {"epochs_done": _epochs_done(epochs), "best_epoch": run.best_epoch}
    is_image = isinstance(data, Images)
    settings = {"best epoch": run.best_epoch, "num_samples": num_samples, **run.environment}
    return RunResult(
        name=run.name,
        command=train_command(run.name, run.settings),
        settings=run.settings.flat() | settings,
        metrics=scores.test,
        steps=[record for record in records if record["kind"] == "step"],
        epochs=epochs,
        probs=test.probs,
        labels=test.labels,
        images=data.images if is_image else torch.empty(0),
        texts=() if is_image else data.texts,
        classes=run.dataset.classes,
        spectra=attention_spectra(model, guide, examples),
        posterior=posterior,
        variants=posterior_variants(model, guide, batches, num_samples=num_samples, drawn=test) if has_latents else {},
        similarity=token_similarity(model, guide, examples),
        shift=scores.shift,
        decisions=decide(predictions["valid"], test),
        domains=scores.domain,
        ood={name.removeprefix("ood/"): each for name, each in predictions.items() if name.startswith("ood/")},
        unfinished=describe_unfinished(run.settings.train, **progress),
    )


def _epochs_done(epochs: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the last epoch of a run's log; None without a log."""
    return max((record["epoch"] for record in epochs), default=None)
