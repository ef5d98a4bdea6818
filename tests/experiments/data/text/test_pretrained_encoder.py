"""Tokens, configuration and weights of an encoder that is trained further."""

import json
import sys

import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.sealed_files import DamagedFileError
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.pretrained_encoder import PretrainedEncoder
from probattn.experiments.data.text.tokens import PretrainedTokenSettings, fit
from probattn.inference.imports import MissingExtraError

pytest.importorskip("transformers")
from tiny_encoder import write_encoder  # noqa: E402
from transformers import BertModel, BertTokenizer, T5Config, T5Model  # noqa: E402

TEXTS = ("the cat sat .", "a", "ab the cat zebra sat the cat", "The Cat", "the cat sat . the cat sat . the cat")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path):
    write_encoder(tmp_path / "bert")
    return tmp_path / "bert"


def load(folder, max_length=10):
    return PretrainedEncoder.load(str(folder), max_length=max_length)


def test_the_ids_are_those_of_the_encoders_tokenizer(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["padding"] = {
        "strategy": {"Fixed": 12},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))  # files often hold a padding, which adds nothing here
    expected = BertTokenizer.from_pretrained(folder)(list(TEXTS), truncation=True, max_length=10)["input_ids"]
    found = load(folder).encode(TEXTS)
    assert [each.tolist() for each in found] == expected
    assert [len(each) for each in found] == [6, 3, 10, 4, 10]
    assert all(each.dtype == torch.int64 for each in found)


def test_the_weights_are_read_from_the_folder_and_in_a_run_not(tmp_path, folder):
    encoder, expected = load(folder), BertModel.from_pretrained(folder)
    weights = encoder.network().state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.state_dict().items())
    encoder.save(tmp_path / "encoder.json")
    for file in folder.iterdir():
        file.unlink()
    read = PretrainedEncoder.read(tmp_path / "encoder.json")
    assert [each.tolist() for each in read.encode(TEXTS)] == [each.tolist() for each in encoder.encode(TEXTS)]
    network = read.network()
    assert {name: value.shape for name, value in network.state_dict().items()} == {
        name: value.shape for name, value in weights.items()
    }
    network.load_state_dict(weights)
    ids = encoder.encode(["the cat sat"])[0][None]
    with torch.no_grad():
        states = [each.eval()(input_ids=ids).last_hidden_state for each in (network, expected)]
    assert torch.equal(*states)


def test_nothing_is_read_before_it_is_needed(tmp_path):
    texts = Texts(("a", "b"), torch.arange(2))
    tokens = fit(PretrainedTokenSettings(str(tmp_path / "absent"), 10), texts, cache=tmp_path)
    with pytest.raises(
        DatasetError, match="cannot load the encoder .*absent.* Give a folder with config.json, the tok"
    ):
        tokens.encode(["a"])


def test_a_run_without_its_encoder_or_with_a_damaged_one_is_refused(tmp_path, folder):
    tokens = fit(PretrainedTokenSettings(str(folder), 10), None, cache=tmp_path)
    with pytest.raises(DatasetError, match="lacks encoder.json, without which its texts cannot be read; restore it"):
        tokens.for_run(tmp_path)
    tokens.save_preprocessing(tmp_path)
    path = tmp_path / "encoder.json"
    content = path.read_bytes()
    tokens.for_run(tmp_path).save_preprocessing(tmp_path)
    assert path.read_bytes() == content
    path.write_bytes(content.replace(b"cat", b"dog", 1))
    with pytest.raises(DamagedFileError):
        tokens.for_run(tmp_path)


def test_another_format_is_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("probattn.experiments.data.text.pretrained_encoder.FORMAT", "other")
    load(folder).save(tmp_path / "encoder.json")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="holds no encoder .it is not of format probattn-encoder-1.; restore that"):
        PretrainedEncoder.read(tmp_path / "encoder.json")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer"])
def test_an_incomplete_folder_says_what_to_give(folder, missing):
    for file in folder.iterdir():
        if file.name.startswith(missing) or (missing == "tokenizer" and file.name.startswith(("vocab", "special"))):
            file.unlink()
    with pytest.raises(
        DatasetError, match="bert.*(Give a folder with config.json, the tokenizer's|has no tokenizer: add its files)"
    ):
        load(folder)


def test_the_tokenizer_of_a_larger_model_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 18}))
    with pytest.raises(DatasetError, match="has 19 tokens and its model 18; give the tokenizer that the model was"):
        load(folder)


def test_missing_weights_are_refused_when_they_are_read(folder):
    (folder / "model.safetensors").unlink()
    encoder = load(folder)
    with pytest.raises(DatasetError, match=r"cannot load the encoder .*model\.safetensors"):
        encoder.network()


def test_an_encoder_with_a_decoder_is_refused(folder):
    for file in ("config.json", "model.safetensors"):
        (folder / file).unlink()
    T5Model(T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(folder)
    with pytest.raises(DatasetError, match="is an encoder with a decoder; take an encoder, such as a BERT"):
        load(folder)


@pytest.mark.parametrize("max_length", [2, 17])
def test_a_length_that_the_encoder_does_not_take_is_refused(folder, max_length):
    with pytest.raises(ValueError, match=f"max_length must be 3 to 16 for the encoder .*got {max_length}"):
        load(folder, max_length)


def test_without_transformers_the_extra_is_named(monkeypatch, tmp_path, folder):
    load(folder).save(tmp_path / "encoder.json")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'probattn\[huggingface\]'"):
        load("any")
    with pytest.raises(MissingExtraError, match=r"pip install 'probattn\[huggingface\]'"):
        PretrainedEncoder.read(tmp_path / "encoder.json")
