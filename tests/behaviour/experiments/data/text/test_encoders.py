"""Encoders of Hugging Face: tokens, frozen features and weights; nothing is read from the
network."""

import json

import pytest
import torch

from probattn.experiments.data.text.encoders import PretrainedEncoder

pytest.importorskip("transformers")
from tiny_encoder import write_encoder  # noqa: E402
from transformers import BertModel, BertTokenizer  # noqa: E402

TEXTS = (
    "the cat sat .",
    "a",
    "ab the cat zebra sat the cat",
    "The Cat",
    "the cat sat . the cat sat . the cat",
)
pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def folder(tmp_path):
    write_encoder(tmp_path / "bert")
    return tmp_path / "bert"


def load(folder, max_length=10):
    return PretrainedEncoder.load(str(folder), max_length=max_length)


def test_the_ids_are_those_of_the_encoders_tokenizer_without_its_padding(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["padding"] = {
        "strategy": {"Fixed": 12},
        "direction": "Right",
        "pad_to_multiple_of": None,
    }
    tokenizer["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    expected = BertTokenizer.from_pretrained(folder)(list(TEXTS), truncation=True, max_length=10)[
        "input_ids"
    ]
    assert [ids.tolist() for ids in load(folder).encode_batch(TEXTS)] == expected


def test_the_weights_are_read_from_the_folder_and_in_a_run_not(folder):
    encoder, expected = load(folder), BertModel.from_pretrained(folder)
    weights = encoder.network().state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.state_dict().items())
    saved = json.loads(json.dumps(encoder.to_json()))
    for file in folder.iterdir():
        file.unlink()
    read = PretrainedEncoder.from_json(saved)
    assert all(map(torch.equal, read.encode_batch(TEXTS), encoder.encode_batch(TEXTS)))
    assert read.network().state_dict().keys() == weights.keys()
