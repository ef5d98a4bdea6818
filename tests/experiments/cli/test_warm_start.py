"""`probattn train` with a warm start: two phases, resumed in either."""

import itertools
import json
import shutil

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.runs import train
from probattn.inference.training import trainer
from probattn.inference.training.run_log import read_log

KEP, CGP = "digits/kep-svgp", "digits/cgp"
WARM = ["warm_start.epochs=2", "train.num_samples=2", "data.limit=64", "data.batch_size=16"]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory, tiny):
    """The folder of a finished tiny run of two phases of two epochs, four steps each, and what it said."""
    folder, said = tmp_path_factory.mktemp("warmed") / "run", []
    train.train(presets.preset(CGP).with_changes([*tiny, *WARM]), folder, name=CGP, progress=False, say=said.append)
    return folder, "\n".join(said)


def records(folder):
    return [{key: record[key] for key in record if key != "seconds"} for record in read_log(folder / "log.jsonl")]


def assert_same_checkpoint(one, other):
    one, other = (torch.load(path) for path in (one, other))
    assert one["model"].keys() == other["model"].keys()
    assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())
    assert {key: one["extra"][key] for key in ("epoch",)} == {key: other["extra"][key] for key in ("epoch",)}


def test_train_with_a_warm_start_says_what_was_carried_over(command, tmp_path, assignments, tiny):
    out = tmp_path / "run"
    code, text, err = command("train", CGP, "--out", out, *assignments([*tiny, *WARM]))
    assert code == 0
    assert {path.name for path in out.iterdir()} == {
        ".lock",
        "settings.json",
        "preprocessing.json",
        "last.pt",
        "best.pt",
        "log.jsonl",
        "warm-start",
        "warm-start.json",
    }
    lines = text.splitlines()
    assert lines[0] == "warm start: kernel attention, 2 epochs"
    assert "cgp attention, 2 epochs" in lines
    assert lines[-1].startswith("best epoch ")
    assert "epoch 2/2" in err
    report = json.loads((out / "warm-start.json").read_text(encoding="utf-8"))
    assert f"{len(report['carried'])} weights carried over, {len(report['fresh'])} fresh: see warm-start.json" in lines
    assert "network.blocks.1.attention.query_key_value.weight" in report["carried"]
    assert "network.blocks.1.attention.latent.weight" in report["fresh"]
    assert report["unused"] == []
    assert [len(records(folder)) for folder in (out / "warm-start", out)] == [10, 10]  # 8 steps and 2 epochs each


def test_the_run_starts_from_the_best_weights_of_the_warm_start(warmed, monkeypatch, tmp_path, tiny):
    starts = []
    monkeypatch.setattr(train, "fit", lambda model, guide, *arguments, **options: starts.append((model, options)))
    folder = shutil.copytree(warmed[0], tmp_path / "run")
    for name in ("last.pt", "best.pt", "log.jsonl", "warm-start.json"):
        (folder / name).unlink()
    train.train(presets.preset(CGP).with_changes([*tiny, *WARM]), folder, name=CGP, resume=True)
    (first, phase), (model, options) = starts
    assert (phase["out"], phase["options"].epochs, phase["resume"]) == (folder / "warm-start", 2, True)
    assert (options["out"], options["options"].epochs, options["options"].alpha_start) == (folder, 2, 0.0)
    assert type(first.network.blocks[0].attention).__name__ == "KernelAttention"
    best = torch.load(folder / "warm-start" / "best.pt")["model"]
    report = json.loads((folder / "warm-start.json").read_text(encoding="utf-8"))
    assert (folder / "warm-start.json").read_bytes() == (warmed[0] / "warm-start.json").read_bytes()
    weights = model.state_dict()
    assert set(report["carried"]) == set(best)
    assert [name for name in best if not torch.equal(best[name], weights[name])] == []


@pytest.mark.parametrize("step", [2, 6, 9, 11, 14])
def test_a_run_killed_in_either_phase_goes_on_as_if_it_had_not_been(
    command, monkeypatch, tmp_path, warmed, step, assignments, tiny
):
    """Steps 1 to 8 are the warm start's, and 9 to 12 the first epoch of the run proper."""
    steps, train_step = itertools.count(1), trainer.train_step

    def killed(*arguments, **options):
        if next(steps) == step:
            raise KeyboardInterrupt
        return train_step(*arguments, **options)

    out = tmp_path / "run"
    monkeypatch.setattr(trainer, "train_step", killed)
    code, _, err = command("train", CGP, "--out", out, *assignments([*tiny, *WARM]))
    assert code == 130
    assert "--resume continues" in err
    assert (out / "last.pt").exists() == (step > 12)
    code, text, _ = command("train", CGP, "--out", out, "--resume", *assignments([*tiny, *WARM]))
    assert code == 0
    assert ("warm start: " in text) == (step <= 12)
    assert next(steps) == 16 + (step - 1) % 4 + 1 + 1  # those of the killed epoch, the kill and this one on top
    for name in ("best.pt", "last.pt", "warm-start/best.pt", "warm-start/last.pt"):
        assert_same_checkpoint(warmed[0] / name, out / name)
    for folder in ("", "warm-start"):
        assert records(warmed[0] / folder) == records(out / folder)
    assert (warmed[0] / "warm-start.json").read_bytes() == (out / "warm-start.json").read_bytes()


def test_resuming_with_another_warm_start_names_it(
    command, warmed, tmp_path, assignments, tiny, contents, is_one_message
):
    out = shutil.copytree(warmed[0], tmp_path / "run")
    before = contents(out)
    for change, words in {
        "warm_start.epochs=3": "warm_start.epochs: 2 → 3",
        "warm_start=none": "epochs: 2 → None",
    }.items():
        code, _, err = command("train", CGP, "--out", out, "--resume", *assignments([*tiny, *WARM, change]))
        assert code == 1
        assert is_one_message(err, out, words)
    assert contents(out) == before


def test_resuming_a_finished_run_of_two_phases_does_nothing(command, warmed, tmp_path, assignments, tiny, contents):
    out = shutil.copytree(warmed[0], tmp_path / "run")
    before = contents(out)
    code, text, err = command("train", CGP, "--out", out, "--resume", *assignments([*tiny, *WARM]))
    assert (code, err) == (0, "")
    assert text.startswith(f"{out} was finished already, after 2 epochs; nothing to do\n")
    assert contents(out) == before


def test_a_layer_that_takes_nothing_over_is_refused_before_the_warm_start(command, tmp_path, assignments, tiny):
    changes = assignments([*tiny, "warm_start.epochs=1", "layer.rank=4"])
    code, text, err = command("train", KEP, "--out", tmp_path / "run", *changes)
    assert (code, text) == (1, "")
    assert err.startswith("error: the source has no matrix of the names and shapes of the KEPSVGPAttention here")
    assert not (tmp_path / "run").exists()


def test_a_run_without_its_warm_start(command, tmp_path, assignments, tiny):
    code, text, _ = command("train", CGP, "--out", tmp_path / "run", *assignments([*tiny, *WARM, "warm_start=none"]))
    assert code == 0
    assert text.startswith("best epoch ")
    assert not (tmp_path / "run" / "warm-start").exists()
    assert not (tmp_path / "run" / "warm-start.json").exists()
