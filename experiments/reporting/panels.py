"""The figures of a report, in order: how each is drawn, how to read it, and what its absence means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from probattn.experiments.evaluation import decisions as acting
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import decisions, model_diagnostics, ood, predictions, shift
from probattn.inference import Prediction


@dataclass(frozen=True)
class Panel:
    """A figure of the report: how to draw it and read it, what to say where there is none, whether texts lack it."""

    key: str
    title: str
    draw: Callable[[RunResult], Figure | None]
    caption: str
    missing: str
    wide: bool = False
    of_images: bool = False


def _of_answers(draw: Callable[[RunResult], Figure | None]) -> Callable[[RunResult], Figure | None]:
    return lambda result: draw(result) if result.answered else None


def _gallery(result: RunResult, indices: Sequence[int]) -> Figure | None:
    answers = result.probs, result.labels, result.classes, indices
    return (
        predictions.excerpts(result.texts, *answers) if result.texts else predictions.gallery(result.images, *answers)
    )


def _abstention(result: RunResult) -> Figure:
    valid, test = (result.valid.probs, result.valid.labels), (result.probs, result.labels)
    return decisions.abstention(acting.threshold(result.valid), valid, test)


def _set_sizes(result: RunResult) -> Figure:
    generator = torch.Generator().manual_seed(1)
    each = acting.sets(result.valid)
    found = {kind: (sets.sets(result.probs, generator=generator), result.labels) for kind, sets in each.items()}
    return decisions.set_sizes(found, alpha=acting.ALPHA)


NO_ANSWERS = "Not drawn: this run has no answers, or probabilities that are not finite."
PANELS = (
    Panel(
        "reliability",
        "Reliability diagram",
        _of_answers(lambda e: predictions.reliability(e.probs, e.labels)),
        "Of the answers given with 80 % confidence, 80 % should be right: the blue bars then end on the "
        "dashed line and little is hatched. Bars below the line mean overconfidence, bars above it too "
        "little confidence. The lower panel shows how many answers each bar stands for; a gap over few "
        "answers matters little.",
        NO_ANSWERS,
    ),
    Panel(
        "risk_coverage",
        "Risk–coverage curve",
        _of_answers(lambda e: predictions.risk_coverage({e.name: (e.probs, e.labels)})),
        "The error rate that remains if only the most confident answers are kept. A good network stays "
        "near zero for long and hugs the dashed line, which would put every wrong answer last; at the "
        "right end both reach the plain error rate.",
        NO_ANSWERS,
    ),
    Panel(
        "confidence",
        "Confidence, right and wrong",
        _of_answers(lambda e: predictions.confidence(e.probs, e.labels)),
        "Right answers should pile up on the right side; wrong ones, where there are any, should spread "
        "far to the left of them. A wrong pile near 100 % means errors that confidence cannot reveal.",
        NO_ANSWERS,
    ),
    Panel(
        "shift",
        "Accuracy on corrupted images",
        lambda e: shift.boxes({e.name: e.shift}, metric="accuracy") if e.shift else None,
        "The test images under each corruption of CIFAR-C, over the severities evaluated. Look at the calibration "
        "beside it, too: a network may become wrong under a corruption, but it should then doubt.",
        "Not drawn: this run was not evaluated on corrupted images (probattn evaluate RUN --shift).",
        wide=True,
        of_images=True,
    ),
    Panel(
        "abstention",
        "When to abstain",
        lambda e: _abstention(e) if e.answered and e.valid else None,
        "A threshold of confidence, chosen on validation data so that at most 5 % of the answers above it are wrong "
        "with 95 % confidence, and what it does on the test data. The promise needs validation data that nothing "
        "else was chosen by; these have chosen the best epoch, too, which weakens it a little.",
        "Not drawn: this run has no predictions of validation data.",
        wide=True,
    ),
    Panel(
        "set_sizes",
        "Which classes to keep",
        lambda e: _set_sizes(e) if e.answered and e.valid else None,
        "Conformal sets, calibrated on validation data to hold the true class of 90 % of new ones: how many classes "
        "they need for it. Many sets of one class are a network that knows; adaptive sets grow with the difficulty of "
        "the example, plain ones are the smallest on average, and may be empty.",
        "Not drawn: this run has no predictions of validation data.",
        wide=True,
    ),
    Panel(
        "outliers",
        "Confidence on foreign images",
        lambda e: (
            ood.confidence(Prediction(probs=e.probs, labels=e.labels), e.outliers)
            if e.answered and e.outliers
            else None
        ),
        "Images that belong to none of the classes should get little confidence: their pile should lie left of that "
        "of the right answers, which is what a detector of foreign images can use.",
        "Not drawn: this run was not evaluated on foreign images (probattn evaluate RUN --ood default).",
        wide=True,
        of_images=True,
    ),
    Panel(
        "training",
        "Training curves",
        lambda e: model_diagnostics.training(e.steps, e.epochs),
        "Each term of the objective on its own (pale: each logged step, dark: their moving mean), then "
        "validation by epoch. Good curves fall or rise and level off; a validation NLL that climbs again "
        "while the training NLL falls is overfitting, and a KL that sinks to zero is a posterior that has"
        " given up.",
        "Not drawn: this run logged no steps and no epochs.",
        wide=True,
    ),
    Panel(
        "most_uncertain",
        "The most uncertain answers",
        _of_answers(lambda e: _gallery(e, predictions.most_uncertain(e.probs))),
        "The examples of the highest predictive entropy. Blue is the true class, orange a wrong answer. They "
        "should look hard to you too: to doubt a hard one is right, to doubt a clear one is a fault.",
        "Not drawn: this run has no images or texts to show, no answers, or probabilities that are not finite.",
        wide=True,
    ),
    Panel(
        "most_confidently_wrong",
        "The most confidently wrong answers",
        _of_answers(lambda e: _gallery(e, predictions.most_confidently_wrong(e.probs, e.labels))),
        "The wrong answers (orange) of the highest confidence. Ideally there are few, their bars are "
        "short, and the true class (blue) comes second; a clear case with a full orange bar is the kind "
        "of error to study, and sometimes a wrong label.",
        "Not drawn: this run has no wrong answers, no images or texts to show, or probabilities that are not finite.",
        wide=True,
    ),
    Panel(
        "spectrum",
        "Singular spectrum of attention",
        lambda e: model_diagnostics.spectrum(e.spectra),
        "Singular values of the attention kernel (lines, averaged over examples) and the learned Λ "
        "(markers). Where the KSVD term has done its work, the markers lie on the lines; a spectrum that "
        "falls fast beyond the last marker means that this rank keeps most of the attention.",
        "Not drawn: this network has no layer that learns the singular values of its kernel.",
        wide=True,
    ),
    Panel(
        "spectrum_by_layer",
        "Rank of attention by layer",
        lambda e: model_diagnostics.spectrum_by_layer(e.spectra),
        "The share of the singular values of each layer's attention matrix in its first components, the mean "
        "of examples and heads. A line that is soon above the dashed one belongs to a matrix of low rank: few "
        "components carry the attention. On a straight line all components count alike. What the matrix is depends on "
        "the layer: the probabilities of softmax attention, the kernel between queries and keys of kernel attention "
        "and KEP-SVGP, the kernel between tokens of SGPA, the map from values to the mean output of CGP. Compare "
        "depths, and runs of one layer, rather than different layers. Texts shorter than the longest count with "
        "zeros behind their own components.",
        "Not drawn: this run has no spectrum of an attention matrix.",
    ),
    Panel(
        "similarity",
        "Are the tokens still different?",
        lambda e: model_diagnostics.similarity({e.name: e.similarity}),
        "The mean cosine between the tokens of an image or text behind each attention layer, from the first to the "
        "last. A line that climbs towards 1 means oversmoothing: deep layers have made all tokens alike, and what "
        "told them apart is lost.",
        "Not drawn: this run did not measure its tokens.",
    ),
    Panel(
        "posterior",
        "Is the posterior alive?",
        lambda e: model_diagnostics.posterior(e.posterior),
        "A posterior that learned something has a KL clearly above zero, and a spread below the prior's "
        "(left of the dashed line). A KL near zero with a ratio near 1 is the prior itself: that site "
        "does nothing.",
        "Not drawn: this network has no random variable that all examples share.",
        wide=True,
    ),
)
