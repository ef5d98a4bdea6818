"""Options out of bounds are named, and a run goes on with more epochs and patience alone."""

import dataclasses
import math

import pytest

from probattn.inference import TrainOptions


@pytest.mark.parametrize(
    "options",
    [
        {
            "epochs": 0,
            "min_lr": 1.0,
            "weight_decay": -0.1,
            "accumulate_grad_batches": 0,
            "clip_norm": 0.0,
        },
        {
            "lr": -1.0,
            "warmup_epochs": 10,
            "num_particles": 0,
            "kl_weight": -1.0,
            "local_kl_weight": -0.5,
        },
        {
            "lr": math.nan,
            "elbo": "renyi",
            "alpha_end": math.inf,
            "monitor": "acurracy",
            "patience": 0,
        },
        {"precision": "16"},
    ],
)
def test_options_out_of_bounds_are_named_with_their_values(options):
    with pytest.raises(ValueError, match="out of bounds") as error:
        TrainOptions(**options)
    assert all(f"{name}={value!r}" in str(error.value) for name, value in options.items())


def test_a_run_goes_on_with_more_epochs_and_patience_alone():
    saved = TrainOptions(epochs=5, patience=3, lr_scale={"a": 0.5})
    for free in ({"epochs": 6}, {"patience": 4}, {"patience": None}, {"epochs": 7, "patience": 8}):
        assert dataclasses.replace(saved, **free).continues(saved)
    for other in (
        {"lr": 0.5},
        {"seed": None},
        {"epochs": 6, "schedule": "linear"},
        {"epochs": 4},
        {"patience": 2},
    ):
        assert not dataclasses.replace(saved, **other).continues(saved)
