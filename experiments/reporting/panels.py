"""Figures of a report in order: how each is drawn, its caption, and the sentence that replaces a missing one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import examples, model_diagnostics, ood, predictions, regression, shift
from probattn.experiments.reporting import posterior_words
from probattn.inference import Prediction


@dataclass(frozen=True)
class Panel:
    """A figure of a report.

    Args:
        key: name of its file.
        title: heading.
        draw: draws it from a run's result; None if there is nothing to draw.
        caption: how to read it.
        missing: sentence in place of a missing figure.
        wide: spans the page.
        of_images: left out for texts and tables.
        of_classes, of_numbers: left out for other predictions.
        finding: sentences about this run before the caption; empty if there is nothing to say.
    """

    key: str
    title: str
    draw: Callable[[RunResult], Figure | None]
    caption: str
    missing: str
    wide: bool = False
    of_images: bool = False
    of_classes: bool = False
    of_numbers: bool = False
    finding: Callable[[RunResult], str] = lambda result: ""


def _if_predictions(draw: Callable[[RunResult], Figure | None]) -> Callable[[RunResult], Figure | None]:
    return lambda result: draw(result) if result.has_predictions else None


def _examples(result: RunResult, indices: Sequence[int]) -> Figure | None:
    answers = result.probs, result.labels, result.classes, indices
    return examples.excerpts(result.texts, *answers) if result.texts else examples.gallery(result.images, *answers)


def _ood_confidence(result: RunResult) -> Figure | None:
    return ood.confidence(Prediction(probs=result.probs, labels=result.labels), result.ood)


NO_PREDICTIONS = "Not drawn: this run has no answers, or probabilities that are not finite."
PANELS = (
    Panel(
        "reliability",
        "Reliability diagram",
        _if_predictions(lambda result: predictions.reliability(result.probs, result.labels)),
        "Of the answers given with 80 % confidence, 80 % should be right: the blue bars then end on the "
        "dashed line and little is hatched. Bars below the line mean overconfidence, bars above it "
        "underconfidence. The lower panel has the number of answers of each bar; a gap over few "
        "answers matters little.",
        NO_PREDICTIONS,
        of_classes=True,
    ),
    Panel(
        "risk_coverage",
        "Risk–coverage curve",
        _if_predictions(lambda result: predictions.risk_coverage({result.label: (result.probs, result.labels)})),
        "The error rate that remains if only the most confident answers are kept. A good network stays "
        "near zero for long and close to the dashed line, which ranks every wrong answer last; at the "
        "right end both reach the error rate of all answers.",
        NO_PREDICTIONS,
        of_classes=True,
    ),
    Panel(
        "confidence",
        "Confidence, right and wrong",
        _if_predictions(lambda result: predictions.confidence(result.probs, result.labels)),
        "Right answers should lie at the right end; wrong ones, if there are any, should spread "
        "far to the left of them. Wrong answers near 100 % are errors that confidence cannot reveal.",
        NO_PREDICTIONS,
        of_classes=True,
    ),
    Panel(
        "shift",
        "Accuracy on corrupted images",
        lambda result: shift.boxes({result.label: result.shift}, metric="accuracy"),
        "The test images under each corruption of CIFAR-C, over the severities evaluated. Compare with calibration: "
        "a network may become wrong under a corruption, but its confidence should then fall.",
        "Not drawn: this run was not evaluated on corrupted images (probattn evaluate RUN --shift).",
        wide=True,
        of_images=True,
        of_classes=True,
    ),
    Panel(
        "ood",
        "Confidence on OOD images",
        _if_predictions(_ood_confidence),
        "Out-of-distribution (OOD) images belong to none of the classes and should get little confidence: their "
        "histogram should lie left of that of the right answers, which is what a detector of OOD images can use.",
        "Not drawn: this run was not evaluated on OOD images (probattn evaluate RUN --ood default).",
        wide=True,
        of_images=True,
        of_classes=True,
    ),
    Panel(
        "numbers",
        "Predicted and true numbers",
        lambda result: None if result.numbers is None else regression.predicted(result.numbers, result.labels),
        "The mean of each prediction with its central 90 % interval against the true number; of many examples some. "
        "Good predictions lie on the dashed line, and nine intervals of ten cross it.",
        "Not drawn: this run has no predictions of numbers.",
        of_numbers=True,
    ),
    Panel(
        "quantiles",
        "Calibration of quantiles",
        lambda result: None if result.numbers is None else regression.quantiles(result.numbers, result.labels),
        "The share of the true numbers below each predicted quantile. On the dashed line predictions are calibrated; "
        "a curve that is steep in the middle means intervals that are too wide, a flat one means too narrow.",
        "Not drawn: this run has no predictions of numbers.",
        of_numbers=True,
    ),
    Panel(
        "training",
        "Training curves",
        lambda result: model_diagnostics.training(result.steps, result.epochs),
        "Each term of the objective (pale: each logged step, dark: their moving mean), then "
        "validation metrics by epoch. Good curves fall or rise and level off; a validation NLL that rises again "
        "while the training NLL falls is overfitting, and a KL that falls to zero is posterior collapse.",
        "Not drawn: this run logged no steps and no epochs.",
        wide=True,
    ),
    Panel(
        "most_uncertain",
        "The most uncertain answers",
        _if_predictions(lambda result: _examples(result, examples.most_uncertain(result.probs))),
        "The examples of the highest predictive entropy. Blue is the true class, orange a wrong answer. They "
        "should look hard to you, too: uncertainty about a clear example is a fault.",
        "Not drawn: this run has no images or texts to show, no answers, or probabilities that are not finite.",
        wide=True,
        of_classes=True,
    ),
    Panel(
        "most_confidently_wrong",
        "The most confidently wrong answers",
        _if_predictions(lambda result: _examples(result, examples.most_confidently_wrong(result.probs, result.labels))),
        "The wrong answers (orange) of the highest confidence. Ideally there are few, their bars are "
        "short, and the true class (blue) comes second; a clear case with a full orange bar is the kind "
        "of error to study, and sometimes a wrong label.",
        "Not drawn: this run has no wrong answers, no images or texts to show, or probabilities that are not finite.",
        wide=True,
        of_classes=True,
    ),
    Panel(
        "spectrum",
        "Singular spectrum of attention",
        lambda result: model_diagnostics.spectrum(result.spectra),
        "Singular values of the attention kernel (lines, averaged over examples) and Λ (markers), the scale of the "
        "prior of u; with projection=svd the markers are the singular values that E carries. Otherwise the two need "
        "not agree: predictions and the KL do not depend on Λ, which only the KSVD term moves, and this term, one "
        "equation per head and example, can vanish without a singular value decomposition. "
        "What counts is the share of the kernel's energy that E keeps; a spectrum that falls fast beyond the last "
        "marker means that this rank can keep most of it.",
        "Not drawn: this network has no KEP-SVGP attention.",
        wide=True,
        finding=posterior_words.describe_energy,
    ),
    Panel(
        "spectrum_by_layer",
        "Rank of attention by layer",
        lambda result: model_diagnostics.spectrum_by_layer(result.spectra),
        "The share of the singular values of each layer's attention matrix in its first components, the mean "
        "of examples and heads. A line that is soon above the dashed one belongs to a matrix of low rank: few "
        "components carry the attention. On a straight line all components contribute equally. The matrix depends on "
        "the layer: the probabilities of softmax attention, the kernel between queries and keys of kernel attention "
        "and KEP-SVGP, the kernel between tokens of SGPA, the map from values to the mean output of CGP. Compare "
        "depths, and runs of one layer, rather than different layers. Texts shorter than the longest count with "
        "zeros after their own components.",
        "Not drawn: this run has no spectrum of an attention matrix.",
        finding=posterior_words.describe_examples,
    ),
    Panel(
        "similarity",
        "Similarity of tokens",
        lambda result: model_diagnostics.similarity({result.label: result.similarity}),
        "The mean cosine between the tokens of an image or text after each attention layer, from the first to the "
        "last. A line that rises towards 1 means oversmoothing: deep layers have made all tokens alike, and what "
        "distinguished them is lost.",
        "Not drawn: this run did not measure its tokens.",
    ),
    Panel(
        "posterior",
        "Has the posterior converged?",
        lambda result: model_diagnostics.posterior(result.posterior),
        "The KL of each site per variable, and its standard deviation relative to the prior's. A KL near zero with a "
        "ratio near 1 is the prior itself: that site has collapsed. A KL above zero and a ratio below 1 alone say "
        "little, since an untrained posterior starts there: the table says whether this is the optimum.",
        "Not drawn: this network has no random variable that all examples share.",
        wide=True,
        finding=lambda result: posterior_words.describe_spread(result),
    ),
)
