"""From times, bytes and operations to rows."""

import json

import pytest
import torch

from probattn.experiments.bench import flops
from probattn.experiments.bench.meter import Measured, Meter


@pytest.fixture
def meter(monkeypatch):
    monkeypatch.setattr(flops, "matmul_rates", lambda device: {"float32": 4000.0})
    return Meter("cpu")


def test_rows_are_relative_to_the_first_case(meter):
    slow = Measured([9.0, 4.0, 8.0, 4.0, 5.0], peak=2**20, operations=10_000)
    fast = Measured([2.0, 2.0, 90.0, 1.0, 2.0], peak=2**19, operations=4000)
    rows = meter.rows({"slow": slow, "fast": fast})
    assert rows[0] == {
        "case": "slow",
        "baseline": "slow",
        "ms": 5000,
        "quartiles": [4000, 8000],
        "least": 4000,
        "ratio": 1,
        "peak_mib": 1,
        "memory_ratio": 1,
        "operations": 10_000,
        "rate": 2000,
        "share": 0.5,
    }
    assert rows[1]["ratio"] == 0.4
    assert (rows[1]["baseline"], rows[1]["least"], rows[1]["memory_ratio"]) == ("slow", 1000, 0.5)
    assert (rows[1]["rate"], rows[1]["share"]) == (2000, 0.5)


def test_a_row_has_what_was_measured(meter):
    assert set(meter.row("a", Measured([1.0]), "b", None)) == {"case", "baseline", "ms", "quartiles", "least"}
    assert "memory_ratio" not in meter.row("a", Measured([1.0], peak=5), "b", None)


def test_a_case_is_warmed_up_by_being_counted_and_sized_up(meter):
    runs = {"a": 0, "b": 0}
    matrix = torch.ones(10, 10)

    def step(name):
        runs[name] += 1
        return matrix @ matrix

    section = meter.section("here", {"a": lambda: step("a"), "b": lambda: step("b")}, rounds=4)
    assert runs == {"a": 6, "b": 6}
    assert (section["title"], section["rounds"]) == ("here", 4)
    assert [row["case"] for row in section["rows"]] == ["a", "b"]
    assert {(row["operations"], row["peak_mib"]) for row in section["rows"]} == {(2000, 400 / 2**20)}


def test_the_setting_is_recorded(meter):
    setting = meter.setting(7)
    assert json.loads(json.dumps(setting)) == setting
    assert setting["seed"] == 7
    assert setting["matmul_rates"] == {"float32": 4000.0}
    assert setting["environment"]["torch"] == torch.__version__
    assert setting["environment"].keys() >= {"probattn", "pyro", "python", "hardware", "date"}


def test_unknown_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU here; use --device cpu"):
        Meter("cuda")
    with pytest.raises(ValueError, match="cpu or cuda, got 'gpu'"):
        Meter("gpu")
