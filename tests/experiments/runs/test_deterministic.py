"""Two runs of the same settings are equal bit for bit, on two threads."""

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.runs import train
from probattn.inference.io.checkpoint import read
from probattn.inference.training.run_log import read_log

CHANGES = [
    "train.deterministic=true",
    "train.epochs=2",
    "train.warmup_epochs=0",
    "train.log_every=1",
    "train.num_samples=2",
    "data.limit=40",
    "data.batch_size=20",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
    "network.dropout=0.1",
]


QUICK = ("digits/kep-svgp", "digits/sparse-cgp")


@pytest.fixture(autouse=True)
def _two_threads(threads):
    threads(2)


def flat(value):
    """In a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return [(key, flat(each)) for key, each in value.items()]
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value


def trained(preset, out, seed=0):
    """Return the checkpoints and the log of a run, times apart."""
    settings = presets.preset(preset)
    start = [] if settings.warm_start is None else ["warm_start.epochs=1"]
    changes = [*CHANGES, *start, f"train.seed={seed}"]
    train.train(settings.with_changes(changes), out, name=preset, progress=False)
    records = [{**record, "seconds": 0} for record in read_log(out / "log.jsonl")]
    return repr((flat([read(out / name) for name in ("last.pt", "best.pt")]), records))


SLOW = [name for name in presets.PRESETS if name.startswith("digits/") and name not in QUICK]


@pytest.mark.parametrize("preset", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_two_runs_are_equal_bit_for_bit(tmp_path, preset):
    first, second = (trained(preset, tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert trained(preset, tmp_path / "other", seed=1) != first
