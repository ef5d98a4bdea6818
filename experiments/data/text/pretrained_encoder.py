"""Pretrained Hugging Face encoder that is trained further: its tokenizer, its configuration and its weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.experiments.data.text.hugging_face import check_length, load_config, load_model, load_tokenizer
from probattn.inference.imports import extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedModel

FORMAT = "probattn-encoder-1"


@dataclass(frozen=True, eq=False)
class PretrainedEncoder:
    """Configuration and tokenizer of an encoder, and the source of its weights.

    Attributes:
        config: configuration of the encoder.
        tokenizer: its tokenizer, which truncates and does not pad.
        source: folder or name of the encoder; None in a run that has weights of its own.
    """

    config: "PretrainedConfig"
    tokenizer: "Tokenizer"
    source: str | None

    @classmethod
    def load(cls, name: str, *, max_length: int) -> Self:
        """Load configuration and tokenizer of an encoder.

        Args:
            name: a folder with a model and its tokenizer, or a name of the Hugging Face hub.
            max_length: maximal number of tokens of a text, including special ones (such as [CLS] and [SEP]); longer
                texts are truncated.

        Raises:
            MissingExtraError: transformers is not installed.
            DatasetError: the encoder is missing, has a decoder, has no fast
                tokenizer, or that of another model.
            ValueError: ``max_length`` leaves no room for a word or exceeds the encoder's maximal length.
        """
        with extra("huggingface", needed_by="a Hugging Face encoder"):
            from tokenizers import Tokenizer
        config, tokenizer = load_config(name), load_tokenizer(name)
        check_length(max_length, name, tokenizer, config)
        if not tokenizer.is_fast:
            raise DatasetError(f"the encoder {name!r} has no fast tokenizer (tokenizer.json), which is needed here")
        pipeline = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        if pipeline.get_vocab_size() > config.vocab_size:
            raise DatasetError(
                f"the tokenizer of the encoder {name!r} has {pipeline.get_vocab_size()} tokens and its model "
                f"{config.vocab_size}; give the tokenizer that the model was trained with"
            )
        pipeline.no_padding()
        pipeline.enable_truncation(max_length)
        return cls(config, pipeline, name)

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids of each text's tokens, special ones included, int64 (n,)."""
        return [torch.tensor(encoding.ids) for encoding in self.tokenizer.encode_batch(list(texts))]

    def network(self) -> "PreTrainedModel":
        """Return the encoder with its pretrained weights; in a run with random ones, which its checkpoint replaces.

        Raises:
            DatasetError: the encoder is missing or lacks weights.
        """
        return self.architecture() if self.source is None else load_model(self.source)[0]

    def architecture(self) -> "PreTrainedModel":
        """Return the encoder with random weights."""
        from transformers import AutoModel

        return AutoModel.from_config(self.config, dtype=torch.float32)

    def save(self, path: Path) -> None:
        """Write configuration and tokenizer as JSON, atomically, with the keys ``config`` and ``tokenizer``."""
        config = json.loads(self.config.to_json_string(use_diff=False))
        write_json(path, {"format": FORMAT, "config": config, "tokenizer": json.loads(self.tokenizer.to_str())})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: the file is missing.
            DamagedFileError: it is damaged.
            MissingExtraError: transformers is not installed.
            ValueError: it holds no encoder that the installed libraries know.
        """
        saved = read_json(path)
        with extra("huggingface", needed_by="a Hugging Face encoder"):
            from tokenizers import Tokenizer
            from transformers import AutoConfig
        try:
            if saved.pop("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            config = AutoConfig.for_model(**saved["config"])
            tokenizer = Tokenizer.from_str(json.dumps(saved["tokenizer"]))
        except Exception as error:  # tokenizers raises Exception itself
            raise ValueError(
                f"{path} holds no encoder ({error}); restore that of the run, or train a new one"
            ) from error
        return cls(config, tokenizer, None)
