"""`probattn train`: what it writes, prints and resumes."""

import json

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.config.settings import from_json
from probattn.experiments.runs import train
from probattn.inference import History

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def test_train_writes_a_run_and_says_what_came_out(command, tmp_path, assignments, tiny):
    out = tmp_path / "new" / "run"
    code, text, err = command("train", KEP, "--out", out, *assignments(tiny))
    assert code == 0
    names = {".lock", "settings.json", "preprocessing.json", "last.pt", "best.pt", "log.jsonl"}
    assert {path.name for path in out.iterdir()} == names
    log = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    epochs = [record for record in log if record["kind"] == "epoch"]
    best = min(epochs, key=lambda record: record["valid/nll"])
    assert text == (
        f"best epoch {best['epoch']} of 2, valid nll {best['valid/nll']:.4f}; next: probattn evaluate {out}\n"
    )
    assert [f"epoch {number}/2" in err for number in (1, 2)] == [True, True]
    assert len(epochs) == 2
    assert all(f"valid/{name}" in epochs[0] for name in ("nll", "ece", "auroc", "log_prob"))
    steps = [record for record in log if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, 9))  # 200 images, 64 a batch, 2 epochs
    for record in steps:
        terms = {key: value for key, value in record.items() if key == "nll" or key.startswith(("kl/", "penalty/"))}
        assert set(terms) == {"nll", "kl/network.blocks.1.attention.u", "penalty/network.blocks.1.attention.ksvd"}
        assert sum(terms.values()) == pytest.approx(record["loss"], rel=1e-4)
    saved = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    assert saved["name"] == KEP
    assert from_json(json.dumps(saved["settings"])) == presets.preset(KEP).with_changes(tiny)


def test_the_same_seed_gives_the_same_run(command, tmp_path, trained, assignments, tiny):
    assert command("train", KEP, "--out", tmp_path / "again", *assignments(tiny))[0] == 0
    first, second = (torch.load(out / "best.pt") for out in (trained[KEP], tmp_path / "again"))
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    changes = assignments([*tiny, "train.seed=1"])
    assert command("train", KEP, "--out", tmp_path / "other", *changes)[0] == 0
    other = torch.load(tmp_path / "other" / "best.pt")
    assert not torch.equal(first["model"]["network.head.weight"], other["model"]["network.head.weight"])


def test_a_run_goes_to_runs_by_default(command, tmp_path, monkeypatch, assignments, tiny):
    monkeypatch.chdir(tmp_path)
    changes = [*tiny, "train.epochs=1", "data.limit=40"]
    code, text, _ = command("train", SOFTMAX, *assignments(changes))
    assert code == 0
    assert text.endswith("next: probattn evaluate runs/digits/softmax\n")
    assert (tmp_path / "runs/digits/softmax/best.pt").exists()


def test_resuming_a_finished_run_does_nothing_and_says_so(command, kep, assignments, tiny, contents):
    before = contents(kep)
    code, text, err = command("train", KEP, "--out", kep, "--resume", *assignments(tiny))
    assert code == 0
    assert err == ""
    assert text.startswith(f"{kep} was finished already, after 2 epochs; nothing to do\nbest epoch ")
    assert contents(kep) == before


def test_resume_of_nothing_starts(command, tmp_path, assignments, tiny):
    changes = assignments([*tiny, "train.epochs=1"])
    code, text, _ = command("train", KEP, "--out", tmp_path / "run", "--resume", *changes)
    assert code == 0
    assert text.startswith("best epoch 1 of 1")


def test_drafts_that_a_killed_process_left_do_no_harm(command, tmp_path, trained, assignments, tiny):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".settings.json.123").write_text("{", encoding="utf-8")
    assert command("train", KEP, "--out", out, *assignments([*tiny, "train.epochs=1"]))[0] == 0
    (out / ".last.pt.123").write_bytes(b"half")
    (out / ".log.jsonl.123").write_bytes(b"half")
    resumed = command("train", KEP, "--out", out, "--resume", *assignments([*tiny, "train.epochs=1"]))
    assert resumed[0] == 0
    assert "finished already" in resumed[1]


def test_a_metric_that_was_never_a_number_is_named(command, monkeypatch, tmp_path, is_one_message):
    monkeypatch.setattr(train, "train", lambda *arguments, **options: History([], [], 0, None))
    code, _, err = command("train", KEP, "--out", tmp_path, "--set", "train.monitor=auroc")
    assert code == 1
    assert is_one_message(err, "auroc", "train.monitor")
