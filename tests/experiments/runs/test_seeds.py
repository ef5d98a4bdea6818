"""`probattn train --seeds`: one run per seed, each in a folder of its own."""

import json

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.runs import seeds
from probattn.experiments.runs import train as runs
from probattn.inference.io.checkpoint import read
from probattn.inference.training import trainer
from probattn.inference.training.run_log import read_log

KEP, CGP = "digits/kep-svgp", "digits/cgp"
TINY = [
    "train.epochs=2",
    "train.warmup_epochs=0",
    "train.num_samples=2",
    "data.limit=120",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
]


def weights(folder):
    content = read(folder / "last.pt")
    return {f"{part}.{name}": value for part in ("model", "guide") for name, value in content[part].items()}


def test_seeds_are_ordinary_runs(command, tmp_path, assignments):
    code, text, _ = command("train", KEP, "--seeds", 2, "--out", tmp_path / "sweep", *assignments(TINY))
    assert code == 0
    folders = [tmp_path / "sweep" / f"seed-{seed}" for seed in range(2)]
    values = []
    for seed, folder in enumerate(folders):
        files = {path.name for path in folder.iterdir()} - {".lock"}
        assert files == {"settings.json", "preprocessing.json", "last.pt", "best.pt", "log.jsonl"}
        saved = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        assert saved["name"] == KEP
        assert Settings.from_dict(saved["settings"]) == presets.preset(KEP).with_changes([*TINY, f"train.seed={seed}"])
        epochs = [record for record in read_log(folder / "log.jsonl") if record["kind"] == "epoch"]
        best = min(epochs, key=lambda record: record["valid/nll"])
        values.append(best["valid/nll"])
        assert f"seed-{seed}, {seed + 1} of 2: best epoch {best['epoch']} of 2, valid nll {values[-1]:.4f}\n" in text
    alone = [*TINY, "train.seed=1"]
    code, text, _ = command("train", KEP, "--out", folders[1], "--resume", *assignments(alone))
    assert code == 0
    assert "finished already" in text


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_seed_is_trained_as_the_run_alone(tmp_path, workers):
    settings, said = presets.preset(CGP).with_changes([*TINY, "warm_start.epochs=1"]), []
    histories = seeds.train_seeds(settings, tmp_path / "sweep", seeds=2, name=CGP, workers=workers, say=said.append)
    for seed, history in enumerate(histories):
        alone = tmp_path / f"alone-{seed}"
        own = runs.train(settings.with_changes([f"train.seed={seed}"]), alone, name=CGP, progress=False)
        assert (own.best_epoch, own.best_value) == (history.best_epoch, history.best_value)
        for folder in ("", "warm-start"):
            expected = weights(alone / folder)
            found = weights(tmp_path / "sweep" / f"seed-{seed}" / folder)
            assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert sum("seed" in line for line in said) == 2


def test_a_sweep_that_was_stopped_goes_on_exactly(tmp_path, monkeypatch):
    settings = presets.preset(KEP).with_changes([*TINY, "network.dropout=0.2"])
    seeds.train_seeds(settings, tmp_path / "whole", seeds=2, name=KEP)
    steps, train_step = [], trainer.train_step

    def stopping(*arguments, **options):
        steps.append(arguments)
        if len(steps) == 7:  # in the second epoch of seed 1; an epoch has two steps
            raise KeyboardInterrupt
        return train_step(*arguments, **options)

    monkeypatch.setattr(trainer, "train_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        seeds.train_seeds(settings, tmp_path / "stopped", seeds=2, name=KEP)
    with pytest.raises(FileExistsError, match="--resume"):
        seeds.train_seeds(settings, tmp_path / "stopped", seeds=2, name=KEP)
    seeds.train_seeds(settings, tmp_path / "stopped", seeds=2, name=KEP, resume=True)
    for seed in range(2):
        before, after = (weights(tmp_path / name / f"seed-{seed}") for name in ("whole", "stopped"))
        assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_seed_is_not_for_the_user_to_set(command, tmp_path):
    code, _, err = command("train", KEP, "--seeds", 2, "--set", "train.seed=3", "--out", tmp_path / "sweep")
    assert code == 1
    assert err == "error: the seeds are 0, 1, …: use --seeds N in place of train.seed\n"
    assert not list(tmp_path.iterdir())
