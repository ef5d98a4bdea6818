"""Monte Carlo dropout (Gal & Ghahramani, 2016): dropout stays active in prediction, with one mask
per sample."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from probattn.attention.options import dropout_rate
from probattn.evaluation_mode import DROPOUTS
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.predictor import (
    PosteriorPredictive,
    Predictor,
)
from probattn.inference.prediction.result import Prediction
from probattn.threads import one_thread_at_a_time


@contextmanager
def active_dropout(model: nn.Module, *, rate: float | None = None) -> Iterator[None]:
    """Activate dropout inside the context while the model is in evaluation mode; other modules are
    unaffected.

    Dropout modules are PyTorch's, and modules with a float attribute ``dropout``, such as attention
    layers. Dropout by function calls inside third-party layers cannot be activated. Masks are from
    PyTorch's global generator.

    Args:
        model: the model to be called inside.
        rate: dropout rate in place of each module's own; 0 disables dropout.

    Raises:
        ValueError: a rate outside [0, 1), or a module whose rate is NaN.
    """
    with ExitStack() as stack:
        for module, attribute in _dropouts(model):
            before = getattr(module, attribute)
            stack.callback(setattr, module, attribute, before)
            stack.callback(setattr, module, "training", module.training)
            stack.callback(module.register_forward_pre_hook(_activate).remove)
            setattr(module, attribute, dropout_rate(before if rate is None else rate))
        yield


class MCDropout(Predictor):
    """Monte Carlo dropout: each posterior sample has masks of its own.

    The S samples run one after another, so a prediction costs S passes of the network. Masks are
    sampled in each call from PyTorch's global generator: seed it to repeat them. A program cannot
    hold them, so it is not exported.

    Args:
        predictor: predictor of any likelihood; S is its number of samples.
        rate: dropout rate in [0, 1) in place of each module's own; 0 disables dropout.

    Raises:
        TypeError: another predictor than a ``PosteriorPredictive``.
        ValueError: a model without dropout.
    """

    not_exported = "it draws new masks in each call; export predictor_network without it"

    def __init__(self, predictor: PosteriorPredictive, *, rate: float | None = None) -> None:
        super().__init__()
        if not isinstance(predictor, PosteriorPredictive):
            inside = type(predictor).__name__
            raise TypeError(
                f"MCDropout draws new samples and masks: put it around a PosteriorPredictive, and "
                f"{inside} in its place or around it"
            )
        rates = [rate or getattr(module, name) for module, name in _dropouts(predictor.model)]
        if rate != 0 and not any(rates):
            raise ValueError("MC dropout needs dropout modules; if their rates are 0, pass rate=")
        self.predictor = predictor
        self.rate = rate

    @one_thread_at_a_time
    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict with active dropout."""
        inner = self.predictor
        number = inner.num_samples
        with active_dropout(inner.model, rate=self.rate):
            return predict(inner.model, inner.guide, data, num_samples=number, vectorize=False)


def _activate(module: nn.Module, args: tuple) -> None:
    module.training = True


def _dropouts(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield all dropout modules, each with the name of its rate."""
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            yield module, "p"
        elif isinstance(getattr(module, "dropout", None), float):
            yield module, "dropout"
