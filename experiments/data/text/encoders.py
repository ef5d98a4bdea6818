"""Pretrained encoders of Hugging Face that are trained further; code that comes with a model is
never run."""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.experiments.data.errors import DatasetError
from probattn.inference.imports import extra


@dataclass(frozen=True, eq=False)
class PretrainedEncoder:
    """Configuration and tokenizer of an encoder that is trained further, and the source of its
    weights.

    Attributes:
        config: configuration of the encoder, of transformers.
        pipeline: its tokenizer, of tokenizers, which truncates and does not pad.
        source: folder or name of the encoder; None in a run that has weights of its own.
    """

    config: Any
    pipeline: Any
    source: str | None

    @classmethod
    def load(cls, name: str, *, max_length: int) -> Self:
        """Load configuration and tokenizer of an encoder.

        Args:
            name: a folder with a model and its tokenizer, or a name of the Hugging Face hub.
            max_length: maximal number of tokens of a text, including special ones (such as [CLS]
                and [SEP]); longer texts are truncated.

        Raises:
            MissingExtraError: transformers is not installed.
            DatasetError: the encoder has a decoder, no tokenizer, or that of another model.
            OSError: the encoder is missing.
            ValueError: ``max_length`` leaves no room for a word or exceeds the encoder's maximal
                length.
        """
        config = _load(name, "AutoConfig")
        tokenizer = _load(name, "AutoTokenizer")
        longest = min(
            tokenizer.model_max_length, getattr(config, "max_position_embeddings", max_length)
        )
        shortest = tokenizer.num_special_tokens_to_add() + 1
        if not shortest <= max_length <= longest:
            raise ValueError(
                f"max_length must be {shortest} to {longest} for the encoder {name!r}, got "
                f"{max_length}"
            )
        # Without files, transformers makes a tokenizer of special tokens up.
        if (
            config.is_encoder_decoder
            or not len(tokenizer.all_special_tokens) < len(tokenizer) <= config.vocab_size
        ):
            raise DatasetError(
                f"{name!r} is no encoder with its own tokenizer: choose another, such as BERT"
            )
        pipeline = _library("tokenizers").Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        pipeline.no_padding()
        pipeline.enable_truncation(max_length)
        return cls(config, pipeline, name)

    def encode_batch(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids of each text's tokens, special ones included, int64 (n,)."""
        return [torch.tensor(encoding.ids) for encoding in self.pipeline.encode_batch(list(texts))]

    def network(self) -> nn.Module:
        """Return the encoder with its pretrained weights, as float32 in evaluation mode.

        The weights are read from safetensors files only. In a run they are random, and its
        checkpoint replaces them.

        Raises:
            OSError: the encoder is missing.
            DatasetError: it lacks weights other than those of the pooler, which comes last.
        """
        if self.source is None:
            options = {"trust_remote_code": False, "dtype": torch.float32}
            return _library("transformers").AutoModel.from_config(self.config, **options)
        reading = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
        model, loading = _load(self.source, "AutoModel", **reading)
        used = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
        if used:
            raise DatasetError(
                f"{self.source!r} lacks weights of its encoder, such as {used[0]}; use a complete "
                "copy"
            )
        return model.eval()

    def to_json(self) -> dict[str, Any]:
        """Return configuration and tokenizer as ``preprocessing.json`` holds them."""
        config = json.loads(self.config.to_json_string(use_diff=False))
        return {"config": config, "tokenizer": json.loads(self.pipeline.to_str())}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Read an encoder back that :meth:`to_json` returned.

        Raises:
            DatasetError: the configuration names an implementation, which transformers would
                download and run.
        """
        if re.search('(attn|experts)_implementation"', json.dumps(saved["config"])):
            raise DatasetError("the configuration of the encoder names code of others")
        tokenizer = _library("tokenizers").Tokenizer.from_str(json.dumps(saved["tokenizer"]))
        return cls(
            _library("transformers").AutoConfig.for_model(**saved["config"]), tokenizer, None
        )


def _library(name: str) -> Any:
    with extra("huggingface", needed_by="a Hugging Face encoder"):
        return importlib.import_module(name)


def _load(name: str, kind: str, **options: Any) -> Any:
    """Return what a class of transformers reads, from a folder or from the hub."""
    # Without trust_remote_code transformers asks the user.
    return getattr(_library("transformers"), kind).from_pretrained(
        name, trust_remote_code=False, **options
    )
