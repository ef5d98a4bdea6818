"""Runs with loaders of the user resume exactly, or are refused, or warn by name that they cannot promise it."""

import functools
import random
import warnings

import numpy as np
import pytest
import torch
from small_fit import assert_same, build, data, short, untimed, weights
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from probattn.inference import CheckpointError, fit
from probattn.inference.distributed.batch_sharding import ShardedLoader
from probattn.inference.io import checkpoint
from probattn.inference.training.inexact import InexactResumeWarning
from probattn.inference.training.probe import probe


class Augmented(Dataset):
    """Examples with noise that a function returns."""

    def __init__(self, noise, changes=0):
        self.noise, self.examples = noise, data()
        self.reads = changes

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        self.reads += self.reads > 0
        x, y = self.examples[index]
        return x + 0.3 * float(self.noise()), y


class Order:
    """Sampler in the order that a function of the length returns."""

    def __init__(self, order):
        self.order = order

    def __len__(self):
        return 8

    def __iter__(self):
        return iter([int(index) for index in self.order(8)])


class Counting(Order):
    """Sampler whose order depends on the number of passes before."""

    def __init__(self):
        super().__init__(lambda size: torch.randperm(size, generator=torch.Generator().manual_seed(self.passes)))
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


class Resumable(Counting):
    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


class Batches(Order):
    def __len__(self):
        return 3

    def __iter__(self):
        return BatchSampler(super().__iter__(), 3, drop_last=False).__iter__()


class Hidden:
    """Function whose generator is in no attribute."""

    __slots__ = ()
    found = property(lambda self: random.SystemRandom().random())


def system():
    return Hidden().found


def normal(source):
    """Return a function with the generator in its closure."""
    return lambda: source.normal()


def permutation(source):
    """Return a partial function with the generator as an argument."""

    def order(size, *, source):
        return source.sample(range(size), size)

    return functools.partial(order, source=source)


def torch_normal(source):
    return functools.partial(torch.randn, (), generator=source)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def loader(dataset=None, **options):
    return DataLoader(data() if dataset is None else dataset, **{"batch_size": 3} | options)


def global_numpy(seed):
    np.random.seed(seed)
    return loader(Augmented(lambda: np.random.normal()))


def global_python(seed):
    random.seed(seed)
    return loader(Augmented(lambda: random.gauss(0, 1)))


EXACT = {
    "sampler": lambda seed: loader(sampler=RandomSampler(data(), generator=seeded(seed))),
    "batch sampler": lambda seed: loader(
        batch_size=1, batch_sampler=BatchSampler(RandomSampler(data(), generator=seeded(seed)), 3, False)
    ),
    "NumPy in a sampler": lambda seed: loader(sampler=Order(np.random.default_rng(seed).permutation)),
    "own batch sampler": lambda seed: loader(
        batch_size=1, batch_sampler=Batches(np.random.RandomState(seed).permutation)
    ),
    "random.Random in a sampler": lambda seed: loader(sampler=Order(permutation(random.Random(seed)))),
    "NumPy": global_numpy,
    "random": global_python,
    "generator of a method": lambda seed: loader(Augmented(np.random.Generator(np.random.SFC64(seed)).normal)),
    "generator of a data set": lambda seed: loader(
        Augmented(torch_normal(seeded(seed))), generator=seeded(seed + 1), shuffle=True
    ),
    "two workers": lambda seed: loader(
        Augmented(np.random.normal), num_workers=2, shuffle=True, generator=seeded(seed)
    ),
    "two workers, global": lambda seed: loader(Augmented(lambda: torch.randn(())), num_workers=2, shuffle=True),
    "state_dict": lambda seed: loader(sampler=Resumable()),
}


def killed_in_second_epoch(monkeypatch):
    """Kill the run in its second epoch, at the second batch that the trainer gets."""
    epochs, own = [], ShardedLoader.__iter__

    def batches(self):
        epochs.append(self)
        for number, batch in enumerate(own(self)):
            if (len(epochs), number) == (2, 1):
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(ShardedLoader, "__iter__", batches)


def run(train, out, *, seed=0, valid=True, **options):
    model, guide, _, own_valid = build(seed=seed)
    history = fit(model, guide, train, own_valid if valid else None, out=out, **short(**({"epochs": 3} | options)))
    return weights(model, guide), untimed(history.steps + history.epochs)


@pytest.mark.parametrize("name", EXACT)
def test_a_killed_run_resumes_exactly(tmp_path, monkeypatch, name):
    expected, records = run(EXACT[name](1), tmp_path / "whole")
    with monkeypatch.context() as patch:
        killed_in_second_epoch(patch)
        with pytest.raises(KeyboardInterrupt):
            run(EXACT[name](1), tmp_path / "killed")
    found, again = run(EXACT[name](1), tmp_path / "killed", resume=True, seed=5)
    assert again == records
    assert_same(found, expected)


def with_labels(change):
    examples = data()
    examples.tensors[1][change] = 2 - examples.tensors[1][change]
    return examples


def with_inputs(change):
    examples = data()
    examples.tensors[0][change] += 1e-6
    return examples


def plain(**options):
    return {"train": loader(**{"shuffle": True, "generator": seeded(1)} | options)}


def changed_model(change):
    return plain() | {"change": change}


CHANGED = {
    "batch size": (plain(batch_size=4), r"train\.batch_sampler\.batch_size: 3 → 4"),
    "drop_last": (plain(drop_last=True), r"train\.batch_sampler\.drop_last: False → True"),
    "order": (plain(shuffle=False), r"train\.sampler: 'RandomSampler' → 'SequentialSampler'"),
    "inputs": (plain(dataset=with_inputs(7)), r"train\.dataset\.tensors\.0: other content"),
    "labels": (plain(dataset=with_labels(6)), r"train\.dataset\.tensors\.1: other content"),
    "transform": (
        plain(collate_fn=lambda batch: (torch.zeros(3, 4, 3), torch.arange(3))),
        "train: inputs of the first",
    ),
    "generator": (plain(generator=None), r"train\.generator: 'Generator' → none"),
    "weights": (
        plain(shuffle=False, sampler=WeightedRandomSampler([1.0] * 8, 8, generator=seeded(0))),
        r"train\.sampler: 'RandomSampler' → 'WeightedRandomSampler'",
    ),
    "num_data": (changed_model(lambda model: setattr(model, "num_data", 9)), "num_data: 8 → 9"),
    "dropout": (
        changed_model(lambda model: setattr(model.network.dropout, "p", 0.5)),
        r"model\.network\.dropout\.p: 0\.0 → 0\.5",
    ),
    "module": (
        changed_model(lambda model: setattr(model.network, "dropout", torch.nn.Identity())),
        r"model\.network\.dropout: 'Dropout' → 'Identity'",
    ),
    "evaluation mode": (
        changed_model(lambda model: model.network.dropout.eval()),
        r"model\.network\.dropout\.training: none → False",
    ),
    "frozen": (
        changed_model(lambda model: model.network.embed.weight.requires_grad_(False)),
        r"model\.network\.embed\.weight\.requires_grad: none → False",
    ),
    "penalty": (
        changed_model(lambda model: setattr(model.network.attention, "eta", 0.7)),
        r"model\.network\.attention\.eta: 0\.1 → 0\.7",
    ),
    "validation": ({"valid": loader(with_labels(0))}, r"valid\.dataset\.tensors\.1: other content"),
}


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    attempt(folder, epochs=2, **plain())
    return folder


def attempt(folder, *, train=None, valid=None, change=lambda model: None, **options):
    model, guide, _, own_valid = build(seed=2)
    change(model)
    if model.num_data == 9:
        train.num_data = 9
    before = weights(model, guide)
    try:
        fit(model, guide, train or plain()["train"], valid or own_valid, out=folder, **short(**{"epochs": 2} | options))
    except CheckpointError:
        assert_same(weights(model, guide), before)
        raise


@pytest.mark.parametrize("name", CHANGED)
def test_what_would_be_another_run_is_refused_by_name(stopped_run, name):
    changes, message = CHANGED[name]
    with pytest.raises(CheckpointError, match=message):
        attempt(stopped_run, resume=True, **changes)


def test_the_same_objects_and_equal_ones_resume(stopped_run):
    attempt(stopped_run, resume=True)


def test_another_example_of_any_data_set_is_refused(tmp_path):
    def examples(labels):
        return [(torch.full((4, 3), float(number)), label) for number, label in enumerate(labels)]

    run(loader(examples([0, 1, 2] * 3)[:8]), tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match="train: labels of the first batch: other content"):
        run(loader(examples([0, 2, 1] * 3)[:8]), tmp_path, epochs=1, resume=True)


def test_a_module_that_counts_does_not_hinder_a_run_with_the_same_objects(tmp_path, monkeypatch):
    model, guide, train, valid = build()
    model.network.calls = 0
    model.network.register_forward_hook(lambda module, *_: setattr(module, "calls", module.calls + 1))
    with monkeypatch.context() as patch:
        killed_in_second_epoch(patch)
        with pytest.raises(KeyboardInterrupt):
            fit(model, guide, train, valid, out=tmp_path, **short())
    assert model.network.calls > 0
    assert len(fit(model, guide, train, valid, out=tmp_path, **short(resume=True)).epochs) == 4


class Stream(IterableDataset):
    def __len__(self):
        return 8

    def __iter__(self):
        return iter(data())


INEXACT = {
    "persistent workers": (lambda: loader(num_workers=1, persistent_workers=True), "train: persistent_workers=True"),
    "stream": (lambda: loader(Stream()), r"train: a stream of examples \(IterableDataset\)"),
    "generator of a closure": (
        lambda: loader(Augmented(normal(np.random.default_rng(0)))),
        "train: the first batch differs each time",
    ),
    "hidden generator": (lambda: loader(Augmented(system)), "train: the first batch differs each time"),
    "counter": (lambda: loader(sampler=Counting()), r"train: sampler\.passes changes"),
    "counter of a data set": (lambda: loader(Augmented(lambda: 0, changes=1)), r"train: dataset\.reads changes"),
    "SystemRandom": (
        lambda: loader(Augmented(random.SystemRandom().random)),
        r"train: dataset\.noise\S* \(random\.SystemRandom\)",
    ),
}


@pytest.mark.parametrize("name", INEXACT)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_what_cannot_be_promised_is_said_once_by_name(tmp_path, name):
    make, message = INEXACT[name]
    with pytest.warns(InexactResumeWarning, match=message) as caught:
        run(make(), tmp_path, epochs=1)
    (told,) = (each for each in caught if each.category is InexactResumeWarning)
    assert told.filename == __file__
    with warnings.catch_warnings(action="error", category=InexactResumeWarning):
        run(make(), None, epochs=1)  # without a folder there is nothing to resume
        run(make(), tmp_path, epochs=1, resume=True)  # the run has ended


def test_another_environment_is_said_by_name(tmp_path):
    run(plain()["train"], tmp_path, epochs=1)
    content = checkpoint.read(tmp_path / "last.pt")
    content["extra"]["epoch"] = 0
    content["extra"]["fingerprint"]["environment"] |= {"torch": "1.0", "threads": 64, "train.num_workers": 3}
    content["extra"]["fingerprint"]["batches"] = {}
    checkpoint.write(tmp_path / "last.pt", content)
    with pytest.warns(
        InexactResumeWarning, match=r"torch: '1\.0' → .*\n  threads: 64 → .*\n  train\.num_workers: 3 → 0"
    ):
        run(plain()["train"], tmp_path, epochs=1, resume=True)


def test_a_probe_leaves_counters_of_samplers():
    sampler = Counting()
    found = probe(loader(sampler=sampler))
    assert found.changing == {"sampler.passes"}
    assert sampler.passes == 0
    found = probe(loader(batch_size=1, batch_sampler=BatchSampler(sampler, 3, False)))
    assert found.changing == {"batch_sampler.sampler.passes"}
    assert sampler.passes == 0


def test_a_probe_leaves_all_random_states():
    train = EXACT["generator of a data set"](1)
    np.random.seed(1)
    random.seed(1)
    torch.manual_seed(1)
    expected = [list(train), np.random.rand(), random.random(), torch.rand(())]
    train = EXACT["generator of a data set"](1)
    np.random.seed(1)
    random.seed(1)
    torch.manual_seed(1)
    probe(train)
    found = [list(train), np.random.rand(), random.random(), torch.rand(())]
    assert repr(found) == repr(expected)
