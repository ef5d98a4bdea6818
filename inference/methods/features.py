"""Last-layer features: inputs of a network's final linear layer, which post-hoc methods use."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.prediction.class_labels import entropy
from probattn.inference.prediction.predictor import (
    FittedPredictor,
    SampledPredictor,
    check_runs_model,
    class_probs,
    labelled_classes,
)
from probattn.inference.prediction.result import Prediction
from probattn.threads import one_thread_at_a_time

PROBES = (0.1, 10.0)
"""Standard deviations of the random logits that show whether a prediction is their softmax."""


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs of a network's last layer for n examples, and the network's prediction from them.

    Args:
        values: features ``(S, n, D)``, on the model's device; S is 1 if the network is
            deterministic up to that layer.
        head: the last layer, not a copy: outputs are ``head(values)``.
        prediction: posterior predictive of the same forward pass and samples, with its labels.
    """

    values: Tensor
    head: nn.Module
    prediction: Prediction

    @property
    def labels(self) -> Tensor:
        """Labels as class indices ``(n,)``, on the features' device.

        Raises:
            ValueError: no labels, or labels that are no class indices.
        """
        return labelled_classes(self.prediction)[1].to(self.values.device)

    def one_sample(self) -> Tensor:
        """Return features ``(n, D)``, of example i those of sample i mod S."""
        samples, examples, _ = self.values.shape
        rows = torch.arange(examples, device=self.values.device)
        return self.values[rows % samples, rows]


def features(
    predictor: SampledPredictor, data: Tensor | Iterable, *, head: nn.Module | None = None
) -> Features:
    """Compute the inputs of the last layer while a predictor predicts.

    Args:
        predictor: predictor of one class per example, with a model whose network is
            ``model.network`` and ends in an ``nn.Linear``, the one that was defined last.
        data: as for ``predict``; features and labels are from one pass, so loaders may shuffle.
        head: another module that maps features to logits, in place of the last ``nn.Linear``.

    Raises:
        ValueError: a prediction that is not the softmax of that layer's output, whatever that is,
            which is tried on an example; as ``predict`` raises.
    """
    if getattr(predictor, "refine", None) is not None:
        raise ValueError("methods on the last layer's features need a predictor without refine")
    batches = iter(iterate_batches(data))
    first = list(islice(batches, 1))
    for batch, scale in product(first, PROBES):
        _check_softmax(predictor, head or last_linear(predictor), batch, scale)
    return _features(predictor, predictor.predict, chain(first, batches), head=head)


def _check_softmax(predictor: SampledPredictor, head: nn.Module, batch: Any, scale: float) -> None:
    """Check that the prediction of an example is the softmax of what the head returned last.

    For this the head returns random numbers of this standard deviation.

    Raises:
        ValueError: it is not.
    """
    returned = [torch.empty(1, 0)]
    used: list[Tensor] = []

    def replace_output(head: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        logits = scale * torch.randn_like(output)
        # Of both signs: softmax does not see a shift, such as that of a threshold, of all of them.
        returned.append(logits - logits.mean(-1, keepdim=True))
        return returned[-1]

    def record(network: nn.Module, inputs: tuple, output: Tensor) -> None:
        used.append(returned[-1].flatten(0, -2))  # (draws, classes)

    x, _, mask = unpack_batch(batch)
    example = (x[:1], None, None if mask is None else mask[:1])
    network = predictor.model.get_submodule("network")
    replaced = head.register_forward_hook(replace_output)
    recorded = network.register_forward_hook(record)
    with torch.random.fork_rng(), replaced, recorded:
        torch.manual_seed(0)
        probs = class_probs(predictor.predict([example]))
    expected = torch.cat(used).softmax(-1).mean(0, keepdim=True).to(probs)
    if expected.shape != probs.shape or not torch.allclose(expected, probs, rtol=1e-3, atol=1e-6):
        raise ValueError(
            "the network must end in its last nn.Linear, run once per batch, and a softmax over "
            "classes"
        )


def _features(
    predictor: SampledPredictor,
    predict: Callable[..., Prediction],
    *data: Tensor | Iterable | None,
    head: nn.Module | None = None,
) -> Features:
    head = head or last_linear(predictor)
    recorded: list[Tensor] = []
    latest: list[Tensor] = []

    def record_latest(head: nn.Module, inputs: tuple[Tensor]) -> None:
        latest[:] = inputs

    def record(network: nn.Module, _: tuple, output: Tensor) -> None:
        # Draws may have been folded into the batch.
        inputs = latest[0].reshape(*output.shape[:-1], -1)
        recorded.append(inputs.clone())  # a view would keep its base tensor in memory

    network = predictor.model.get_submodule("network")
    with head.register_forward_pre_hook(record_latest), network.register_forward_hook(record):
        prediction = predict(*data)
    values = torch.cat(recorded, dim=-2)
    return Features(values if values.dim() == 3 else values.unsqueeze(0), head, prediction)


class FeaturePredictor(FittedPredictor):
    """Base class of methods that replace the last layer of a network.

    Args:
        predictor: predictor of one class per example that runs a model; do not change the model's
            weights afterwards.

    Raises:
        TypeError: a predictor that runs no model.
    """

    predictor: SampledPredictor

    @one_thread_at_a_time
    def fit(self, data: Iterable) -> Self:
        """Fit the last layer to training data without augmentation, batches ``(x, y)`` or
        ``(x, y, mask)``.

        Raises:
            ValueError: no labels, or labels that are no class indices; a network that does not end
                in an ``nn.Linear``.
        """
        return self.fit_features(features(self.predictor, data))

    @one_thread_at_a_time
    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs or batches with the fitted last layer."""
        self.check_fitted()
        return self.predict_features(features(self.predictor, data))

    @one_thread_at_a_time
    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch with the fitted last layer."""
        self.check_fitted()
        batch = _features(self.predictor, self.predictor.predict_batch, x, mask)
        return self.predict_features(batch)

    @abstractmethod
    def fit_features(self, features: Features) -> Self:
        """Fit the last layer to features with labels."""

    @abstractmethod
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features."""


def last_linear(predictor: SampledPredictor) -> nn.Linear:
    """Return the last layer of a predictor's network: its ``nn.Linear`` that was defined last.

    Raises:
        TypeError: a predictor that runs no model.
    """
    check_runs_model(predictor, "this method")
    layers = predictor.model.get_submodule("network").modules()
    return [layer for layer in layers if isinstance(layer, nn.Linear)][-1]


@torch.no_grad()
def averaged(prediction: Prediction, samples: Iterable[Tensor]) -> Prediction:
    """Return a prediction with the means over samples of logits.

    Args:
        prediction: prediction whose probabilities, expected entropies and energies are replaced.
        samples: logits ``(S, n, classes)``, one tensor per sample of the last layer.
    """
    totals: dict[str, Any] = dict.fromkeys(("probs", "expected_entropy", "energy"), 0.0)
    number = 0
    for logits in samples:
        probs = logits.softmax(-1)
        totals["probs"] += probs.double().mean(0)
        totals["expected_entropy"] += entropy(probs).double().mean(0)
        totals["energy"] -= logits.logsumexp(-1).double().mean(0)
        number += 1
    means = {name: (total / number).to(prediction.probs) for name, total in totals.items()}
    return replace(prediction, **means)
