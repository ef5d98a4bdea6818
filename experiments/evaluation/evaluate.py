"""Evaluation of a trained run: predictions by one or several methods, their scores, and the content of a report."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyro.poutine as poutine
import torch

from probattn.draws import at_mean
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.sealed_files import write_json
from probattn.experiments.data.tables.table_dataset import Table
from probattn.experiments.evaluation import eval_sets, generated_files, methods, prediction_store
from probattn.experiments.evaluation.decisions import decide
from probattn.experiments.evaluation.eval_sets import TestSet
from probattn.experiments.evaluation.guide_convergence import run_convergence
from probattn.experiments.evaluation.options import EvaluationOptions
from probattn.experiments.evaluation.provenance import Provenance, by_method, digests
from probattn.experiments.evaluation.run_result import RunResult, describe_unfinished, last_epoch
from probattn.experiments.evaluation.scores import Scores, score
from probattn.experiments.runs.build import find_device
from probattn.experiments.runs.environment import environment
from probattn.experiments.runs.folder import read_record, train_command
from probattn.experiments.runs.load import TrainedRun, open_run
from probattn.inference import (
    Prediction,
    attention_spectra,
    metrics,
    posterior_summary,
    predict,
    token_similarity,
)
from probattn.inference.distributed import (
    broadcast_result,
    gather_results,
    make_fabric,
    world,
)
from probattn.inference.io.files import locked
from probattn.inference.training.run_log import read_log
from probattn.messages import is_latent

EXAMPLES = 256
"""Test examples that spectra and similarities are measured on, at most."""


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: the report's content for the posterior predictive, and scores by method.

    ``provenance`` is, by method, what the scores were computed from; ``sizes`` the number of examples of each test set.
    """

    result: RunResult
    scores: dict[str, Scores]
    provenance: dict[str, Provenance]
    sizes: dict[str, int] = field(default_factory=dict)


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
    convergence: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate a run's best epoch and write ``metrics.json`` and ``predictions/``.

    All data are checked before anything is predicted, and stored predictions that are up to date are reused. Tables,
    figures and the report of an evaluation with other results are removed. Under torchrun the processes share the
    groups of test sets, and the first one writes.

    Args:
        folder: the run's folder.
        root: folder of the data sets.
        num_samples: draws of each prediction, by default ``train.num_samples``.
        seed: seed of the draws.
        by: methods in addition to the posterior predictive (see :mod:`probattn.experiments.evaluation.methods`).
        shift: evaluate on corrupted test images, too.
        corruptions, severities: those of ``shift``.
        ood: names of OOD image sets (see :mod:`probattn.experiments.data.images.ood_sets`).
        convergence: test whether the posterior has converged (see :func:`run_convergence`).
        say: called with a message about the progress.

    Raises:
        SettingsError, CheckpointError: the folder holds no run, or a damaged one; an unknown method.
        filelock.Timeout: another process trains or evaluates the run.
        DatasetError: data that are missing or damaged.
    """
    names = tuple(dict.fromkeys((methods.POSTERIOR, *map(methods.check, by))))
    settings = read_record(folder).settings  # raises before a folder without a run gets a lock
    is_shared = world().size > 1
    first = make_fabric(find_device(settings.train.accelerator), devices=1).rank_zero_first() if is_shared else None

    def open_with_sets() -> tuple[TrainedRun, dict[str, TestSet]]:
        run = open_run(folder, root=root)
        sets = eval_sets.own_sets(run.dataset)
        if shift:
            sets |= eval_sets.shifted_sets(run.dataset, root=root, corruptions=corruptions, severities=severities)
        return run, sets | eval_sets.ood_sets(run.dataset, ood, root=root)

    with ExitStack() as stack:
        broadcast_result(lambda: stack.enter_context(locked(folder)))
        with first or nullcontext():
            run, sets = open_with_sets()
        num_samples = num_samples or run.settings.train.num_samples
        options = EvaluationOptions(
            num_samples=num_samples,
            seed=seed,
            by=names[1:],
            shift=shift,
            corruptions=tuple(corruptions),
            severities=tuple(severities),
            ood=tuple(ood),
            convergence=convergence,
            root=None if root is None else str(root),
        )
        provenance = broadcast_result(lambda: by_method(run, sets, names, num_samples=num_samples, seed=seed))
        predictions = predict_sets(run, sets, provenance, say=say)
        scores = {name: score(by_set) for name, by_set in predictions.items()}
        posterior = predictions[methods.POSTERIOR], scores[methods.POSTERIOR]
        shift_source = next((each.source for each in sets.values() if each.source), "")
        result = _run_result(run, *posterior, options=options, shift_source=shift_source)
        sizes = {name: len(each) for name, each in _labels(predictions[methods.POSTERIOR]).items()}
        content = {
            "run": run.name,
            "options": asdict(options),
            "shift_source": shift_source,
            "provenance": {name: asdict(each) for name, each in provenance.items()},
            "metrics": result.metrics,
            "variants": result.variants,
            "posterior": [asdict(site) for site in result.posterior],
            "convergence": result.convergence
            and {"sites": [asdict(site) | {"state": site.state} for site in result.convergence]},
            "spread": result.spread,
            "similarity": result.similarity,
            "methods": {name: each.to_json() for name, each in scores.items()},
            "decisions": result.decisions.to_json(),
            "sizes": sizes,
            "best_epoch": run.best_epoch,
            "epochs_done": last_epoch(result.epochs),
            "trained_on": run.environment,
            "evaluated_on": environment(run.device),
        }

        def save() -> None:
            generated_files.remove_outdated(folder, digests(provenance))
            write_json(folder / "metrics.json", content)

        broadcast_result(save)
        return Evaluation(result, scores, provenance, sizes)


def predict_sets(
    run: TrainedRun,
    sets: Mapping[str, TestSet],
    provenance: Mapping[str, Provenance],
    *,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Prediction]]:
    """Return predictions by method and test set, stored ones if up to date; images are corrupted once for all methods.

    The methods are those of the provenance, all with the same number and seed of samples. The draws start from the seed
    in every test set. So draw s is one function on all of them, and the processes of torchrun, each of which takes
    every ``world``-th group of test sets, predict what one process would.
    """
    first = next(iter(provenance.values()))
    options = {"num_samples": first.num_samples, "seed": first.seed}
    fitted = functools.cache(functools.partial(methods.fit, run, **options))

    def predict_group(group: Sequence[str]) -> dict[str, dict[str, Prediction]]:
        forward = functools.cache(lambda each: methods.CachedForward(run, sets[each].load(), **options))

        def predict(each: str, *, name: str) -> Prediction:
            return methods.predict(fitted(name), forward(each))

        return {
            name: prediction_store.load_or_predict(run.folder, group, each, functools.partial(predict, name=name))
            for name, each in provenance.items()
        }

    predictions: dict[str, dict[str, Prediction]] = {name: {} for name in provenance}
    groups, (rank, size) = prediction_store.groups(sets), world()
    for start in range(0, len(groups), size):
        chunk = groups[start : start + size]
        for results in gather_results(lambda own=chunk[rank : rank + 1]: list(map(predict_group, own))):
            for name in provenance:
                predictions[name] |= results[0][name] if results else {}
        say(f"{run.folder}: {start + len(chunk)} of {len(groups)} groups of sets")
    return predictions


def _labels(predictions: Mapping[str, Prediction]) -> dict[str, torch.Tensor]:
    return {name: each.labels for name, each in predictions.items() if each.labels is not None}


def _variants(run: TrainedRun, drawn: Prediction, *, num_samples: int) -> dict[str, dict[str, float]]:
    """Return metrics with all latent sites at the mean of q, drawn from q, and from the prior.

    With a collapsed posterior, predictions from q are as bad as from the prior; with a posterior close to a point, they
    equal those at the mean.
    """
    data = run.batches_by_length(run.dataset.test)
    with at_mean():
        mean = predict(run.model, run.guide, data, num_samples=1)
    prior = predict(run.model, None, data, num_samples=num_samples)
    variants = {"at its mean": mean, "drawn from q": drawn, "drawn from the prior": prior}
    return {name: metrics.evaluate(prediction) for name, prediction in variants.items()}


def _spread(valid: Prediction) -> dict[str, float] | None:
    """Return means of entropy and mutual information in nats, and the latter's 95 % quantile; None without classes."""
    if valid.probs is None or valid.expected_entropy is None:
        return None
    valid = valid if valid.mask is None else valid.tokens()
    information = valid.mutual_information.double()
    return {
        "entropy": valid.entropy.mean().item(),
        "mutual_information": information.mean().item(),
        "mutual_information_95": information.quantile(0.95).item(),
    }


def _run_result(
    run: TrainedRun,
    predictions: Mapping[str, Prediction],
    scores: Scores,
    *,
    options: EvaluationOptions,
    shift_source: str,
) -> RunResult:
    model, guide, data = run.model, run.guide, run.dataset.test
    test = predictions["test"]
    log = run.folder / "log.jsonl"
    records = read_log(log) if log.exists() else []
    epochs = [record for record in records if record["kind"] == "epoch"]
    examples = [tuple(part[:EXAMPLES] for part in next(iter(run.batches(data))))]
    torch.manual_seed(options.seed)
    num_samples = options.num_samples
    posterior = posterior_summary(model, guide)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        sites = poutine.trace(model).get_trace(examples[0][0][:2]).nodes.values()
    has_latents = any(is_latent(site) for site in sites if site["name"] != "y")
    progress = {"epochs_done": last_epoch(epochs), "best_epoch": run.best_epoch}
    is_image, is_table = isinstance(data, Images), isinstance(data, Table)
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
        texts=() if is_image or is_table else data.texts,
        numbers=test if test.probs is None else None,
        is_table=is_table,
        classes=run.dataset.classes,
        spectra=attention_spectra(model, guide, examples),
        posterior=posterior,
        convergence=run_convergence(run, seed=options.seed) if posterior and options.convergence else None,
        spread=_spread(predictions["valid"]),
        variants=_variants(run, test, num_samples=num_samples) if has_latents else {},
        similarity=token_similarity(model, guide, examples),
        shift=scores.shift,
        shift_source=shift_source,
        decisions=decide(predictions["valid"], test),
        domains=scores.domain,
        ood={name.removeprefix("ood/"): each for name, each in predictions.items() if name.startswith("ood/")},
        unfinished=describe_unfinished(run.settings.train, **progress),
    )
