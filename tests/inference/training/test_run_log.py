"""The run's log on disk: JSON Lines that a crash does not spoil."""

import json
import math

import pytest

from probattn.inference.training.run_log import RunLog, read_log


def test_records_are_lines_on_disk_at_once(tmp_path):
    with RunLog(tmp_path, step=0, loggers=()) as log:
        log.write("step", 1, loss=0.5)
        assert read_log(tmp_path / "log.jsonl") == [{"kind": "step", "step": 1, "loss": 0.5}]
        log.write("epoch", 1, accuracy=1.0)
    text = (tmp_path / "log.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == log.records
    assert text.endswith("\n")
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_without_a_folder_records_are_only_kept():
    with RunLog(None, step=0, loggers=()) as log:
        log.write("step", 1, loss=0.5)
    assert log.records == [{"kind": "step", "step": 1, "loss": 0.5}]


@pytest.mark.parametrize("cut", range(1, 30, 6))
def test_a_half_written_last_line_is_dropped_and_the_log_continues(tmp_path, cut):
    with RunLog(tmp_path, step=0, loggers=()) as log:
        for step in (1, 2, 3):
            log.write("step", step, loss=step / 2)
    path = tmp_path / "log.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-cut])
    assert read_log(path) == log.records[:2]
    with RunLog(tmp_path, step=2, loggers=()) as resumed:
        resumed.write("step", 3, loss=1.5)
    assert path.read_text() == whole


def test_records_after_the_checkpoints_step_are_dropped(tmp_path):
    with RunLog(tmp_path, step=0, loggers=()) as log:
        for step in range(1, 6):
            log.write("step", step, loss=0.0)
        log.write("epoch", 5, accuracy=0.1)
    with RunLog(tmp_path, step=3, loggers=()) as resumed:
        assert [record["step"] for record in resumed.records] == [1, 2, 3]
    assert read_log(tmp_path / "log.jsonl") == resumed.records
    with RunLog(tmp_path, step=0, loggers=()):
        pass
    assert (tmp_path / "log.jsonl").read_text() == ""


def test_numbers_come_back_as_they_were(tmp_path):
    values = {"a": 0.1 + 0.2, "b": 1e-300, "d": 3}
    with RunLog(tmp_path, step=0, loggers=()) as log:
        log.write("step", 1, **values)
    (record,) = read_log(tmp_path / "log.jsonl")
    assert record == {"kind": "step", "step": 1, **values}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_file_is_strict_json_and_null_comes_back_as_nan(tmp_path, value):
    with RunLog(tmp_path, step=0, loggers=()) as log:
        log.write("epoch", 1, value=value)
    text = (tmp_path / "log.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["value"] is None
    assert math.isnan(read_log(tmp_path / "log.jsonl")[0]["value"])
