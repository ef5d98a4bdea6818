"""`probattn train`: what it writes, resumes and does not accept; files on disk stay as they are
after an error."""

import pytest
import torch
from torch.testing import assert_close

from probattn.inference.training.run_log import read_log

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def weights(folder):
    return torch.load(folder / "best.pt")["model"]


def test_train_writes_a_run_and_says_what_came_out(command, tmp_path, trained, assignments, tiny):
    out = tmp_path / "new" / "run"
    out.mkdir(parents=True)
    (out / ".settings.json.123").write_text(
        "{", encoding="utf-8"
    )  # the draft of a process that was killed
    code, text, err = command("train", KEP, "--out", out, "--resume", *assignments(tiny))
    assert (code, "epoch 2/2" in err) == (0, True)
    log = read_log(out / "log.jsonl")
    epochs, steps = (
        [record for record in log if record["kind"] == kind] for kind in ("epoch", "step")
    )
    best = min(epochs, key=lambda record: record["valid/nll"])
    assert f"best epoch {best['epoch']} of 2, valid nll {best['valid/nll']:.4f}" in text
    assert f"probattn evaluate {out}" in text
    assert [record["step"] for record in steps] == list(
        range(1, 9)
    )  # 200 images, 64 a batch, 2 epochs
    assert_close(weights(out), weights(trained[KEP]), rtol=0, atol=0)


def test_a_finished_run_is_left_alone_or_continued_to_more_epochs(
    command, kep, assignments, tiny, contents
):
    before = contents(kep)
    code, _, err = command("train", KEP, "--out", kep, "--resume", *assignments(tiny))
    assert (code, err) == (0, "")
    assert contents(kep) == before
    code, text, _ = command("train", "--out", kep, "--resume", "--epochs", 3)
    assert (code, " of 3, valid nll" in text) == (0, True)


@pytest.mark.parametrize(
    ("preset", "more", "changes", "words"),
    [
        (KEP, [], [], ["--resume"]),
        (KEP, ["--resume"], ["train.epochs=3", "layer.rank=3"], ["layer.rank=3"]),
        (SOFTMAX, ["--resume"], [], ["layer.name=softmax"]),
    ],
)
def test_a_run_is_not_written_over(
    refused, kep, preset, more, changes, words, assignments, tiny, contents
):
    before = contents(kep)
    err = refused("train", preset, "--out", kep, *more, *assignments([*tiny, *changes]))
    assert err.count("\n") == 1
    assert [word for word in ("error: ", str(kep), *words) if word not in err] == []
    assert contents(kep) == before


def test_a_folder_of_other_files_is_not_used(refused, tmp_path, contents):
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    assert "--out" in refused("train", KEP, "--out", tmp_path)
    assert contents(tmp_path) == {"notes.txt": b"mine"}
