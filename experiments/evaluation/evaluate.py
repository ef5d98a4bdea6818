"""Evaluating a trained run: its predictions by one method or several, the scores of these, and all a report shows."""

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
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation import eval_sets, methods, prediction_store
from probattn.experiments.evaluation.decisions import acting
from probattn.experiments.evaluation.eval_sets import TestSet
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.evaluation.scores import scores
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
from probattn.inference.io.atomic_write import write_json
from probattn.inference.io.lock import locked
from probattn.inference.training.run_log import read_log

EXAMPLES = 256


@dataclass(frozen=True)
class Evaluation:
    """What came out: the report's contents for the posterior predictive, and every method's scores."""

    result: RunResult
    scores: dict[str, dict[str, Any]]


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
    """Evaluates a run's best epoch and writes ``metrics.json`` and ``predictions/``.

    All data are checked before anything is predicted. Predictions that are stored and still hold are not made again.
    Under torchrun the processes share out groups of sets; the first writes.

    Args:
        folder: the run's folder.
        root: where data sets lie.
        num_samples: draws of each prediction, by default ``train.num_samples``.
        seed: of the draws.
        by: methods beside the posterior predictive (see :mod:`probattn.experiments.evaluation.methods`).
        shift: evaluate on corrupted test images, too.
        corruptions, severities: which ones.
        ood: names of foreign sets of images (see :mod:`probattn.experiments.data.ood.datasets`).
        say: is told which method predicts.

    Raises:
        SettingsError, CheckpointError: the folder holds no run, or a damaged one; an unknown method.
        BlockingIOError: another process trains or evaluates the run.
        DatasetError: data that are missing or damaged.
    """
    names = tuple(dict.fromkeys((methods.POSTERIOR, *map(methods.check, by))))
    settings = read_record(folder).settings  # a folder that holds no run shall get no lock
    if world().size > 1:
        make_fabric(find_device(settings.train.accelerator), devices=1)

    def opened() -> tuple[TrainedRun, dict[str, TestSet]]:
        run = open_run(folder, root=root)
        sets = eval_sets.own(run.dataset)
        if shift:
            sets |= eval_sets.shifts(run.dataset, root=root, corruptions=corruptions, severities=severities)
        return run, sets | eval_sets.foreign(run.dataset, ood, root=root)

    with ExitStack() as held:
        broadcast_result(lambda: held.enter_context(locked(folder)))
        run, sets = rank_zero_first(opened)
        num_samples = num_samples or run.settings.train.num_samples
        predicted = predictions(run, sets, names, num_samples=num_samples, seed=seed, say=say)
        scored = {name: scores(sets_of) for name, sets_of in predicted.items()}
        result = _result(
            run, predicted[methods.POSTERIOR], scored[methods.POSTERIOR], num_samples=num_samples, seed=seed
        )
        content = {
            "run": run.name,
            "metrics": result.metrics,
            "variants": result.variants,
            "posterior": result.posterior,
            "similarity": result.similarity,
            "methods": scored,
            "acting": acting(predicted[methods.POSTERIOR]["valid"], predicted[methods.POSTERIOR]["test"]),
            "best_epoch": run.best_epoch,
            "num_samples": num_samples,
            "seed": seed,
            "trained_on": run.environment,
            "evaluated_on": environment(run.device),
        }
        broadcast_result(lambda: write_json(folder / "metrics.json", content))
        return Evaluation(result, scored)


def predictions(
    run: TrainedRun,
    sets: Mapping[str, TestSet],
    names: Sequence[str],
    *,
    num_samples: int,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Prediction]]:
    """Predictions by method and set, stored ones where they still hold; corrupted images are made once for all methods.

    The draws start from the seed in every set, so that draw s is one function on all of them, and so that the processes
    of torchrun, each of which takes every ``world``-th part of the sets, predict what one would.
    """
    weights = hashlib.sha256((run.folder / "best.pt").read_bytes()).hexdigest()
    origin = {"draws": num_samples, "seed": seed, "weights": weights, "probattn": version("probattn")}
    options = {"num_samples": num_samples, "seed": seed}
    method = functools.cache(functools.partial(methods.fitted, run, **options))

    def predicted(part: Sequence[str]) -> dict[str, dict[str, Prediction]]:
        origins = {each: {**origin, "images": sets[each].origin} for each in part}
        seen = functools.cache(lambda each: methods.CachedForward(run, sets[each].make(), **options))

        def predict(each: str, *, name: str) -> Prediction:
            return methods.apply(method(name), seen(each))

        return {
            name: prediction_store.load_or_predict(run.folder, name, origins, functools.partial(predict, name=name))
            for name in names
        }

    found: dict[str, dict[str, Prediction]] = {name: {} for name in names}
    parts, (rank, size) = prediction_store.parts(sets), world()
    for start in range(0, len(parts), size):
        now = parts[start : start + size]
        for made in gather_results(lambda own=now[rank : rank + 1]: list(map(predicted, own))):
            for name in names:
                found[name] |= made[0][name] if made else {}
        say(f"{run.folder}: {start + len(now)} of {len(parts)} groups of sets")
    return found


def _result(
    run: TrainedRun, predicted: Mapping[str, Prediction], scored: Mapping[str, Any], *, num_samples: int, seed: int
) -> RunResult:
    model, guide, test = run.model, run.guide, run.batches(run.dataset.test)
    log = run.folder / "log.jsonl"
    records = read_log(log) if log.exists() else []
    examples = [tuple(part[:EXAMPLES] for part in next(iter(test)))]
    torch.manual_seed(seed)
    posterior = posterior_summary(model, guide)
    probabilistic = posterior or local_latent_sites(model, examples[0][0][:2])
    drawn = predicted["test"]
    settings = {"best epoch": run.best_epoch, "num_samples": num_samples, **run.environment}
    return RunResult(
        name=run.name,
        command=train_command(run.name, run.settings),
        settings=run.settings.flat() | settings,
        metrics=scored["test"],
        steps=[record for record in records if record["kind"] == "step"],
        epochs=[record for record in records if record["kind"] == "epoch"],
        probs=drawn.probs,
        labels=drawn.labels,
        **_shown(run.dataset.test),
        classes=run.dataset.classes,
        spectra=attention_spectra(model, guide, examples),
        posterior=posterior,
        variants=posterior_variants(model, guide, test, num_samples=num_samples, drawn=drawn) if probabilistic else {},
        similarity=token_similarity(model, guide, examples),
        shift=scored.get("shift", {}),
        valid=predicted["valid"],
        domains=scored.get("domain", {}),
        outliers={name.removeprefix("ood/"): each for name, each in predicted.items() if name.startswith("ood/")},
    )


def _shown(data: Images | Texts) -> dict[str, Any]:
    """What a report shows of the inputs."""
    return {"images": data.images} if isinstance(data, Images) else {"images": torch.empty(0), "texts": data.texts}
