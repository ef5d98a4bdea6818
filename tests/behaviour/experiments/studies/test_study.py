"""Studies on any data: what is planned, what is checked first, and a whole one."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from probattn.experiments.config import presets
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.evaluation import methods
from probattn.experiments.studies import compare, study

SMALL = (
    "network.dim=8",
    "network.depth=1",
    "network.heads=2",
    "network.mlp_dim=8",
    "train.num_samples=2",
)


class Mean(nn.Module):
    """Attention that averages the tokens, `sharp` times, or fails."""

    def __init__(self, dim: int, heads: int, sharp: float = 1.0, broken: bool = False) -> None:
        super().__init__()
        self.value, self.sharp, self.broken = nn.Linear(dim, dim), sharp, broken

    def forward(self, x, mask=None):
        if self.broken:
            return x @ torch.ones(3, 3)
        values = self.sharp * self.value(x)
        values = values if mask is None else values * mask.unsqueeze(-1)
        return values.mean(-2, keepdim=True).expand_as(values)


OWN = f"{__name__}:Mean"


def plan(tmp_path, *names, **options):
    return study.plan(names, **({"seeds": 1, "epochs": 3, "out": tmp_path / "out"} | options))


@pytest.fixture
def data(tmp_path):
    """A file of reviews and a table of numbers."""
    rng = np.random.default_rng(0)
    texts = [
        (f"{'good' if n % 2 else 'bad'} film, number {n}", ("neg", "pos")[n % 2]) for n in range(40)
    ]
    for name, rows in (
        ("reviews", [("text", "label"), *texts]),
        ("numbers", [("a", "b", "y"), *rng.normal(size=(60, 3)).tolist()]),
    ):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return tmp_path


def test_jobs_are_all_layers_of_a_seed_before_the_next(tmp_path):
    jobs = plan(tmp_path, "digits/softmax", "digits/cgp", seeds=2, epochs=7)
    assert [
        (job.name, job.settings.train.seed, job.folder.relative_to(tmp_path / "out"))
        for job in jobs
    ] == [
        (name, seed, Path(name) / f"seed-{seed}")
        for seed in (0, 1)
        for name in ("digits/softmax", "digits/cgp")
    ]
    assert {job.settings.epochs for job in jobs} == {7}


def test_layers_are_presets_of_the_family_or_replace_the_presets_own(tmp_path):
    jobs = plan(tmp_path, "digits/softmax", layers=("softmax", "cgp", OWN), epochs=None)
    assert [(job.name, job.settings.layer.name) for job in jobs] == [
        ("digits/softmax", "softmax"),
        ("digits/cgp", "cgp"),
        ("digits/softmax", OWN),
    ]
    assert jobs[1].settings == presets.preset("digits/cgp").with_changes(["train.seed=0"])
    assert jobs[2].folder == tmp_path / "out" / "digits/softmax" / OWN.replace(":", ".") / "seed-0"
    sharp, plain = plan(
        tmp_path, "digits/softmax", layers=(OWN, "softmax"), changes=["layer.sharp=2"]
    )
    assert sharp.settings.layer.sharp == 2
    assert plain.settings.layer == presets.preset("digits/softmax").layer


@pytest.mark.parametrize(
    ("options", "check", "error", "words"),
    [
        ({"changes": ["network.dropout=0"]}, {"by": ("mc-dropout",)}, SettingsError, "dropout"),
        (
            {"layers": ("softmax", OWN), "changes": ["layer.broken=true"]},
            {},
            RuntimeError,
            "cannot be multiplied",
        ),
        ({"changes": ["train.seed=7"]}, {}, SettingsError, "--seeds"),
        ({"layers": ("softmax",), "changes": ["layer.rank=7"]}, {}, SettingsError, "layer.rank"),
    ],
)
def test_everything_is_checked_before_the_first_training(
    tmp_path, monkeypatch, options, check, error, words
):
    monkeypatch.setattr(study, "run_job", lambda *arguments, **options: pytest.fail("trained"))
    with pytest.raises(error, match=words):
        study.run_study(
            study.check(plan(tmp_path, "digits/softmax", **options), **check), workers=1
        )
    assert not (tmp_path / "out").exists()


def own_images(seed: int = 0):
    """Return noise in four classes, divided by a seed."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.arange(120 * 16, dtype=torch.uint8).reshape(120, 1, 4, 4)
    labels = torch.arange(120) % 4
    order = torch.randperm(120, generator=generator).split([60, 30, 30])
    return tuple("abcd"), *(Images(pixels[part], labels[part]) for part in order)


def undivided():
    return own_images()


def test_new_splits_divide_the_data_of_each_seed_and_pair_them(tmp_path):
    changes = [*SMALL, "network.patch_size=2", f"data.name={__name__}:own_images"]
    options = {"seeds": 2, "epochs": 2, "new_splits": True, "layers": ("softmax", OWN)}
    jobs = plan(tmp_path, "digits/softmax", changes=changes, **options)
    assert [(job.settings.data.seed, job.settings.train.seed) for job in jobs] == [
        (0, 0),
        (0, 0),
        (1, 1),
        (1, 1),
    ]
    study.run_study(study.check(jobs, by=(), ood=(), shift=False), workers=1)
    names = [OWN, f"{__name__}:own_images"]
    results = compare.read([tmp_path / "out"], trust_code=names)
    parts = results.examples.groupby(["run", "seed"])["example"].agg(frozenset)
    assert parts.loc[:, 0].nunique() == parts.loc[:, 1].nunique() == 1
    assert parts.iloc[0] != parts.iloc[1]
    table = results.comparisons["Test data"]
    assert table.cells[f"digits/softmax {OWN}"]["nll"].has_interval
    assert not any("ensemble" in row for row in table.rows)  # of other test data


def test_new_splits_need_a_function_with_a_seed(tmp_path):
    changes = [*SMALL, f"data.name={__name__}:undivided"]
    with pytest.raises(SettingsError, match="seed"):
        plan(tmp_path, "digits/softmax", changes=changes, new_splits=True)


def test_methods_and_test_sets_follow_from_the_task(data):
    def options(*names, by=("all",), **changes):
        (job,) = study.check(plan(data, *names, **changes), by=by)
        return tuple(job.options[name] for name in ("by", "shift", "ood"))

    table = {
        "data": data / "numbers.csv",
        "changes": ["data.label_column=y", "data.task=regression", *SMALL],
    }
    assert options("tabular/csv", layers=("softmax",), **table) == ((), False, ())
    images = options("digits/softmax", changes=SMALL)
    assert images == (tuple(methods.METHODS)[1:], False, ())
    assert options("digits/softmax", changes=SMALL, by=None) == (("temperature",), False, ())
    assert options("tabular/csv", layers=("softmax",), by=None, **table) == ((), False, ())
    without = options(
        "text/csv", layers=(OWN,), data=data / "reviews.csv", changes=[*SMALL, "network.dropout=0"]
    )
    assert without == (
        ("temperature", "bias", "vector", "isotonic", "laplace", "sv-dkl", "anchored"),
        False,
        (),
    )
