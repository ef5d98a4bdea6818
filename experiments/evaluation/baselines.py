"""Baselines without attention: models of scikit-learn and a small convolutional network on the same
split, with a few settings that are chosen on the validation data, and calibrated there."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from probattn.experiments.data.dataset import Dataset, Part
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.evaluation.convolutional import SmallCNN
from probattn.experiments.evaluation.example_intervals import resampled_metrics
from probattn.experiments.evaluation.kept_predictions import example_frame
from probattn.experiments.evaluation.seed_statistics import TAILS
from probattn.inference import Prediction, metrics
from probattn.inference.methods.scaling import fit_temperature, scale
from probattn.inference.prediction.predictor import FewExamplesWarning

MOST = 5_000
"""Most training examples of models whose time is more than linear in their number."""
MANY = 200
"""Training texts from which words that occur in one of them alone are left out."""
MOST_CATEGORIES = 255
"""Most categories of a column that boosted trees take as categories."""


class Baseline(NamedTuple):
    """A kind of model.

    Args:
        title: its name in tables.
        kinds: data sets that it suits.
        candidates: function of a data set that returns models with other settings, not fitted.
        most: most training examples; None for all.
    """

    title: str
    kinds: tuple[type[Dataset], ...]
    candidates: Callable[[Any], Sequence[Any]]
    most: int | None = None


def _constants(dataset: Dataset) -> list[Any]:
    from sklearn.dummy import DummyClassifier, DummyRegressor

    return [DummyClassifier(strategy="prior") if dataset.classes else DummyRegressor()]


def _bags_of_words(dataset: Dataset) -> list[Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline

    models: list[Any] = []
    for strength in (1.0, 10.0, 100.0):
        words = TfidfVectorizer(
            ngram_range=(1, 2),
            sublinear_tf=True,
            min_df=2 if len(dataset.train) >= MANY else 1,
            token_pattern=r"\w+|[^\w\s]",
        )
        regression = Ridge(alpha=1 / strength)
        classifier = LogisticRegression(C=strength, max_iter=1000)
        models.append(make_pipeline(words, classifier if dataset.classes else regression))
    return models


def _boosted_trees(dataset: TableDataset) -> list[Any]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    are_categories = torch.tensor(dataset.encoding.are_categories)
    largest = dataset.train.features.amax(0)
    kind: Any = HistGradientBoostingRegressor
    if dataset.classes:
        kind = HistGradientBoostingClassifier
    options = {
        "categorical_features": (are_categories & (largest < MOST_CATEGORIES)).numpy(),
        "early_stopping": False,
        "random_state": 0,
    }
    return [kind(learning_rate=rate, **options) for rate in (0.02, 0.1)]


def _support_vectors(dataset: Dataset) -> list[Any]:
    from sklearn.svm import SVC

    return [SVC(C=strength) for strength in (1.0, 10.0)]


def _neighbours(dataset: Dataset) -> list[Any]:
    from sklearn.neighbors import KNeighborsClassifier

    numbers = {min(number, len(dataset.train)) for number in (3, 10, 30)}
    return [KNeighborsClassifier(number, weights="distance") for number in sorted(numbers)]


def _convolutions(dataset: ImageDataset) -> list[Any]:
    shape = dataset.train.images.shape[1:]
    return [SmallCNN(shape, rate=rate) for rate in (1e-3, 5e-3)]


BASELINES = {
    "constant": Baseline("constant", (Dataset,), _constants),
    "tf-idf": Baseline("TF-IDF of words and pairs, linear", (TextDataset,), _bags_of_words),
    "boosted-trees": Baseline("gradient-boosted trees", (TableDataset,), _boosted_trees),
    "svm": Baseline("RBF support vectors", (ImageDataset,), _support_vectors, most=MOST),
    "cnn": Baseline("small CNN", (ImageDataset,), _convolutions, most=MOST),
    "neighbours": Baseline("k nearest neighbours", (ImageDataset,), _neighbours, most=MOST),
}


def suited(dataset: Dataset) -> list[str]:
    """Return the names of the baselines for a data set."""
    return [name for name, baseline in BASELINES.items() if isinstance(dataset, baseline.kinds)]


def fit_baseline(name: str, dataset: Dataset) -> Callable[[Part], Prediction]:
    """Fit a baseline, and return the function that predicts a part of its data.

    The candidate with the least validation loss is taken: of classes the NLL after temperature
    scaling, of numbers the squared error. The temperature, and the standard deviation of numbers,
    are those of the validation data.

    Args:
        name: of :data:`BASELINES`.
        dataset: with its training and validation part.
    """
    # The runs of a study have the same baselines; those of other data are not kept.
    parts = dataset.train.digest, dataset.valid.digest
    data = *parts, repr(getattr(dataset, "encoding", None))
    if any(key[1:] != data for key in _BEST):
        _BEST.clear()
    key = name, *data
    if key not in _BEST:
        _BEST[key] = _best(BASELINES[name], dataset)
    return _BEST[key].predict


def _best(baseline: Baseline, dataset: Dataset) -> "_Predictor":
    """Return the candidate with the least validation loss."""
    train = dataset.train
    if baseline.most is not None and len(train) > baseline.most:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        train = train.select(order[: baseline.most].sort().values)
    predictors = []
    for model in baseline.candidates(dataset):
        model.fit(_inputs(train), train.labels.numpy().ravel())
        make = _classes if dataset.classes else _numbers
        predictors.append(make(model, dataset))
    return min(predictors, key=lambda predictor: predictor.loss)


class Rival(NamedTuple):
    """A baseline beside the network, on the test examples.

    Args:
        title: of the baseline.
        metric: ``nll`` of classes, ``crps`` of numbers; lower is better.
        network, baseline: its values, of the network after temperature scaling.
        low, high: 95 % interval of the difference, over test examples.
    """

    title: str
    metric: str
    network: float
    baseline: float
    low: float
    high: float


def rivals(network: Prediction, predictions: Mapping[str, Prediction]) -> list[Rival]:
    """Compare a calibrated network with baselines on the same test examples, the best first.

    Args:
        network: its prediction with labels.
        predictions: of the baselines, by name.
    """
    metric = "crps" if network.probs is None else "nll"
    ours = resampled_metrics(example_frame(network))[metric]
    value = metrics.evaluate(network)[metric]
    found = []
    for name, prediction in predictions.items():
        differences = ours - resampled_metrics(example_frame(prediction))[metric]
        low, high = np.quantile(differences, TAILS).tolist()
        theirs = metrics.evaluate(prediction)[metric]
        found.append(Rival(BASELINES[name].title, metric, value, theirs, low, high))
    return sorted(found, key=lambda rival: rival.baseline)


class _Predictor(NamedTuple):
    """Function that predicts a part, and its validation loss."""

    predict: Callable[[Part], Prediction]
    loss: float


_BEST: dict[tuple[str, ...], _Predictor] = {}
"""The best candidate of each baseline, for the last data of this process."""


def _classes(model: Any, dataset: Dataset) -> _Predictor:
    """Return the predictor of a fitted classifier, calibrated on the validation part."""

    def uncalibrated(part: Part) -> Prediction:
        log_probs = _log_probs(model, part, len(dataset.classes))
        return Prediction(probs=log_probs.softmax(-1), labels=part.labels)

    with warnings.catch_warnings():  # a network's calibration says how few examples there are
        warnings.simplefilter("ignore", FewExamplesWarning)
        temperature = fit_temperature(uncalibrated(dataset.valid))

    def predict(part: Part) -> Prediction:
        return scale(uncalibrated(part), temperature)

    valid = predict(dataset.valid)
    return _Predictor(predict, float(-valid.log_prob(dataset.valid.labels).mean()))


def _log_probs(model: Any, part: Part, classes: int) -> Tensor:
    """Return scores ``(n, classes)`` in float64, whose softmax are the probabilities."""
    inputs = _inputs(part)
    if hasattr(model, "predict_proba"):
        scores = np.log(model.predict_proba(inputs).clip(1e-6))
    else:
        scores = model.decision_function(inputs)
        if scores.ndim == 1:  # of two classes
            scores = np.stack([-scores / 2, scores / 2], 1)
    # A class without training examples has no column.
    filled = np.full((len(scores), classes), np.log(1e-6))
    filled[:, model.classes_] = scores
    return torch.from_numpy(filled)


def _numbers(model: Any, dataset: Dataset) -> _Predictor:
    """Return the predictor of a fitted regression, normal with the spread of the validation
    part."""

    def mean(part: Part) -> Tensor:
        return torch.from_numpy(model.predict(_inputs(part))).double().reshape(-1, 1)

    squared_error = (mean(dataset.valid) - dataset.valid.labels).square().mean()

    def predict(part: Part) -> Prediction:
        loc = mean(part)
        law = dist.Normal(loc.unsqueeze(0), squared_error.sqrt()).to_event(1)
        return Prediction(
            mean=loc,
            variance=squared_error.expand_as(loc),
            labels=part.labels,
            components=(law,),
            num_samples=1,
        )

    return _Predictor(predict, float(squared_error))


def _inputs(part: Any) -> Any:
    """Return the inputs of a part as scikit-learn takes them: texts, pixels in 0..1, or cells."""
    if hasattr(part, "texts"):
        return list(part.texts)
    if hasattr(part, "images"):
        return (part.images.flatten(1).float() / 255).numpy()
    return part.features.numpy()
