"""A run that was stopped resumes exactly, and folders that cannot be resumed are refused and
unchanged."""

import random
import shutil

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from small_fit import (
    Killed,
    Regularised,
    assert_same,
    build,
    data,
    flat,
    kill,
    lines,
    short,
    snapshot,
    untimed,
    weights,
)
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from probattn.inference import CheckpointError, fit
from probattn.inference.io import checkpoint

VARIANTS = {
    "plain, random order": {"generator": False},
    "without validation": {"valid": False},
    "natural": {"guide_optimizer": "ngd", "clip_norm": 0.05, "kl_weight": 0.5},
    "regulariser": {
        "alpha_start": 0.0,
        "alpha_end": 0.8,
        "schedule": "linear",
        "attention": Regularised,
    },
    "auto multivariate": {"guide": AutoMultivariateNormal, "samples_per": "batch", "guide_lr": 0.2},
    "all": {
        "dropout": 0.2,
        "guide": AutoNormal,
        "clip_norm": 0.5,
        "kl_anneal_epochs": 2,
        "num_particles": 2,
    }
    | {
        "elbo": "trace",
        "patience": 4,
        "monitor": "log_prob",
        "weight_decay": 0.01,
        "lr_scale": {"*.bias": 0.1},
    }
    | {"warmup_epochs": 1.5, "precision": "bf16-mixed"},
}
BUILDING = ("guide", "dropout", "generator", "valid", "attention")


def sgd(groups):
    return torch.optim.SGD(groups, momentum=0.9)


def halving(optimizer):
    return ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    ("variant", "epoch", "factories"),
    [
        *((name, 2, {}) for name in VARIANTS),
        ("all", 1, {}),
        ("plain, random order", 2, {"optimizer": sgd, "scheduler": halving}),
    ],
)
def test_a_killed_run_resumes_as_if_it_had_not_been(tmp_path, variant, epoch, factories):
    """Killed at the second batch of an epoch; what is built anew has other weights and other random
    states."""
    options = VARIANTS[variant]
    training = short(
        **{"epochs": 3} | {name: value for name, value in options.items() if name not in BUILDING}
    )
    model, guide, train, valid = build(**options)
    first = training | {"resume": True}  # starts a run where there is none
    expected = fit(model, guide, train, valid, out=tmp_path / "whole", **first, **factories)
    end = weights(model, guide)

    model, guide, train, valid = build(**options)
    train.at, train.callback = (epoch, 1), kill
    with pytest.raises(KeyboardInterrupt):
        fit(model, guide, train, valid, out=tmp_path / "killed", **training, **factories)

    model, guide, train, valid = build(seed=0 if epoch == 1 else 9, **options)
    with (tmp_path / "killed" / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "st')
    resumed = fit(
        model,
        guide,
        train,
        valid,
        out=tmp_path / "killed",
        **training | {"resume": True},
        **factories,
    )

    assert_same(weights(model, guide), end)
    assert untimed(resumed.steps + resumed.epochs) == untimed(expected.steps + expected.epochs)
    assert (resumed.best_epoch, resumed.best_value) == (expected.best_epoch, expected.best_value)
    assert untimed(lines(tmp_path / "killed")) == untimed(lines(tmp_path / "whole"))
    for name in ("best.pt", "last.pt"):
        one, other = (checkpoint.read(tmp_path / run / name) for run in ("whole", "killed"))
        assert flat(one) == flat(other)


class Augmented(Dataset):
    """Examples with noise that a function returns, which may have a generator beside it."""

    def __init__(self, noise, generator=None):
        self.noise, self.generator, self.examples = noise, generator, data()

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        x, y = self.examples[index]
        return x + 0.3 * float(self.noise()), y


class Order:
    """Sampler in an order by a generator of NumPy."""

    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 8

    def __iter__(self):
        return iter(self.generator.permutation(8).tolist())


def loader(dataset=None, **options):
    return DataLoader(data() if dataset is None else dataset, **{"batch_size": 3} | options)


def global_generators(seed):
    np.random.seed(seed)
    random.seed(seed)
    return loader(Augmented(lambda: np.random.normal() + random.gauss(0, 1)))


def generators_of_the_users(seed):
    numpy, python = np.random.Generator(np.random.SFC64(seed)), random.Random(seed)
    examples = Augmented(lambda: python.gauss(0, 1), python)
    return loader(examples, batch_sampler=BatchSampler(Order(numpy), 3, False), batch_size=1)


LOADERS = {
    "sampler": lambda seed: loader(
        sampler=RandomSampler(data(), generator=torch.Generator().manual_seed(seed))
    ),
    "NumPy and Python, global": global_generators,
    "NumPy in a batch sampler, Python in a data set": generators_of_the_users,
    "two workers": lambda seed: loader(
        Augmented(lambda: torch.randn(())), num_workers=2, shuffle=True
    ),
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_runs_with_loaders_of_a_user_resume_exactly(tmp_path, name):
    def run(folder, seed=0, callbacks=(), **options):
        model, guide, _, _ = build(seed=seed)
        training = short(epochs=2, **options)
        history = fit(
            model, guide, LOADERS[name](1), out=tmp_path / folder, callbacks=callbacks, **training
        )
        return weights(model, guide), untimed(history.steps)

    expected, records = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("killed", callbacks=[Killed(after=1)])
    resumed, again = run("killed", seed=5, callbacks=[Killed(after=None)], resume=True)
    assert again == records
    assert_same(resumed, expected)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    model, guide, train, valid = build()
    history = fit(model, guide, train, valid, out=folder, **short(epochs=1))
    return folder, history, weights(model, guide)


@pytest.fixture
def run(tmp_path, finished_run):
    """A copy of the folder of a finished run of one epoch."""
    return shutil.copytree(finished_run[0], tmp_path / "run")


def test_a_finished_run_is_not_trained_again(run, finished_run):
    _, history, end = finished_run
    files = snapshot(run)
    model, guide, train, valid = build(seed=3)
    again = fit(model, guide, train, valid, out=run, **short(epochs=1, resume=True))
    assert train.started == 0
    assert_same(weights(model, guide), end)
    assert untimed(again.steps + again.epochs) == untimed(history.steps + history.epochs)
    assert snapshot(run) == files


def refused(run, error, match, *, built=None, resume=True, options=()):
    """Check that fit raises an error, with every file and every weight as before."""
    files = snapshot(run)
    model, guide, train, valid = built or build(seed=5)
    before = weights(model, guide)
    with pytest.raises(error, match=match):
        fit(
            model,
            guide,
            train,
            valid,
            out=run,
            **short(**{"epochs": 1, "resume": resume} | dict(options)),
        )
    assert snapshot(run) == files
    assert_same(weights(model, guide), before)


@pytest.mark.parametrize("left", [("last.pt",), ("best.pt",), ("last.pt", "best.pt", "log.jsonl")])
def test_what_is_left_of_a_run_is_not_overwritten(run, left):
    for name in {"last.pt", "best.pt", "log.jsonl"} - set(left):
        (run / name).unlink()
    refused(run, FileExistsError, "resume=True", resume=False)


def test_resuming_another_run_is_refused_with_what_differs(run):
    refused(
        run,
        CheckpointError,
        r"lr: 0\.02 → 0\.5",
        options={"lr": 0.5, "epochs": 7, "clip_norm": 1.0},
    )
    refused(run, CheckpointError, "lr_scale", options={"lr_scale": {"*": 0.1}})
    model, guide, train, valid = build(num_data=6)
    train.num_data = 6
    refused(run, CheckpointError, "num_data: 8 → 6", built=(model, guide, train, valid))
    refused(run, CheckpointError, r"embed.weight \(4, 3\), here \(6, 3\)", built=build(width=6))
    refused(run, CheckpointError, "raw_scale missing", built=build(guide="diagonal"))
    for factories, name in (({"optimizer": sgd}, "SGD"), ({"scheduler": halving}, "ExponentialLR")):
        with pytest.raises(CheckpointError, match=name):
            fit(*build(), out=run, **short(epochs=1, resume=True), **factories)
    with pytest.raises(CheckpointError, match="another run"):
        fit(*build(generator=False), out=run, **short(resume=True, epochs=1))


@pytest.mark.parametrize("share", [0.0, 0.7, None])
def test_a_half_written_or_foreign_last_checkpoint_is_refused(run, share):
    complete, noise = (run / "last.pt").read_bytes(), torch.randint(256, (5000,)).tolist()
    (run / "last.pt").write_bytes(
        bytes(noise) if share is None else complete[: int(share * len(complete))]
    )
    refused(run, CheckpointError, r"last\.pt is missing or damaged")


def test_weights_alone_are_no_run_to_go_on_with(run):
    (run / "last.pt").write_bytes((run / "best.pt").read_bytes())
    refused(run, CheckpointError, "options")
