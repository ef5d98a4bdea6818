"""Text classifier on a pretrained encoder, of which some attention layers are replaced by layers of
this library."""

from typing import Any, Literal, cast

from torch import Tensor, nn

from probattn import name_layers
from probattn.attention.base import LayerFactory
from probattn.attention.options import check_choice, dropout_rate
from probattn.models.blocks import masked_mean
from probattn.models.third_party.replace import replace_attention


class PretrainedClassifier(nn.Module):
    """Text classifier: a pretrained encoder, pooling over tokens, dropout, and a linear head.

    Padding is masked out of attention and pooling, so it never changes an output. The encoder's
    dropout is active in training mode, in which the classifier starts.

    Args:
        encoder: Hugging Face encoder, such as a BERT, which is copied; its last hidden states are
            the features.
        classes: number of outputs.
        dropout: dropout rate of the pooled features.
        pooling: ``"mean"`` over the real tokens, or ``"cls"``, the first token.
        attention: name, class or factory ``(dim, heads) -> layer``; see
            :func:`~probattn.models.replace_attention`.
        last: number of attention layers that are replaced, counted from the last one; None: all.
            With 0 the encoder stays as it is.

    Raises:
        ValueError: attention that cannot be replaced; ``last`` larger than the number of layers; an
            invalid option.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        classes: int,
        dropout: float = 0.1,
        pooling: Literal["mean", "cls"] = "mean",
        attention: str | LayerFactory,
        last: int | None = 1,
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, ("mean", "cls"))
        self.pooling = pooling
        self.encoder = replace_attention(
            encoder, attention=attention, layers="all" if last is None else range(-last, 0)
        )
        if getattr(self.encoder.wrapped, "pooler", None) is not None:
            # Some apply it after the last hidden states.
            self.encoder.wrapped.register_module("pooler", None)
        self.dropout = nn.Dropout(dropout_rate(dropout))
        self.head = nn.Linear(cast(Any, encoder).config.hidden_size, classes)
        name_layers(self)
        self.train()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits ``(*draws, batch, classes)``.

        Args:
            x: token ids ``(batch, tokens)``.
            mask: ``(batch, tokens)``, True at real tokens; None if all are real.
        """
        return self.head(self.dropout(self.pooled(x, mask)))

    def pooled(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the pooled features ``(*draws, batch, width)``; arguments as for
        :meth:`forward`."""
        states = self.encoder(x, mask)
        return states[..., 0, :] if self.pooling == "cls" else masked_mean(states, mask)

    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Initialise the inducing inputs of each new layer from its own input on a batch of the
        training data."""
        self.encoder.initialise_inducing(x, mask)
