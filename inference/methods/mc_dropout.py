"""Monte-Carlo dropout (Gal & Ghahramani, 2016): dropout stays on in prediction, and its masks are draws."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.handlers import num_folded, num_samples, stochastic_input
from probattn.inference.methods.predictor import Predictor
from probattn.inference.prediction.predict import Prediction, predict
from probattn.torch_compat import is_dropout


@contextmanager
def active_dropout(model: nn.Module, *, rate: float | None = None) -> Iterator[None]:
    """Dropout acts inside, although the model is in evaluation mode; all else, batch norm too, stays as it is.

    Dropout modules are torch's, and those with a rate ``dropout`` of their own, such as softmax attention. Under
    ``draws(S)`` every draw has masks of its own, from torch's global generator: the first dropout module of a pass
    repeats its input S times, ``(batch, ...)`` → ``(S, batch, ...)``, unless a latent site has brought in the draws
    before. So draw s of the latent sites goes with mask s, and layers below run once. What an attention layer sends
    through blocks that are not its own, its inducing inputs, is left whole.

    The network must be a chain from there on, of layers that take draws on the left as those of this library do:
    ``nn.MultiheadAttention`` does not; convolutions and batch norm do not either. A network that
    :func:`~probattn.models.replace_attention` has converted may be anything: its draws are folded into its batch at the
    input. In attention layers of others but ``nn.MultiheadAttention``, probabilities may be dropped by a function that
    cannot be reached: they stay whole.

    Args:
        model: what is called inside, its first argument the batch.
        rate: in place of each module's own rate; 0 switches dropout off.

    Raises:
        ValueError: a rate outside [0, 1); at a pass, a dropout module whose input lacks the draws or the batch.
    """
    if rate is not None and not 0 <= rate < 1:
        raise ValueError(f"a dropout rate lies in [0, 1), got {rate}")
    with ExitStack() as stack, _Pass() as state:
        stack.callback(model.register_forward_pre_hook(state.begin, with_kwargs=True).remove)
        for layer in model.modules():
            if isinstance(layer, ProbabilisticAttention):
                stack.callback(layer.register_forward_pre_hook(state.enter).remove)
                stack.callback(layer.register_forward_hook(state.leave).remove)
        for path, module, attribute in _dropouts(model):
            own = getattr(module, attribute)
            stack.callback(setattr, module, attribute, own)
            stack.callback(setattr, module, "training", module.training)
            setattr(module, attribute, own if rate is None else rate)
            if getattr(module, attribute) > 0:
                stack.callback(module.register_forward_pre_hook(partial(state.switch_on, path)).remove)
                if is_dropout(module):
                    stack.callback(module.register_forward_hook(state.unfold).remove)
        yield


def mc_dropout(
    model: nn.Module, guide: nn.Module | None, *, num_samples: int = 10, rate: float | None = None
) -> Predictor:
    """A predictor whose draws have dropout masks, new ones for every example, beside the guide's draws.

    Args:
        model, guide: as for ``predict``; see :func:`active_dropout` for which networks.
        num_samples: draws of each call.
        rate: in place of each module's own rate, in [0, 1); 0 gives the prediction without dropout.

    Raises:
        ValueError: nothing to drop out; a rate out of bounds.
    """
    rates = [getattr(module, attribute) for _, module, attribute in _dropouts(model)]
    if rate != 0 and not rates:
        raise ValueError("Monte-Carlo dropout needs a model with dropout, and this one has no such module")
    if rate is None and not any(rates):
        raise ValueError("every dropout rate of this model is 0; give Monte-Carlo dropout a rate=")

    def predictor(data: Tensor | Iterable) -> Prediction:
        with active_dropout(model, rate=rate):
            return predict(model, guide, data, num_samples=num_samples)

    return predictor


class _Pass(stochastic_input):
    """One pass of the model: its batch, whether the draws have appeared yet, the attention layer that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.layer = 0, None

    def begin(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Before the model."""
        self.batch, self.drawn, self.layer = len((*args, *kwargs.values())[0]), False, None

    def enter(self, layer: nn.Module, args: tuple) -> None:
        """Before an attention layer."""
        self.layer = layer

    def leave(self, layer: nn.Module, args: tuple, output: Tensor) -> None:
        """After an attention layer."""
        self.layer = None

    def _pyro_post_sample(self, msg: Message) -> None:
        self.drawn = self.drawn or any(frame.name == "draws_-2" for frame in msg["cond_indep_stack"])

    def switch_on(self, path: str, module: nn.Module, args: tuple) -> tuple:
        """Before a dropout module."""
        module.training = not self._is_borrowed(module)
        number = _number()
        if number is None or not module.training:
            return args
        if isinstance(module, nn.MultiheadAttention):
            raise ValueError(
                f"{path} is an nn.MultiheadAttention, which takes no draws: use SoftmaxAttention, or replace_attention"
            )
        x = self._with_draws(args[0], number, path)
        # Whole channels are dropped by their position, so the draws go into the batch.
        return (x.contiguous().flatten(0, 1) if is_dropout(module) else x, *args[1:])

    def unfold(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        """After one of torch's dropout modules."""
        number = _number()
        return output if number is None or not module.training else output.unflatten(0, (number, self.batch))

    def _is_borrowed(self, module: nn.Module) -> bool:
        """Whether an attention layer calls a module that is not its own."""
        return self.layer is not None and all(module is not own for own in self.layer.modules())

    def _with_draws(self, x: Tensor, number: int, path: str) -> Tensor:
        leading = (number, self.batch) if self.drawn else (self.batch,)
        if x.shape[: len(leading)] != leading:
            raise ValueError(
                f"dropout at {path} got an input of shape {tuple(x.shape)}, which does not start with {leading}: "
                "behind the first dropout or latent site, each layer must pass on (draws, batch, ...)"
            )
        x, self.drawn = x if self.drawn else x.expand(number, *x.shape), True
        return x


def _dropouts(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Path, module and name of the rate of everything that drops out in training."""
    for path, module in model.named_modules():
        if is_dropout(module):
            yield path, module, "p"
        elif isinstance(getattr(module, "dropout", None), float):
            yield path, module, "dropout"


def _number() -> int | None:
    """The number of draws that are a dimension of their own here, not folded into the batch."""
    return num_samples() if num_folded() is None else None
