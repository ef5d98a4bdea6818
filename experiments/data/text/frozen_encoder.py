"""Features of tokens from a frozen Hugging Face encoder, computed once and cached on disk."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probattn.experiments.data.cache import read_or_compute
from probattn.experiments.data.text.hugging_face import check_length, load_config, load_model, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FrozenEncoder:
    """Pretrained encoder that is not trained further; its last hidden states are the features.

    Weights are read from safetensors files only, on the CPU, as float32; code that comes with a model is never run.

    Args:
        name: a folder with a model and its tokenizer, or a name of the Hugging Face hub; local copies are tried first.
        max_length: maximal number of tokens of a text, including special ones (such as [CLS] and [SEP]); longer texts
            are truncated.
        cache: folder of cached features, created if it is missing; nothing is cached if it is not writable.

    Attributes:
        width: number of features per token.
        identity: digest of configuration and weights, independent of their location.

    Raises:
        DatasetError: the extra ``huggingface`` is missing; or the encoder is missing, lacks weights, or has a decoder.
        ValueError: ``max_length`` leaves no room for a word or exceeds the encoder's maximal length.
    """

    def __init__(self, name: str, *, max_length: int, cache: Path) -> None:
        self._tokenizer, config = load_tokenizer(name), load_config(name)
        check_length(max_length, name, self._tokenizer, config)
        model, initialised = load_model(name)
        self._model = model.requires_grad_(False)
        self.width: int = self._model.config.hidden_size
        self._max_length = max_length
        self._cache = cache
        self.identity = _identity(self._model, without=initialised)

    def encode(self, texts: Sequence[str], *, batch_size: int = 64) -> list[Tensor]:
        """Return the last hidden states of each text's tokens, special ones included, float32 (n_i, width).

        They are cached under a digest of the encoder's weights and configuration and of the tokens: they are computed
        again after a change of the encoder, its tokenizer, ``max_length`` or the texts, and after damage.

        Args:
            texts: not empty strings.
            batch_size: texts per forward pass; changes the features by rounding only.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not texts:
            return []
        tokens = self._tokenizer(list(texts), truncation=True, max_length=self._max_length)["input_ids"]
        lengths = [len(each) for each in tokens]
        digest = hashlib.sha256(json.dumps([self.identity, tokens]).encode()).hexdigest()

        def compute() -> Tensor:
            return torch.cat(self._compute(tokens, batch_size=batch_size))

        path = self._cache / f"frozen-{digest[:32]}.pt"
        return list(read_or_compute(path, stamp=digest, compute=compute).split(lengths))

    @torch.no_grad()
    def _compute(self, tokens: Sequence[Sequence[int]], *, batch_size: int) -> list[Tensor]:
        features: dict[int, Tensor] = {}
        order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            ids = [torch.tensor(tokens[index]) for index in indices]
            mask = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
            padded = pad_sequence(ids, batch_first=True, padding_value=self._tokenizer.pad_token_id or 0)
            states = self._model(input_ids=padded, attention_mask=mask).last_hidden_state
            features |= {index: state[: len(tokens[index])] for index, state in zip(indices, states, strict=True)}
        return [features[index] for index in range(len(tokens))]


def _identity(model: "PreTrainedModel", *, without: set[str]) -> str:
    """Return a digest of configuration and weights, independent of their location."""
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    weights = {key: _digest(value) for key, value in model.state_dict().items() if key not in without}
    return hashlib.sha256(json.dumps([config, weights], sort_keys=True, default=str).encode()).hexdigest()


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().flatten().view(torch.uint8).numpy()).hexdigest()
