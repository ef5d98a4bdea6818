"""Every form of a batch gives the same tensors, and so the same training and predictions."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.inference.batches import iterate_batches, select_fields, unpack_batch
from probattn.inference.training.trainer import Trainer
from probattn.models import Classifier, TextTransformer

X = torch.randint(10, (6, 5), generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 0, 1, 1, 0])
MASK = torch.arange(5) < torch.tensor([5, 3, 4, 5, 1, 2])[:, None]


@dataclass
class Example:
    inputs: Tensor
    target: Tensor
    key_padding_mask: Tensor


Named = namedtuple("Named", ["labels", "input_ids", "attention_mask"])
FORMS = {
    "list": [X, Y, MASK],
    "numpy": (X.numpy(), Y.numpy(), MASK.numpy()),
    "huggingface": {"input_ids": X, "attention_mask": MASK.long(), "labels": Y, "token_type_ids": X * 0, "idx": Y},
    "uint8": {"x": X, "y": Y, "mask": MASK.to(torch.uint8)},
    "padding": {"x": X, "y": Y, "key_padding_mask": ~MASK},
    "dataclass": Example(X, Y, (~MASK).int()),
    "namedtuple": Named(Y, X, MASK),
}


def equal(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_batch_gives_the_same_tensors(form):
    assert equal(unpack_batch(FORMS[form]), (X, Y, MASK))
    assert equal(unpack_batch(FORMS[form]).arguments(), (X, Y, MASK))


def test_inputs_alone_and_inputs_with_labels_have_none_for_the_rest():
    for batch in (X, X.numpy(), (X,), [X], {"inputs": X}):
        assert equal(unpack_batch(batch)[:1], (X,))
        assert unpack_batch(batch)[1:] == (None, None)
    assert equal(unpack_batch((X, Y)).arguments(), (X, Y))


def test_float64_arrays_become_the_default_dtype_and_other_numbers_stay():
    assert unpack_batch(np.zeros((2, 3))).x.dtype == torch.get_default_dtype()
    for dtype in (np.float32, np.int32, np.uint8):
        assert unpack_batch(np.zeros(2, dtype)).x.numpy().dtype == dtype
    assert unpack_batch(torch.zeros(2, dtype=torch.float64)).x.dtype == torch.float64


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"input_ids": X, "pixel_values": X}, "input_ids and pixel_values"),
        ({"input_ids": X, "labels": Y, "label": Y}, "labels and label"),
        ({"pixels": X}, "select_fields"),
        ({"input_ids": X, "token_type_ids": X * 0 + 1}, "second segment"),
        ({"input_ids": X, "attention_mask": MASK.float()}, "mask of the batch must be boolean"),
        ({"input_ids": X, "attention_mask": MASK, "src_key_padding_mask": ~MASK}, "attention_mask and src_key"),
        ((X, Y, MASK, Y), "tuple"),
        ("text", "str"),
        ((), "no field"),
        ({"input_ids": [[1, 2], [3, 4]]}, "input_ids of the batch"),
        ([[1.0, 2.0], [3.0, 4.0]], "x of the batch"),
        ((torch.zeros(3), torch.tensor(2)), "3 inputs and labels"),
        ({"x": torch.zeros(3), "label": torch.tensor(2)}, "3 inputs and labels"),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused_with_its_reason(batch, words):
    with pytest.raises((ValueError, TypeError), match=words):
        unpack_batch(batch)


def test_training_without_labels_says_which_names_labels_have():
    with pytest.raises(ValueError, match="training needs labels.*labels.*label"):
        unpack_batch({"input_ids": X}).arguments()


class Digits(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"tokens": X[index], "kind": Y[index], "padding": ~MASK[index], "number": index}


NAMES = {"x": "tokens", "y": "kind", "padding_mask": "padding"}


@pytest.mark.parametrize("workers", [0, 1])
def test_other_names_of_fields_are_selected_in_the_loader_and_its_workers(workers):
    loader = DataLoader(Digits(), batch_size=6, num_workers=workers)
    selected = select_fields(loader, **NAMES)
    assert equal(next(iter(selected)), (X, Y, MASK))
    assert len(selected) == 1
    assert "tokens" in next(iter(loader))  # the loader itself is unchanged


def test_two_masks_are_refused():
    selected = select_fields(DataLoader(Digits()), x="tokens", mask="padding", padding_mask="padding")
    with pytest.raises(ValueError, match="mask and key_padding_mask"):
        next(iter(selected))


def test_single_batches_and_data_sets_are_told_from_iterables_of_batches():
    for single in (X, X.numpy(), FORMS["huggingface"], FORMS["dataclass"], FORMS["namedtuple"]):
        (batch,) = iterate_batches(single)
        assert batch is single
    pair = [(X, Y), (X, Y)]
    assert iterate_batches(pair) is pair
    assert equal(unpack_batch(next(iter(iterate_batches(TensorDataset(X, Y)))))[:2], (X, Y))
    pieces = X.split([2, 4])
    assert iterate_batches(pieces) is pieces
    with pytest.raises(TypeError, match=r"pass \[\(x, y\)\]"):
        iterate_batches((X, Y))


def test_a_data_set_is_no_loader_although_its_examples_could_pass_for_batches():
    data, model = TensorDataset(X, X), classifier()
    with pytest.raises(TypeError, match="train must be a loader of batches"):
        fit(model, guides.for_model(model), data, progress=False)
    with pytest.raises(TypeError, match="valid must be a loader of batches"):
        fit(model, guides.for_model(model), [(X, Y)], data, progress=False)


@pytest.mark.parametrize("data", [X, (X, Y), FORMS["huggingface"], iter([(X, Y)])])
def test_training_on_a_single_batch_or_a_generator_is_an_error(data):
    model = classifier()
    with pytest.raises((TypeError, ValueError)):
        fit(model, guides.for_model(model), data, progress=False)


def classifier():
    torch.manual_seed(0)
    network = TextTransformer(
        nn.Embedding(10, 4), max_length=5, classes=2, dim=4, depth=1, heads=2, mlp_dim=4,
        attention=KEPSVGPAttention.partial(rank=2),
    )  # fmt: skip
    return Classifier(network, num_data=6)


def trained(batch):
    model = classifier()
    guide = guides.for_model(model)
    fit(model, guide, [batch], [batch], options=TrainOptions(epochs=1, lr=0.1, seed=1), progress=False)
    torch.manual_seed(2)
    return predict(model, guide, [batch], num_samples=2)


@pytest.mark.parametrize("form", ["huggingface", "dataclass", "numpy"])
def test_training_and_prediction_do_not_depend_on_the_form_of_the_batches(form):
    found, expected = trained(FORMS[form]), trained((X, Y, MASK))
    assert torch.equal(found.probs, expected.probs)
    assert torch.equal(found.labels, Y)


def test_a_run_on_dictionaries_of_a_loader_with_workers_resumes_exactly(tmp_path, monkeypatch):
    def run(folder, *, resume=False):
        model = classifier()
        guide = guides.for_model(model)
        shuffled = torch.Generator().manual_seed(3)
        loader = DataLoader(Digits(), batch_size=2, shuffle=True, num_workers=1, generator=shuffled)
        options = TrainOptions(epochs=2, lr=0.1, seed=1, log_every=1)
        fields = select_fields(loader, **NAMES)
        return fit(model, guide, fields, options=options, out=folder, resume=resume, progress=False).steps

    save = Trainer._save_last

    def interrupt(trainer):
        save(trainer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_last", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "resumed")
    found, expected = run(tmp_path / "resumed", resume=True), run(tmp_path / "whole")
    assert [step["loss"] for step in found] == [step["loss"] for step in expected][-len(found) :]
    assert [step["step"] for step in expected] == [1, 2, 3, 4, 5, 6]
