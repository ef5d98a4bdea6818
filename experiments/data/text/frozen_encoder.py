"""Features of words in context from a frozen Hugging Face encoder, computed once and kept on disk."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probattn.experiments.data.images.images import DatasetError
from probattn.inference.io.atomic_write import atomic_write

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FrozenEncoder:
    """The last hidden states of an encoder that is not trained.

    Weights are read from safetensors files only, on the CPU, as float32; code that comes with a model is never run.

    Args:
        name: a folder with a model and its tokenizer, or a name of the Hugging Face hub, of which local copies are
            tried first.
        max_length: tokens kept of a text, the first ones, the encoder's own (such as [CLS] and [SEP]) among them.
        cache: folder for the features; made where it is missing. Where it cannot be written, nothing is kept.

    Attributes:
        width: features a token.
        identity: a digest of configuration and weights, wherever they lie.

    Raises:
        DatasetError: the extra ``huggingface`` is missing; there is no such encoder, its weights are incomplete, or it
            also has a decoder.
        ValueError: ``max_length`` has no room for a word, or is more than the encoder takes.
    """

    def __init__(self, name: str, *, max_length: int, cache: Path) -> None:
        self._model, self._tokenizer, initialised = _load(name)
        positions = getattr(self._model.config, "max_position_embeddings", max_length)
        longest = min(self._tokenizer.model_max_length, positions)
        shortest = self._tokenizer.num_special_tokens_to_add() + 1
        if not shortest <= max_length <= longest:
            raise ValueError(f"max_length must be {shortest} to {longest} for the encoder {name!r}, got {max_length}")
        self.width: int = self._model.config.hidden_size
        self._max_length = max_length
        self._cache = cache
        self.identity = _identity(self._model, without=initialised)

    def encode(self, texts: Sequence[str], *, batch_size: int = 64) -> list[Tensor]:
        """The last hidden states of each text's tokens, float32 (n_i, width), the encoder's own tokens among them.

        They are kept in the cache under a digest of the encoder's weights and configuration and of the tokens, so that
        a change of the encoder, its tokenizer, ``max_length`` or the texts makes them anew. So does damage.

        Args:
            texts: none of them empty.
            batch_size: texts that are encoded together; changes the features by rounding only.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not texts:
            return []
        tokens = self._tokenizer(list(texts), truncation=True, max_length=self._max_length)["input_ids"]
        lengths = [len(each) for each in tokens]
        digest = hashlib.sha256(json.dumps([self.identity, tokens]).encode()).hexdigest()
        path = self._cache / f"frozen-{digest[:32]}.pt"
        features = _read_cache(path, shape=(sum(lengths), self.width))
        if features is None:
            features = torch.cat(self._compute(tokens, batch_size=batch_size))
            _write_cache(path, features)
        return list(features.split(lengths))

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


def _load(name: str) -> tuple["PreTrainedModel", Any, set[str]]:
    """Model, tokenizer, and the names of weights that the model has and its files have not."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise DatasetError("frozen encoders need transformers: pip install probattn[huggingface]") from error
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    source = {"trust_remote_code": False}  # else transformers would ask whether to run it
    for local_files_only in (True, False):
        try:
            source["local_files_only"] = local_files_only
            tokenizer = AutoTokenizer.from_pretrained(name, **source)
            model, loading = AutoModel.from_pretrained(name, **source, **options)
            break
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            failure = error
    else:
        raise DatasetError(
            f"cannot load the encoder {name!r}: {failure}. Give a folder with config.json, the tokenizer's files and "
            f"model.safetensors, or a name of the Hugging Face hub and run once with a network."
        ) from failure
    missing = set(loading["missing_keys"])
    used = sorted(key for key in missing if not key.startswith("pooler."))  # the pooler comes after the last states
    if used:
        raise DatasetError(f"{name!r} lacks weights of its encoder, such as {used[0]}; take a complete copy")
    if model.config.is_encoder_decoder:
        raise DatasetError(f"{name!r} is an encoder with a decoder; take an encoder, such as a BERT")
    return model.eval().requires_grad_(False), tokenizer, missing


def _identity(model: "PreTrainedModel", *, without: set[str]) -> str:
    """A digest of configuration and weights, wherever they lie."""
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    weights = {key: _digest(value) for key, value in model.state_dict().items() if key not in without}
    return hashlib.sha256(json.dumps([config, weights], sort_keys=True, default=str).encode()).hexdigest()


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().flatten().view(torch.uint8).numpy()).hexdigest()


def _read_cache(path: Path, *, shape: tuple[int, int]) -> Tensor | None:
    """The features, float32 of this shape, or None if there are none that are sound."""
    try:
        cached = torch.load(path, weights_only=True)
        features = cached["features"]
        return features if features.shape == shape and _digest(features) == cached["sum"] else None
    except Exception:  # damage shows in many ways, and the cache can always be made again
        return None


def _write_cache(path: Path, features: Tensor) -> None:
    """Write the cache in one step; without leave to write, do nothing."""
    with contextlib.suppress(OSError, RuntimeError):  # torch.save reports a failing disk as RuntimeError
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as unfinished:
            torch.save({"features": features, "sum": _digest(features)}, unfinished)
