"""Result of one evaluated run: everything that a report displays, and how it is gathered from the
run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd
import torch
from pyro import poutine

from probattn.draws import at_mean
from probattn.experiments.data.dataset import Part
from probattn.experiments.data.summary import Summary, summarise
from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.baselines import Rival
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.decision_notes import decision_notes
from probattn.experiments.runs.folder import train_command
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.runs.training_notes import training_notes
from probattn.inference import (
    Prediction,
    attention_spectra,
    metrics,
    posterior_summary,
    predict,
    token_similarity,
)
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.diagnostics.convergence import SiteConvergence
from probattn.inference.training.run_log import read_log
from probattn.messages import is_latent

EXAMPLES = 256
"""Test examples that spectra and similarities are measured on, at most."""


@dataclass(frozen=True)
class RunResult:
    """Everything that a report displays of one evaluated run, without its model.

    Terms of the objective are per example, in nats, loss = nll + Σ kl + Σ penalty; metrics are
    unscaled, as ``metrics.evaluate`` returns them. A part that the run lacks is an empty container,
    and the report says so.
    """

    name: str
    command: str
    settings: dict[str, object]
    scores: pd.DataFrame  # of the posterior predictive, a row a test set: n and metrics
    steps: list[dict]  # step, epoch, loss, nll, kl/SITE…, penalty/SITE…, lr
    epochs: list[dict]  # epoch, step, valid/accuracy, valid/nll, …, seconds
    test: Prediction  # of the test part, with its labels
    data: Part | None  # the test part: images, texts or rows; None if it is not known
    classes: tuple[str, ...]  # empty for numbers
    spectra: dict[str, Spectrum]  # by layer
    posterior: list[SiteConvergence]  # of global latent sites, without a refit
    # metrics with each latent site "at its mean", "drawn from q", …
    variants: dict[str, dict[str, float]]
    # layer → mean cosine between its tokens, in depth order
    similarity: dict[str, float] = field(default_factory=dict)
    decisions: dict[str, dict[str, float]] = field(default_factory=dict)  # of Calibration.evaluate
    ood: dict[str, Prediction] = field(default_factory=dict)  # OOD set → predictions of its images
    summary: Summary | None = None  # of the data
    rivals: list[Rival] = field(default_factory=list)  # baselines, the best first
    decision_notes: tuple[str, ...] = ()  # sentences on what the decisions cannot do
    training_notes: tuple[str, ...] = ()  # sentences on a training that is too short
    unseen: pd.DataFrame | None = None  # of the test part, as Dataset.unseen returns it

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics on the test part."""
        return self.scores.loc["test"].drop("n").to_dict()

    def of_kind(self, kind: str) -> pd.DataFrame:
        """Return the scores on the test sets of a kind, such as ``shift``, by the rest of their
        names."""
        frame = self.scores.filter(regex=f"^{kind}/", axis="index")
        return frame.rename(index=lambda name: name.removeprefix(f"{kind}/"))


def run_result(
    run: TrainedRun,
    predictions: Mapping[str, Prediction],
    scores: Mapping[str, dict],
    calibration: Calibration,
) -> RunResult:
    """Gather the result of a run.

    Args:
        run: the run.
        predictions, scores: of the posterior predictive, by test set; scores also by class.
        calibration: of the run, with number and seed of the posterior samples.
    """
    data, test = run.dataset.test, predictions["test"]
    log = run.folder / "log.jsonl"
    records = read_log(log) if log.exists() else []
    epochs = [record for record in records if record["kind"] == "epoch"]
    examples = [tuple(tensor[:EXAMPLES] for tensor in next(iter(run.batches(data))))]
    torch.manual_seed(calibration.seed)
    posterior = posterior_summary(run.model, run.guide)
    settings = run.settings.flat() | {
        "epochs done": epochs[-1]["epoch"] if epochs else "unknown",
        "best epoch": run.best_epoch,
        "num_samples": calibration.num_samples,
        **run.environment,
    }
    return RunResult(
        name=run.name,
        command=train_command(run.name, run.settings),
        settings=settings,
        scores=pd.DataFrame(list(scores.values()), index=list(map(displayable, scores))),
        steps=[record for record in records if record["kind"] == "step"],
        epochs=epochs,
        test=test,
        data=data,
        classes=run.dataset.classes,
        spectra=attention_spectra(run.model, run.guide, examples),
        posterior=posterior,
        variants=_variants(run, test, examples, num_samples=calibration.num_samples),
        similarity=token_similarity(run.model, run.guide, examples),
        decisions=calibration.evaluate(test),
        decision_notes=decision_notes(calibration, run.dataset.classes, test),
        training_notes=training_notes(
            run.folder, run.settings, run.dataset, epochs, best_epoch=run.best_epoch
        ),
        ood={
            name.removeprefix("ood/"): prediction
            for name, prediction in predictions.items()
            if name.startswith("ood/")
        },
        summary=summarise(run.dataset),
        unseen=run.dataset.unseen(data),
    )


def _variants(
    run: TrainedRun, drawn: Prediction, examples: list, *, num_samples: int
) -> dict[str, dict[str, float]]:
    """Return metrics with all latent sites at the mean of q, drawn from q, and from the prior; none
    without sites.

    With a collapsed posterior, predictions from q are as bad as from the prior; with a posterior
    close to a point, they equal those at the mean.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x, *_ = examples[0]
        trace = poutine.trace(run.model).get_trace(x[:2])
    latent = [name for name, site in trace.nodes.items() if is_latent(site)]
    if not set(latent) - {"y"}:
        return {}
    data = run.batches(run.dataset.test, by_length=True)
    with at_mean():
        mean = predict(run.model, run.guide, data, num_samples=1)
    prior = predict(run.model, None, data, num_samples=num_samples)
    return {
        "at its mean": metrics.evaluate(mean),
        "drawn from q": metrics.evaluate(drawn),
        "drawn from the prior": metrics.evaluate(prior),
    }
