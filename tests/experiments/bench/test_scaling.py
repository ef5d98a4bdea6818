"""Growth over the number of tokens: fitted exponents, skipped sizes, and the baseline of each row."""

import pytest

from probattn import SoftmaxAttention
from probattn.experiments.bench import flops, scaling
from probattn.experiments.bench.meter import Measured, Meter
from probattn.experiments.bench.scaling import Growth

SMALL = {"dim": 8, "heads": 2, "rank": 2, "inducing": 2}


@pytest.fixture
def meter(monkeypatch):
    monkeypatch.setattr(flops, "matmul_rates", lambda device: {"float32": 1e9})
    return Meter("cpu")


def test_exponents_are_those_of_the_largest_sizes():
    found = {size: Measured([9.0, 3e-6 * size**1.5, 0.0], peak=7 * size**2) for size in (1024, 64, 256, 4096)}
    found[64] = Measured([1.0], peak=10**9)  # overhead
    assert scaling.exponents(found) == {"time": pytest.approx(1.5), "memory": pytest.approx(2)}
    assert scaling.exponents({64: found[64]}) == {}


@pytest.mark.parametrize(
    ("powers", "limit", "memory_limit", "reason"),
    [
        ((2, 1), 32.1, 2**41, ""),
        ((2, 1), 31.9, 2**41, "skipped: predicted 32.0 s"),
        ((3, 1), 127.0, 2**41, "skipped: predicted 128.0 s"),
        ((1, 2), 9.0, 2**35, "skipped: predicted 48.0 GiB"),
        ((1, 1), 9.0, 2**34, ""),
    ],
)
def test_sizes_that_take_too_much_are_predicted_from_the_largest_measured(powers, limit, memory_limit, reason):
    growth = Growth(SoftmaxAttention, *powers)
    found = {4: Measured([9.0], peak=1), 16: Measured([2.0, 2.0, 7.0], peak=3 * 2**30)}
    assert scaling.reason_to_skip(growth, found, 64, limit=limit, memory_limit=memory_limit) == reason
    assert scaling.reason_to_skip(growth, {}, 64, limit=0, memory_limit=0) == ""


def test_rows_are_relative_to_softmax_of_the_same_size(meter):
    result = scaling.over_tokens(meter, rounds=1, limit=1e6, sizes=(16, 64, 256), **SMALL)
    sections = {section["title"]: section["rows"] for section in result["sections"]}
    assert list(sections) == ["softmax", "kernel", "KEP-SVGP add", "SGPA", "sparse CGP, collapsed", "CGP, collapsed"]
    for rows in sections.values():
        assert [row["case"] for row in rows] == ["N 16", "N 64", "N 256"]
        for row, softmax in zip(rows, sections["softmax"], strict=True):
            assert row["baseline"] == f"softmax, {row['case']}"
            assert row["ratio"] == pytest.approx(row["ms"] / softmax["ms"])
            assert row["memory_ratio"] == pytest.approx(row["peak_mib"] / softmax["peak_mib"])
    memory_of = {section["title"]: section["exponents"]["memory"] for section in result["sections"]}
    assert memory_of["softmax"] < 1.4 < 1.6 < memory_of["kernel"]


@pytest.mark.parametrize(("limit", "available", "reason"), [(0.0, 2**50, " s"), (1e6, 1, " GiB")])
def test_skipped_sizes_are_reported(meter, monkeypatch, limit, available, reason):
    monkeypatch.setattr(scaling, "total_memory", lambda device: available)
    result = scaling.over_tokens(meter, rounds=1, limit=limit, sizes=(8, 16), **SMALL)
    for section in result["sections"]:
        first, second = section["rows"]
        assert first["case"] == "N 8"
        assert first["ms"] > 0
        assert second["case"] == "N 16"
        assert second["left_out"].startswith("skipped: predicted ")
        assert second["left_out"].endswith(reason)
        assert "ms" not in second
        assert section["exponents"] == {}
