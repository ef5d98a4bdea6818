"""A run that was stopped resumes exactly, and folders that cannot be resumed are refused and unchanged."""

import functools
import shutil

import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from small_fit import Regularised, assert_same, build, kill, lines, short, snapshot, untimed, weights

from probattn.inference import CheckpointError, fit
from probattn.inference.io import checkpoint

VARIANTS = {
    "plain": {},
    "no generator": {"generator": False},
    "dropout": {"dropout": 0.4},
    "auto": {"guide": AutoNormal},
    "auto multivariate": {"guide": AutoMultivariateNormal, "samples_per": "batch"},
    "without validation": {"valid": False},
    "clip": {"clip_norm": 0.05},
    "anneal": {"kl_anneal_epochs": 3, "warmup_epochs": 2.5, "kl_weight": 0.5},
    "guide rate": {"guide_lr": 0.2},
    "natural": {"guide_optimizer": "ngd", "clip_norm": 0.05, "kl_weight": 0.5},
    "alpha": {"alpha_start": 0.0, "alpha_end": 0.8, "schedule": "linear", "attention": Regularised},
    "num_particles": {"num_particles": 2, "elbo": "trace"},
    "patience": {"patience": 3, "monitor": "nll", "lr": 0.5, "epochs": 6},
    "all": {
        "dropout": 0.2,
        "guide": AutoNormal,
        "clip_norm": 0.5,
        "kl_anneal_epochs": 2,
        "num_particles": 2,
        "patience": 4,
        "monitor": "log_prob",
        "weight_decay": 0.01,
        "warmup_epochs": 1,
        "precision": "bf16-mixed",
    },
}


def flat(value):
    """Return tensors, dicts and lists in a form whose equality is that of every bit."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value


BUILDING = ("guide", "dropout", "generator", "valid", "attention")


def training_options(variant):
    return short(**{name: value for name, value in VARIANTS[variant].items() if name not in BUILDING})


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Train each variant without interruption, once: its folder, history and weights."""

    @functools.cache
    def trained(variant):
        folder = tmp_path_factory.mktemp("whole")
        model, guide, train, valid = build(**VARIANTS[variant])
        history = fit(model, guide, train, valid, out=folder, **training_options(variant))
        return folder, history, weights(model, guide)

    return trained


@pytest.mark.parametrize(
    ("variant", "epoch"),
    [
        pytest.param(name, epoch, marks=() if epoch == 2 or name in ("without validation", "all") else pytest.mark.slow)
        for name in VARIANTS
        for epoch in (1, 2, 4)
    ],
)
def test_a_killed_run_resumes_as_if_it_had_not_been(tmp_path, whole_run, variant, epoch):
    """Killed at the second batch of an epoch; what is built anew has other weights and other random states."""
    options = VARIANTS[variant]
    training = training_options(variant)
    folder, whole, expected = whole_run(variant)

    model, guide, train, valid = build(**options)
    train.at, train.callback = (epoch, 1), kill
    with pytest.raises(KeyboardInterrupt):
        fit(model, guide, train, valid, out=tmp_path / "killed", **training)

    model, guide, train, valid = build(seed=0 if epoch == 1 else 9, **options)
    with (tmp_path / "killed" / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "st')
    resumed = fit(model, guide, train, valid, out=tmp_path / "killed", **training | {"resume": True})

    assert_same(weights(model, guide), expected)
    assert untimed(resumed.steps) == untimed(whole.steps)
    assert untimed(resumed.epochs) == untimed(whole.epochs)
    assert (resumed.best_epoch, resumed.best_value) == (whole.best_epoch, whole.best_value)
    assert untimed(lines(tmp_path / "killed")) == untimed(lines(folder))
    for name in ("best.pt", "last.pt"):
        first, second = (checkpoint.read(run / name) for run in (folder, tmp_path / "killed"))
        for part in ("model", "guide"):
            assert_same(first[part], second[part])
        assert flat(first["extra"]) == flat(second["extra"])


def test_a_finished_run_is_not_trained_again(tmp_path):
    model, guide, train, valid = build()
    first = fit(model, guide, train, valid, out=tmp_path, **short())
    expected, before = weights(model, guide), (tmp_path / "last.pt").read_bytes()
    model, guide, train, valid = build(seed=3)
    second = fit(model, guide, train, valid, out=tmp_path, **short(resume=True))
    assert train.started == 0
    assert_same(weights(model, guide), expected)
    assert untimed(second.steps + second.epochs) == untimed(first.steps + first.epochs)
    assert (second.best_epoch, second.best_value) == (first.best_epoch, first.best_value)
    assert (tmp_path / "last.pt").read_bytes() == before


def test_resume_without_a_run_starts_one(tmp_path):
    model, guide, train, _ = build()
    history = fit(model, guide, train, out=tmp_path / "a" / "b", **short(resume=True, epochs=1))
    assert (tmp_path / "a" / "b" / "last.pt").exists()
    assert len(history.epochs) == 1


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    model, guide, train, valid = build()
    fit(model, guide, train, valid, out=folder, **short(epochs=1))
    return folder


@pytest.fixture
def run(tmp_path, finished_run):
    """A copy of the folder of a finished run of one epoch."""
    return shutil.copytree(finished_run, tmp_path / "run")


def refused(run, error, match, *, built=None, resume=True, **options):
    """fit must raise, with every file and every weight as before."""
    files = snapshot(run)
    model, guide, train, valid = built or build(seed=5)
    before = weights(model, guide)
    with pytest.raises(error, match=match) as caught:
        fit(model, guide, train, valid, out=run, **short(**{"epochs": 1, "resume": resume} | options))
    assert snapshot(run) == files
    assert_same(weights(model, guide), before)
    return str(caught.value)


def test_a_folder_with_a_run_is_not_overwritten(run):
    refused(run, FileExistsError, "resume=True", resume=False)


def test_resuming_with_other_options_names_them(run):
    refused(run, CheckpointError, r"other options.*lr: 0\.02 → 0\.5", lr=0.5, epochs=7, clip_norm=1.0)
    model, guide, train, valid = build(num_data=6)
    train.num_data = 6
    refused(run, CheckpointError, "num_data: 8 → 6", built=(model, guide, train, valid))


def test_resuming_with_another_optimiser_is_refused(run):
    model, guide, train, valid = build()
    with pytest.raises(CheckpointError, match="SGD"):
        fit(model, guide, train, valid, out=run, optimizer=torch.optim.SGD, **short(epochs=1, resume=True))


def test_resuming_another_architecture_names_its_differences(run):
    message = refused(run, CheckpointError, "another architecture", built=build(width=6))
    assert "network.embed.weight (4, 3), here (6, 3)" in message
    refused(run, CheckpointError, "network.attention.u.raw_scale missing", built=build(guide="diagonal"))


def test_resuming_with_a_loader_that_cannot_be_put_back_is_refused(run):
    with pytest.raises(CheckpointError, match="another run"):
        fit(*build(generator=False), out=run, **short(resume=True, epochs=1))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_half_written_last_checkpoint_is_refused(run, share):
    whole = (run / "last.pt").read_bytes()
    (run / "last.pt").write_bytes(whole[: int(share * len(whole))])
    refused(run, CheckpointError, r"last\.pt is damaged")


def test_weights_alone_are_no_run_to_go_on_with(run):
    (run / "last.pt").write_bytes((run / "best.pt").read_bytes())
    refused(run, CheckpointError, "options")


def test_a_last_checkpoint_of_random_bytes_is_refused(run):
    (run / "last.pt").write_bytes(bytes(torch.randint(256, (5000,), dtype=torch.uint8).tolist()))
    refused(run, CheckpointError, r"last\.pt is damaged")


@pytest.mark.parametrize("left", ["last.pt", "best.pt"])
def test_what_is_left_of_a_run_is_not_overwritten(run, left):
    for name in {"last.pt", "best.pt", "log.jsonl"} - {left}:
        (run / name).unlink()
    refused(run, FileExistsError, "holds a run", resume=False)
