"""Each file of a run that the library writes: no flipped bit and no cut end goes unnoticed."""

import pytest
import torch
from damage import AMOUNTS, accepted, cut, flipped
from torch import nn

from probattn.inference import CheckpointError, load, load_safetensors, save, save_safetensors, warm_start
from probattn.inference.io.sealed_files import DamagedFileError, read_json, write_json
from probattn.inference.training.run_log import RunLog, read_log

RECORDS = [{"kind": "step", "step": step, "loss": step / 7, "missing": float("nan")} for step in range(1, 6)]


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.fixture
def log(tmp_path):
    """The file of a log of five records."""
    with RunLog(tmp_path) as log:
        for record in RECORDS:
            log.write(**record)
    return tmp_path / "log.jsonl"


@AMOUNTS
@pytest.mark.parametrize("read", [load, lambda path, model: warm_start(model, path)], ids=["load", "warm start"])
def test_a_damaged_checkpoint_is_refused(tmp_path, linear, read, amount):
    save(tmp_path / "a.pt", linear, step=7, history=[1, 2])
    assert accepted(tmp_path / "a.pt", lambda path: read(path, linear), error=CheckpointError, amount=amount) == []


@AMOUNTS
def test_damaged_safetensors_are_refused(tmp_path, linear, amount):
    path = tmp_path / "a.safetensors"
    save_safetensors(path, linear, name="α")
    assert accepted(path, lambda path: load_safetensors(path, linear), error=CheckpointError, amount=amount) == []


@AMOUNTS
def test_a_damaged_json_file_is_refused(tmp_path, amount):
    write_json(tmp_path / "a.json", {"numbers": [1, 2.5], "text": "α", "nothing": None})
    assert accepted(tmp_path / "a.json", read_json, error=DamagedFileError, amount=amount) == []


def test_a_changed_end_of_the_last_line_is_refused(log):
    """It is no line that a crash left half-written: that has no digest."""
    whole = log.read_bytes()
    for bit in range(8):
        log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1 << bit]))
        with pytest.raises(DamagedFileError, match=r"log\.jsonl, line 5 is damaged"):
            read_log(log)


@AMOUNTS
def test_a_damaged_log_is_refused_and_a_cut_one_is_its_beginning(log, amount):
    whole, records = log.read_bytes(), read_log(log)
    for damaged in flipped(whole, amount):
        log.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"log\.jsonl, line \d+ is damaged"):
            read_log(log)
    for damaged in cut(whole, amount):
        log.write_bytes(damaged)
        found = read_log(log)
        assert repr(found) == repr(records[: len(found)])
        assert damaged.count(b"\n") <= len(found) <= damaged.count(b"\n") + 1
