"""Preparation of a run on its training data: noise initialised from the labels, and a trial prediction."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.inference.batches import Batch, unpack_batch
from probattn.inference.distributed import random_state
from probattn.inference.non_finite import find_non_finite, refuses_nan, root_error
from probattn.inference.prediction.predict import predict
from probattn.inference.programs import attribute
from probattn.inference.training.probe import readable_copy

MAX_LABELS = 10_000
"""Number of labels from which noise is initialised, in whole batches."""
TRIAL_SAMPLES = 5
"""Number of posterior samples of the trial prediction, other than its numbers of examples."""


def first_batch(train: Iterable) -> Batch | None:
    """Return a loader's first batch without changing its state, or None if it cannot be read twice (a stream)."""
    loader = readable_copy(train)
    if loader is None:
        return None
    with random_state.preserved(loader):
        return unpack_batch(next(iter(loader)))


def initialise_likelihood(model: nn.Module, train: Iterable) -> None:
    """Initialise a likelihood whose noise is to have the scale of the training labels, from the loader's first batches.

    Args:
        model: a model; only those with a ``likelihood`` that ``needs_labels`` change.
        train: loader, whose state stays as it is; a stream is not read.
    """
    likelihood, loader = attribute(model, "likelihood"), readable_copy(train)
    if loader is None or not getattr(likelihood, "needs_labels", False):
        return
    labels, count = [], 0
    with random_state.preserved(loader):
        for batch in map(unpack_batch, loader):
            labels.append(_flat(batch))
            count += len(labels[-1])
            if count >= MAX_LABELS:
                break
    likelihood.initialise(torch.cat(labels))


def try_prediction(model: nn.Module, guide: nn.Module, train: Iterable) -> None:
    """Predict a few examples, as validation does after the first epoch, and raise the error of a network that cannot.

    Training has one posterior sample per example, so a network that confuses dimensions of samples and of examples may
    train. Two and three examples are predicted, so that no number of tokens is mistaken for that of the examples.
    Numerical failures are left to the training, which names their source.

    Raises:
        ValueError: outputs without the examples as their last batch dimension, and other errors of the network.
    """
    if attribute(model, "network") is None or attribute(model, "likelihood") is None:
        return
    batch = first_batch(train)
    if batch is None or find_non_finite(batch, {"model": model, "guide": guide}, ()) is not None:
        return
    for size in (2, 3):
        rows = torch.arange(size, device=batch.x.device) % len(batch.x)
        examples = Batch(*(None if part is None else part[rows] for part in batch))
        try:
            predict(model, guide, examples, num_samples=TRIAL_SAMPLES, seed=0)
        except NumericalError:
            return
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            if refuses_nan(error) or "NaN or Inf" in str(error):
                return
            root = root_error(error)
            root.add_note(
                f"(in a trial prediction of {size} examples with {TRIAL_SAMPLES} posterior samples before the first "
                "epoch. Posterior samples are a dimension on the left of the batch, so networks index from the right.)"
            )
            raise root from None


def _flat(batch: Batch) -> Tensor:
    """Return labels ``(n, targets)``, of real tokens where each token has labels."""
    y = batch.arguments()[1]
    if y.dim() < 3:
        return y
    return y.flatten(0, 1) if batch.mask is None else y[batch.mask]
