"""`probattn train --seeds`: ordinary runs in folders of their own, whether trained together or not."""

import json

import pytest
import torch

from probattn.experiments import presets, runs, seeds
from probattn.experiments.settings import SettingsError, from_dict
from probattn.inference import NonFiniteError
from probattn.inference.checkpoint import read
from probattn.inference.logs import read_log
from probattn.inference.members_step import MembersStep

KEP, CGP = "digits/kep-svgp", "digits/cgp"
TINY = [
    "train.epochs=2",
    "train.warmup_epochs=0",
    "train.num_draws=2",
    "data.limit=120",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
]


def assignments(changes):
    return [part for change in changes for part in ("--set", change)]


def weights(folder):
    content = read(folder / "last.pt")
    return {f"{part}.{name}": value for part in ("model", "guide") for name, value in content[part].items()}


def test_seeds_are_ordinary_runs(command, tmp_path, together):
    code, text, _ = command("train", KEP, "--seeds", 2, "--out", tmp_path / "sweep", *assignments(TINY))
    assert code == 0
    assert together == [2] * 4
    folders = [tmp_path / "sweep" / f"seed-{seed}" for seed in range(2)]
    values = []
    for seed, folder in enumerate(folders):
        files = {path.name for path in folder.iterdir()} - {".lock"}
        assert files == {"settings.json", "last.pt", "best.pt", "log.jsonl", "tensorboard"}
        saved = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        assert saved["name"] == KEP
        assert from_dict(saved["settings"]) == presets.preset(KEP).with_changes([*TINY, f"train.seed={seed}"])
        epochs = [record for record in read_log(folder / "log.jsonl") if record["kind"] == "epoch"]
        best = max(epochs, key=lambda record: record["valid/accuracy"])
        values.append(best["valid/accuracy"])
        assert f"seed {seed}: best epoch {best['epoch']} of 2, valid accuracy {values[-1]:.4f}\n" in text
    mean, sd = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    assert f"\nvalid accuracy {mean:.4f} ± {sd:.4f} over 2 seeds\nnext: " in text
    alone = [*TINY, "train.seed=1"]
    code, text, _ = command("train", KEP, "--out", folders[1], "--resume", *assignments(alone))
    assert code == 0
    assert "finished already" in text


def test_seeds_start_as_each_alone_and_see_its_batches(tmp_path, monkeypatch):
    settings = presets.preset(KEP).with_changes(TINY)
    begun = []
    monkeypatch.setattr(seeds, "fit_members", lambda members, **options: begun.append(members))
    seeds.train_seeds(settings, tmp_path / "sweep", seeds=2, name=KEP)
    monkeypatch.setattr(runs, "fit", lambda *parts, **options: begun.append(parts))
    for seed in range(2):
        each = presets.preset(KEP).with_changes([*TINY, f"train.seed={seed}"])
        runs.train(each, tmp_path / str(seed), name=KEP)
    members, *alone = begun
    for member, (model, guide, train, valid) in zip(members, alone, strict=True):
        for mine, other in ((member.model, model), (member.guide, guide)):
            own = other.state_dict()
            assert all(torch.equal(value, own[name]) for name, value in mine.state_dict().items())
        for batches in ((member.train, train), (member.valid, valid)):
            for first, second in zip(*batches, strict=True):
                assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_wide_networks_on_a_cpu_are_trained_one_after_another_as_alone(tmp_path, together, monkeypatch):
    monkeypatch.setattr(seeds, "WIDEST", 8)
    settings, said = presets.preset(KEP).with_changes([*TINY, "train.epochs=1", "train.accelerator=cpu"]), []
    seeds.train_seeds(settings, tmp_path / "sweep", seeds=2, name=KEP, progress=False, say=said.append)
    assert together == []
    assert said == ["seed 0", "seed 1"]
    each = settings.with_changes(["train.seed=1"])
    runs.train(each, tmp_path / "alone", name=KEP, progress=False)
    alone = weights(tmp_path / "alone")
    assert all(torch.equal(value, alone[name]) for name, value in weights(tmp_path / "sweep" / "seed-1").items())


@pytest.mark.parametrize("step", [2, 5, 7])
def test_a_sweep_with_warm_starts_that_was_stopped_goes_on_exactly(tmp_path, monkeypatch, step):
    """Steps 1 to 4 are the warm starts', and 5 to 8 the runs' proper; two an epoch."""
    settings = presets.preset(CGP).with_changes([*TINY, "warm_start.epochs=2", "network.dropout=0.2"])

    def sweep(out, **options):
        return seeds.train_seeds(settings, out, seeds=2, name=CGP, progress=False, **options)

    whole = sweep(tmp_path / "whole")
    steps, original = [], MembersStep.__call__

    def stopping(self, *arguments):
        steps.append(len(self.trainers))
        if len(steps) == step:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(MembersStep, "__call__", stopping)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "stopped")
    with pytest.raises(FileExistsError, match="--resume"):
        sweep(tmp_path / "stopped")
    said = []
    histories = sweep(tmp_path / "stopped", resume=True, say=said.append)
    assert set(steps) == {2}
    assert any("warm start" in line for line in said) == (step <= 6)
    for seed in range(2):
        first, second = (tmp_path / name / f"seed-{seed}" for name in ("whole", "stopped"))
        for folder in ("", "warm-start"):
            before, after = weights(first / folder), weights(second / folder)
            assert all(torch.equal(value, after[name]) for name, value in before.items())
        assert (first / "warm-start.json").read_bytes() == (second / "warm-start.json").read_bytes()
        best = [(history.best_epoch, history.best_value) for history in (whole[seed], histories[seed])]
        assert best[0] == best[1]


def test_the_seed_that_fails_is_named(tmp_path):
    settings = presets.preset(KEP).with_changes([*TINY, "train.lr=1e30", "train.min_lr=1e30"])
    with pytest.raises(NonFiniteError, match=r"^member 0 \(seed 0\): epoch 1, batch 1: "):
        seeds.train_seeds(settings, tmp_path, seeds=2, name=KEP, progress=False)


def test_the_seed_is_not_for_the_user_to_set(command, tmp_path):
    code, _, err = command("train", KEP, "--seeds", 2, "--set", "train.seed=3", "--out", tmp_path / "sweep")
    assert code == 1
    assert err == "error: the seeds are 0, 1, …: give --seeds N in place of train.seed\n"
    assert not list(tmp_path.iterdir())


def test_one_seed_is_a_sweep_too():
    one = [type("History", (), {"best_epoch": 1, "best_value": 0.5, "epochs": [1, 2]})]
    settings = presets.preset(KEP)
    assert seeds.summary(one, settings) == "seed 0: best epoch 1 of 2, valid accuracy 0.5000"
    one[0].best_value = None
    with pytest.raises(SettingsError, match="no epoch had a valid accuracy"):
        seeds.summary(one, settings)
