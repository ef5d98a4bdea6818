"""Encoders and tokenizers of Hugging Face, from local folders first; code that comes with a model is never run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.inference.imports import extra

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of an encoder.

    Args:
        name: a folder with a model and its tokenizer, or a name of the Hugging Face hub; local copies are tried first.

    Raises:
        DatasetError: the extra ``huggingface`` or the tokenizer is missing.
    """
    tokenizer = _load(name, lambda transformers, **source: transformers.AutoTokenizer.from_pretrained(name, **source))
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes up where there are no files
        raise DatasetError(f"the encoder {name!r} has no tokenizer: add its files, such as tokenizer.json")
    return tokenizer


def load_config(name: str) -> "PretrainedConfig":
    """Load the configuration of an encoder; arguments and errors as for :func:`load_tokenizer`.

    Raises:
        DatasetError: it is missing, or that of an encoder with a decoder.
    """

    def load(transformers: Any, **source: Any) -> Any:
        if Path(name).is_dir() and not Path(name, "config.json").is_file():  # else transformers 5.0 guesses by its name
            raise OSError("the folder has no config.json")
        return transformers.AutoConfig.from_pretrained(name, **source)

    config = _load(name, load)
    if config.is_encoder_decoder:
        raise DatasetError(f"{name!r} is an encoder with a decoder; take an encoder, such as a BERT")
    return config


def load_model(name: str) -> tuple["PreTrainedModel", set[str]]:
    """Load an encoder's weights, from safetensors files only, on the CPU, as float32.

    Returns:
        The model in evaluation mode, and the names of the weights that its files lack: at most those of the pooler,
        which is applied after the last hidden states.

    Raises:
        DatasetError: the extra ``huggingface`` is missing; or the encoder is missing or lacks weights.
    """
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, loading = _load(
        name, lambda transformers, **source: transformers.AutoModel.from_pretrained(name, **source, **options)
    )
    missing = set(loading["missing_keys"])
    used = sorted(key for key in missing if not key.startswith("pooler."))
    if used:
        raise DatasetError(f"{name!r} lacks weights of its encoder, such as {used[0]}; take a complete copy")
    return model.eval(), missing


def check_length(max_length: int, name: str, tokenizer: "PreTrainedTokenizerBase", config: "PretrainedConfig") -> None:
    """Check a maximal number of tokens.

    Raises:
        ValueError: it leaves no room for a word or exceeds the encoder's maximal length.
    """
    longest = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", max_length))
    shortest = tokenizer.num_special_tokens_to_add() + 1
    if not shortest <= max_length <= longest:
        raise ValueError(f"max_length must be {shortest} to {longest} for the encoder {name!r}, got {max_length}")


def _load(name: str, load: Callable[..., Any]) -> Any:
    """Return what ``load(transformers, **source)`` reads, from local files or else from the hub; no progress bar."""
    with extra("huggingface", needed_by="a Hugging Face encoder"):
        import transformers
        from transformers.utils import logging
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        for local_files_only in (True, False):
            try:
                # without trust_remote_code transformers asks the user
                return load(transformers, trust_remote_code=False, local_files_only=local_files_only)
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                failure = error
    finally:
        if had_bars:
            logging.enable_progress_bar()
    reason = " ".join(str(failure).split()).rstrip(".")
    raise DatasetError(
        f"cannot load the encoder {name!r}: {reason}. Give a folder with config.json, the tokenizer's files and "
        f"model.safetensors, or a name of the Hugging Face hub and run once with a network."
    ) from failure
