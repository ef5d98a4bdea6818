import sys

import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text.frozen_encoder import FrozenEncoder
from probattn.experiments.data.text.text_loader import TextLoader
from probattn.inference.imports import MissingExtraError

pytest.importorskip("transformers")
from tiny_encoder import VOCABULARY, WIDTH, write_encoder  # noqa: E402
from transformers import BertForMaskedLM, BertModel, BertTokenizer, T5Config, T5Model  # noqa: E402

TEXTS = ("the cat sat .", "a", "ab the cat zebra sat the cat", "cat cat", "the cat sat . the cat sat . the cat")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path):
    write_encoder(tmp_path / "bert")
    return tmp_path / "bert"


def encoder(folder, *, max_length=10):
    return FrozenEncoder(str(folder), max_length=max_length, cache=folder.parent / "cache")


@pytest.fixture
def forward_passes(monkeypatch):
    """The shape of the tokens of each forward pass of a BERT."""
    shapes = []
    forward = BertModel.forward

    def counted(self, *inputs, **options):
        shapes.append(tuple(options["input_ids"].shape))
        return forward(self, *inputs, **options)

    monkeypatch.setattr(BertModel, "forward", counted)
    return shapes


def assert_same(found, expected, **tolerances):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerances)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("seed", [0, 1])
def test_features_are_those_of_one_text_at_a_time_in_evaluation_mode(tmp_path, batch_size, seed):
    model = write_encoder(tmp_path / "bert", seed=seed)
    frozen = encoder(tmp_path / "bert")
    features = frozen.encode(TEXTS, batch_size=batch_size)
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "bert")
    expected = []
    for text in TEXTS:
        tokens = [VOCABULARY.index("[CLS]"), *tokenizer.encode(text, add_special_tokens=False)[:8]]
        tokens.append(VOCABULARY.index("[SEP]"))
        with torch.no_grad():
            expected.append(model(input_ids=torch.tensor([tokens])).last_hidden_state[0])
    assert [len(each) for each in expected] == [6, 3, 10, 4, 10]
    assert_same(features, expected, atol=1e-5, rtol=0)
    assert frozen.width == WIDTH
    assert all(each.dtype == torch.float32 and not each.requires_grad for each in features)


def test_the_second_time_the_cache_is_read(folder, forward_passes):
    first = encoder(folder).encode(TEXTS, batch_size=2)
    assert sorted(forward_passes) == [(1, 10), (2, 4), (2, 10)]  # batches of similar length
    again = encoder(folder).encode(TEXTS)
    assert len(forward_passes) == 3
    assert_same(again, first, atol=0, rtol=0)


def test_features_can_be_trained_on(folder):
    features = encoder(folder).encode(TEXTS)
    layer = torch.nn.Linear(WIDTH, 1)
    for x, _, mask in TextLoader(features, torch.zeros(5), batch_size=2):
        (layer(x) * mask[..., None]).sum().backward()
    assert layer.weight.grad.abs().sum() > 0


def test_another_folder_with_the_same_encoder_shares_the_cache(folder, forward_passes):
    encoder(folder).encode(TEXTS)
    encoder(folder.rename(folder.with_name("elsewhere"))).encode(TEXTS)
    assert len(forward_passes) == 1


@pytest.mark.parametrize("change", ["weights", "configuration", "texts", "order", "max_length", "vocabulary"])
def test_a_change_makes_the_features_anew(tmp_path, folder, forward_passes, change):
    old = encoder(folder).encode(TEXTS)
    texts, max_length = TEXTS, 10
    if change == "weights":
        write_encoder(tmp_path / "other", seed=1)
    elif change == "configuration":
        write_encoder(tmp_path / "other", hidden_act="relu")
    elif change == "vocabulary":
        (folder / "tokenizer.json").write_text(
            (folder / "tokenizer.json").read_text().replace('"cat"', '"dog"').replace('"sat"', '"cat"')
        )
    elif change == "texts":
        texts = ("the cat sat a", *TEXTS[1:])
    elif change == "order":
        texts = TEXTS[::-1]
    else:
        max_length = 5
    new_folder = tmp_path / "other" if change in ("weights", "configuration") else folder
    new = encoder(new_folder, max_length=max_length).encode(texts)
    assert len(forward_passes) == 2
    assert any(one.shape != other.shape or not torch.allclose(one, other) for one, other in zip(old, new, strict=True))


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_cache_is_made_again(folder, forward_passes, damage):
    first = encoder(folder).encode(TEXTS)
    (path,) = (folder.parent / "cache").iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "bit":
        stored = torch.cat(first).numpy().tobytes()
        content[content.index(stored) + 17] ^= 64
        path.write_bytes(content)
    else:
        path.write_bytes(b"")
    for expected_passes in (2, 2):
        assert_same(encoder(folder).encode(TEXTS), first, atol=0, rtol=0)
        assert len(forward_passes) == expected_passes
    assert list(path.parent.iterdir()) == [path]


def test_a_cache_that_cannot_be_written_is_fine(folder, forward_passes):
    (folder.parent / "cache").write_text("a file where the folder would be")
    first, again = (encoder(folder).encode(TEXTS) for _ in range(2))
    assert len(forward_passes) == 2
    assert_same(first, again, atol=0, rtol=0)


def test_an_untrained_pooler_does_no_harm(tmp_path, forward_passes):
    model = write_encoder(tmp_path / "bert", kind=BertForMaskedLM)  # saved without a pooler, which is then random
    (first, again) = (encoder(tmp_path / "bert").encode(["the cat"])[0] for _ in range(2))
    assert len(forward_passes) == 1
    with torch.no_grad():
        tokens = torch.tensor([[2, VOCABULARY.index("the"), VOCABULARY.index("cat"), 3]])
        torch.testing.assert_close(first, model.bert(input_ids=tokens).last_hidden_state[0])
    assert torch.equal(first, again)


def test_missing_weights_of_the_encoder_are_refused(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DatasetError, match=r"lacks weights.*encoder\.layer\.1\.output\.dense\.weight"):
        encoder(folder)


def test_pickled_weights_are_refused(folder):
    torch.save(BertModel.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DatasetError, match=r"cannot load .*model\.safetensors"):
        encoder(folder)


def test_an_absent_encoder_says_what_to_do(tmp_path):
    with pytest.raises(DatasetError, match="Give a folder with .* or a name of the Hugging Face hub and run once"):
        FrozenEncoder("nobody/has-this", max_length=8, cache=tmp_path)
    with pytest.raises(DatasetError, match="cannot load the encoder"):
        FrozenEncoder(str(tmp_path), max_length=8, cache=tmp_path)


def test_an_encoder_with_a_decoder_is_refused(folder):
    for file in ("config.json", "model.safetensors"):
        (folder / file).unlink()
    T5Model(T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(folder)
    with pytest.raises(DatasetError, match="take an encoder"):
        encoder(folder)


@pytest.mark.parametrize("max_length", [0, 2, 17])
def test_a_length_that_the_encoder_does_not_take_is_refused(folder, max_length):
    with pytest.raises(ValueError, match=f"max_length must be 3 to 16 for .*got {max_length}"):
        encoder(folder, max_length=max_length)


def test_batches_of_none_are_refused_and_no_texts_have_no_features(folder):
    frozen = encoder(folder)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        frozen.encode(TEXTS, batch_size=0)
    assert frozen.encode([]) == []


def test_without_transformers_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'probattn\[huggingface\]'"):
        FrozenEncoder("any", max_length=8, cache=tmp_path)
