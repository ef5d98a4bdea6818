"""Tiny random BERT with a tokenizer, in a folder as ``save_pretrained`` writes it."""

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer, PreTrainedModel

VOCABULARY = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefgh",
    "##a",
    "##b",
    "the",
    "cat",
    "sat",
    ".",
)
WIDTH = 8


def write_encoder(
    folder: Path, *, seed: int = 0, kind: type[PreTrainedModel] = BertModel, **options: object
) -> PreTrainedModel:
    """Write an encoder of two layers and 16 positions and return it, in evaluation mode.

    Args:
        folder: new folder.
        seed: seed of the weights.
        kind: class of the model.
        options: of the configuration.
    """
    folder.mkdir()
    BertTokenizer({word: index for index, word in enumerate(VOCABULARY)}).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        **options,
    )
    model = kind(config)
    model.save_pretrained(folder)
    return model.eval()
