"""Pretrained encoders of Hugging Face that are trained further; code that comes with a model is never run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.inference.imports import extra


@dataclass(frozen=True, eq=False)
class PretrainedEncoder:
    """Configuration and tokenizer of an encoder that is trained further, and the source of its weights.

    Attributes:
        config: configuration of the encoder, of transformers.
        tokenizer: its tokenizer, of tokenizers, which truncates and does not pad.
        source: folder or name of the encoder; None in a run that has weights of its own.
    """

    config: Any
    tokenizer: Any
    source: str | None

    @classmethod
    def load(cls, name: str, *, max_length: int) -> Self:
        """Load configuration and tokenizer of an encoder.

        Args:
            name: a folder with a model and its tokenizer, or a name of the Hugging Face hub; local copies come first.
            max_length: maximal number of tokens of a text, including special ones (such as [CLS] and [SEP]); longer
                texts are truncated.

        Raises:
            MissingExtraError: transformers is not installed.
            DatasetError: the encoder is missing, has a decoder, has no tokenizer, or that of another model.
            ValueError: ``max_length`` leaves no room for a word or exceeds the encoder's maximal length.
        """
        with extra("huggingface", needed_by="a Hugging Face encoder"):
            from tokenizers import Tokenizer
            from transformers import AutoConfig, AutoTokenizer
        config, tokenizer = _load(name, AutoConfig.from_pretrained), _load(name, AutoTokenizer.from_pretrained)
        longest = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", max_length))
        shortest = tokenizer.num_special_tokens_to_add() + 1
        if not shortest <= max_length <= longest:
            raise ValueError(f"max_length must be {shortest} to {longest} for the encoder {name!r}, got {max_length}")
        # Without files, transformers makes a tokenizer of special tokens up.
        if config.is_encoder_decoder or not len(tokenizer.all_special_tokens) < len(tokenizer) <= config.vocab_size:
            raise DatasetError(f"{name!r} is no encoder with its own tokenizer: take another, such as a BERT")
        pipeline = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        pipeline.no_padding()
        pipeline.enable_truncation(max_length)
        return cls(config, pipeline, name)

    def encode_batch(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids of each text's tokens, special ones included, int64 (n,)."""
        return [torch.tensor(encoding.ids) for encoding in self.tokenizer.encode_batch(list(texts))]

    def network(self) -> nn.Module:
        """Return the encoder with its pretrained weights; in a run with random ones, which its checkpoint replaces.

        Raises:
            DatasetError: the encoder is missing or lacks weights.
        """
        return self.architecture() if self.source is None else load_model(self.source)

    def architecture(self) -> nn.Module:
        """Return the encoder with random weights."""
        from transformers import AutoModel

        return AutoModel.from_config(self.config, dtype=torch.float32)

    def save(self, path: Path) -> None:
        """Write configuration and tokenizer as JSON, atomically, with the keys ``config`` and ``tokenizer``."""
        config = json.loads(self.config.to_json_string(use_diff=False))
        write_json(path, {"config": config, "tokenizer": json.loads(self.tokenizer.to_str())})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote; raise DamagedFileError if it has changed."""
        saved = read_json(path)
        with extra("huggingface", needed_by="a Hugging Face encoder"):
            from tokenizers import Tokenizer
            from transformers import AutoConfig
        return cls(AutoConfig.for_model(**saved["config"]), Tokenizer.from_str(json.dumps(saved["tokenizer"])), None)


def load_model(name: str) -> nn.Module:
    """Load an encoder's weights, from safetensors files only, on the CPU, as float32, in evaluation mode.

    Raises:
        DatasetError: the encoder is missing or lacks weights other than those of the pooler, which comes last.
    """
    from transformers import AutoModel

    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, loading = _load(name, AutoModel.from_pretrained, **options)
    used = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if used:
        raise DatasetError(f"{name!r} lacks weights of its encoder, such as {used[0]}; take a complete copy")
    return model.eval()


def _load(name: str, from_pretrained: Callable[..., Any], **options: Any) -> Any:
    """Return what a class of transformers reads, from local files or else from the hub."""
    for local_files_only in (True, False):
        try:  # without trust_remote_code transformers asks the user
            return from_pretrained(name, trust_remote_code=False, local_files_only=local_files_only, **options)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            failure = error
    raise DatasetError(
        f"cannot load the encoder {name!r}: {' '.join(str(failure).split())} Give a folder with config.json, the "
        "tokenizer's files and model.safetensors, or a name of the Hugging Face hub and run once with a network."
    ) from failure
