"""Monte Carlo dropout (Gal & Ghahramani, 2016): dropout stays active in prediction, with one mask per sample."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from probattn.attention.options import dropout_rate
from probattn.draws import num_folded, num_samples, stochastic_input
from probattn.evaluation_mode import DROPOUTS
from probattn.inference.prediction.predictor import Predictor, SampledPredictor, check_sampled
from probattn.inference.prediction.result import Prediction


@contextmanager
def active_dropout(model: nn.Module, *, rate: float | None = None) -> Iterator[None]:
    """Activate dropout inside the context while the model is in evaluation mode; other modules are unaffected.

    Dropout modules are PyTorch's, and modules with a float attribute ``dropout``, such as softmax attention. Under
    ``draws(S)`` each sample has its own masks, from PyTorch's global generator: the first dropout module of a forward
    pass expands its input to S samples, ``(batch, ...)`` → ``(S, batch, ...)``, unless a latent site has added that
    dimension before. So sample s of the latent sites is paired with mask s, and the layers before run once.

    From that point on, the network must be a chain of layers that broadcast over samples on the left, as those of this
    library do; ``nn.MultiheadAttention``, convolutions and batch norm do not. Networks converted by
    :func:`~probattn.models.replace_attention` have no such restriction: their samples are folded into the batch at the
    input. Dropout by function calls inside third-party attention layers cannot be activated.

    Args:
        model: the model to be called inside; its first argument is the batch.
        rate: dropout rate in place of each module's own; 0 disables dropout.

    Raises:
        ValueError: a rate outside [0, 1), or a module whose rate is NaN; in a forward pass, a dropout module whose
            input lacks the samples or the batch.
    """
    with ExitStack() as stack, _Masks() as masks:
        # Networks with stored samples run the network of a Supervised model, not the model itself.
        outer = model.network if hasattr(model, "likelihood_of") else model
        stack.callback(outer.register_forward_pre_hook(masks.begin, with_kwargs=True).remove)
        for path, module, attribute in _dropouts(model):
            before = getattr(module, attribute)
            stack.callback(setattr, module, attribute, before)
            stack.callback(setattr, module, "training", module.training)
            setattr(module, attribute, dropout_rate(before if rate is None else rate))
            if getattr(module, attribute) > 0:
                stack.callback(module.register_forward_pre_hook(partial(masks.activate, path)).remove)
                if isinstance(module, DROPOUTS):
                    stack.callback(module.register_forward_hook(masks.unfold).remove)
        yield


class MCDropout(Predictor):
    """Monte Carlo dropout: each sample has its own masks, in addition to the predictor's posterior samples.

    Masks are sampled in each call from PyTorch's global generator, also by an exported program: seed it to repeat them.

    Args:
        predictor: predictor that runs a model with samples; see :func:`active_dropout` for supported networks.
        rate: dropout rate in [0, 1) in place of each module's own; 0 disables dropout.

    Raises:
        TypeError: another predictor.
        ValueError: a model without dropout, or without samples.
    """

    def __init__(self, predictor: SampledPredictor, *, rate: float | None = None) -> None:
        super().__init__()
        check_sampled(predictor, "MCDropout")
        if predictor.num_samples is None:
            raise ValueError("MC dropout needs samples, and a network at the posterior mean has none")
        rates = [getattr(module, name) if rate is None else rate for _, module, name in _dropouts(predictor.model)]
        if rate != 0 and not any(rates):
            raise ValueError("MC dropout needs dropout modules; if their rates are 0, pass rate= to MCDropout")
        self.predictor, self.rate = predictor, rate

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict with active dropout."""
        with active_dropout(self.predictor.model, rate=self.rate):
            return self.predictor.predict(data)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch with active dropout."""
        with active_dropout(self.predictor.model, rate=self.rate):
            return self.predictor.predict_batch(x, mask)


class _Masks(stochastic_input):
    """Hooks that give each sample its own masks; ``drawn`` is True once samples have a dimension in this pass."""

    def begin(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Pre-hook of the model."""
        self.batch_size, self.drawn = (*args, *kwargs.values())[0].shape[0], False

    def activate(self, path: str, module: nn.Module, args: tuple) -> tuple:
        """Pre-hook of dropout modules: add the dimension of the samples if nothing has before."""
        module.training, number = True, _num_unfolded()
        if number is None:
            return args
        x, leading = args[0], (number, self.batch_size) if self.drawn else (self.batch_size,)
        if x.shape[: len(leading)] != leading:
            raise ValueError(
                f"dropout at {path} got an input of shape {tuple(x.shape)}, which does not start with {leading}: "
                "after the first dropout or latent site, each layer must pass on (draws, batch, ...)"
            )
        x, self.drawn = x if self.drawn else x.expand(number, *x.shape), True
        # Channels are dropped by their position among the dimensions, so samples are folded into the batch.
        return (x.contiguous().flatten(0, 1) if isinstance(module, DROPOUTS) else x, *args[1:])

    def unfold(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        """Hook of PyTorch's dropout modules."""
        number = _num_unfolded()
        return output if number is None else output.unflatten(0, (number, self.batch_size))


def _dropouts(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield path, module and the rate's attribute of all dropout modules."""
    for path, module in model.named_modules():
        if isinstance(module, DROPOUTS):
            yield path, module, "p"
        elif isinstance(getattr(module, "dropout", None), float):
            yield path, module, "dropout"


def _num_unfolded() -> int | None:
    """Number of samples in a dimension of their own; None if there is none, or they are folded into the batch."""
    return num_samples() if num_folded() is None else None
