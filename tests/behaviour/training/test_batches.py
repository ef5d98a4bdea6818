"""Every form of a batch gives the same tensors, and so the same training and predictions."""

from collections import namedtuple
from dataclasses import make_dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from probattn.inference.batches import iterate_batches, select_fields, unpack_batch

X = torch.randint(10, (6, 5), generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 0, 1, 1, 0])
MASK = torch.arange(5) < torch.tensor([5, 3, 4, 5, 1, 2])[:, None]


Example = make_dataclass("Example", ["inputs", "target", "key_padding_mask"])
Named = namedtuple("Named", ["labels", "input_ids", "attention_mask"])
FORMS = {
    "numpy": (X.numpy(), Y.numpy(), MASK.numpy()),
    "huggingface": {
        "input_ids": X,
        "attention_mask": MASK.long(),
        "labels": Y,
        "token_type_ids": X * 0,
        "idx": Y,
    },
    "uint8": {"x": X, "y": Y, "key_padding_mask": (~MASK).to(torch.uint8)},
    "dataclass": Example(X, Y, (~MASK).int()),
    "namedtuple": Named(Y, X, MASK),
}


def equal(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_batch_gives_the_same_tensors(form):
    assert equal(unpack_batch(FORMS[form]), (X, Y, MASK))


def test_inputs_alone_have_none_for_the_rest_and_numbers_keep_their_type_but_float64_arrays():
    for batch in (X, (X,), {"inputs": X}):
        assert equal(unpack_batch(batch)[:1], (X,))
        assert unpack_batch(batch)[1:] == (None, None)
    assert equal(unpack_batch((X, Y)).arguments(), (X, Y))
    assert unpack_batch(np.zeros(2, np.uint8)).x.dtype == torch.uint8
    assert unpack_batch(np.zeros((2, 3))).x.dtype == torch.get_default_dtype()
    assert unpack_batch(torch.zeros(2, dtype=torch.float64)).x.dtype == torch.float64


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"input_ids": X, "pixel_values": X}, "input_ids and pixel_values"),
        ({"input_ids": X, "labels": Y, "label": Y}, "labels and label"),
        ({"pixels": X}, "select_fields"),
        ({"input_ids": X, "token_type_ids": X * 0 + 1}, "second segment"),
        ({"input_ids": X, "attention_mask": MASK.float()}, "boolean"),
        (
            {"input_ids": X, "attention_mask": MASK, "src_key_padding_mask": ~MASK},
            "attention_mask and src_key",
        ),
        ((X, Y, MASK, Y), "tuple"),
        ((torch.zeros(3), torch.tensor(2)), "3 inputs and labels"),
    ],
)
def test_a_batch_that_could_be_misread_is_refused(batch, words):
    with pytest.raises((ValueError, TypeError), match=words):
        unpack_batch(batch)


POSITIONS = torch.arange(5).expand(6, 5)


@pytest.mark.parametrize(
    ("name", "needed", "default"),
    [
        ("position_ids", POSITIONS.flip(1), POSITIONS),
        ("head_mask", torch.tensor([1, 0]), torch.ones(2)),
        ("token_type_ids", X * 0 + 1, X * 0),
        ("global_attention_mask", X * 0, X * 0 + 1),
        ("pixel_mask", MASK.long(), X * 0 + 1),
        ("decoder_input_ids", X, None),
        ("bbox", X[..., None].expand(6, 5, 4), None),
        ("encoder_hidden_states", torch.randn(6, 5, 2), None),
    ],
)
@pytest.mark.parametrize("convert", [torch.as_tensor, torch.Tensor.numpy])
def test_what_the_network_would_need_is_refused_and_its_defaults_are_not(
    name, needed, default, convert
):
    batch = {"input_ids": X, "attention_mask": MASK.long(), "labels": Y}
    with pytest.raises(ValueError, match=name):
        unpack_batch(batch | {name: convert(needed)})
    other = {
        "special_tokens_mask": X * 0,
        "example_ids": Y,
        "length": Y,
        "text": ["a"] * 6,
        "past_key_values": None,
    }
    defaults = {} if default is None else {name: convert(default)}
    assert equal(unpack_batch(batch | defaults | other), (X, Y, MASK))
    loader = select_fields(
        DataLoader([0], collate_fn=lambda _: batch | {name: needed}), x="input_ids", y="labels"
    )
    assert equal(next(iter(loader))[:2], (X, Y))


LENGTHS = MASK.sum(-1)


@pytest.mark.parametrize("name", ["lengths", "seq_len"])
@pytest.mark.parametrize(
    "convert", [torch.as_tensor, torch.Tensor.numpy, lambda lengths: lengths.flatten().tolist()]
)
def test_lengths_are_refused_where_no_mask_says_the_same(name, convert):
    for x in (X, X[..., None].expand(6, 5, 3).float()):
        for lengths in (LENGTHS, LENGTHS[:, None]):
            with pytest.raises(ValueError, match=name):
                unpack_batch({"x": x, "y": Y, name: convert(lengths)})
            given = {"x": x, "y": Y, "mask": MASK, name: convert(lengths)}
            assert equal(unpack_batch(given), (x, Y, MASK))
        full = {"x": x, "y": Y, name: convert(LENGTHS * 0 + 5)}
        assert equal(unpack_batch(full)[:2], (x, Y))
    # Of the examples, and no numbers of tokens.
    for other in (LENGTHS * 1.5, LENGTHS * 2, LENGTHS * 100, np.array(["long", "short"])):
        further = convert(other) if isinstance(other, torch.Tensor) else other
        assert equal(unpack_batch({"x": X, "y": Y, name: further})[:2], (X, Y))
    assert equal(unpack_batch({"x": LENGTHS, "y": Y, name: convert(LENGTHS)})[:2], (LENGTHS, Y))
    batch = {"x": X, "y": Y, name: convert(LENGTHS)}
    loader = select_fields(DataLoader([0], collate_fn=lambda _: batch), x="x", y="y")
    assert equal(next(iter(loader))[:2], (X, Y))


def test_other_names_of_fields_are_selected_in_the_workers_of_a_loader():
    examples = [{"tokens": X[i], "kind": Y[i], "padding": ~MASK[i], "number": i} for i in range(6)]
    loader = DataLoader(examples, batch_size=6, num_workers=1)
    assert equal(
        next(iter(select_fields(loader, x="tokens", y="kind", padding_mask="padding"))),
        (X, Y, MASK),
    )
    assert "tokens" in next(iter(loader))  # the loader itself is unchanged


def test_single_batches_and_data_sets_are_told_from_iterables_of_batches():
    for single in (X, X.numpy(), FORMS["huggingface"], FORMS["dataclass"], FORMS["namedtuple"]):
        (batch,) = iterate_batches(single)
        assert batch is single
    pair, pieces = [(X, Y), (X, Y)], X.split([2, 4])
    assert iterate_batches(pair) is pair
    assert iterate_batches(pieces) is pieces
    assert equal(unpack_batch(next(iter(iterate_batches(TensorDataset(X, Y)))))[:2], (X, Y))
    with pytest.raises(TypeError, match=r"pass \[\(x, y\)\]"):
        iterate_batches((X, Y))
