"""The run's log on disk: JSON Lines that a crash does not spoil."""

import json
import math

import pytest

from probattn.inference.training.run_log import RunLog, read_log


def written(path, steps):
    log = RunLog(path, step=0)
    for step in steps:
        log.write("step", step, loss=step / 2)
    return log


def test_records_are_lines_on_disk_at_once(tmp_path):
    path = tmp_path / "log.jsonl"
    log = RunLog(path, step=0)
    log.write("step", 1, loss=0.5)
    assert read_log(path) == [{"kind": "step", "step": 1, "loss": 0.5}]
    log.write("epoch", 1, accuracy=1.0)
    text = path.read_text()
    assert [json.loads(line) for line in text.splitlines()] == log.records
    assert text.endswith("\n")
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_without_a_file_records_are_only_kept():
    assert written(None, [1]).records == [{"kind": "step", "step": 1, "loss": 0.5}]


@pytest.mark.parametrize("cut", range(1, 30, 6))
def test_a_half_written_last_line_is_dropped_and_the_log_continues(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    log = written(path, (1, 2, 3))
    whole = path.read_text()
    path.write_text(whole[:-cut])
    assert read_log(path) == log.records[:2]
    RunLog(path, step=2).write("step", 3, loss=1.5)
    assert path.read_text() == whole


def test_records_after_the_checkpoints_step_are_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    written(path, range(1, 6)).write("epoch", 5, accuracy=0.1)
    resumed = RunLog(path, step=3)
    assert [record["step"] for record in resumed.records] == [1, 2, 3]
    assert read_log(path) == resumed.records
    RunLog(path, step=0)
    assert path.read_text() == ""


def test_numbers_come_back_as_they_were(tmp_path):
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": math.inf, "d": 3}
    RunLog(tmp_path / "log.jsonl", step=0).write("step", 1, e=math.nan, **values)
    (record,) = read_log(tmp_path / "log.jsonl")
    assert math.isnan(record.pop("e"))
    assert record == {"kind": "step", "step": 1, **values}
