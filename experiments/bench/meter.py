"""Measurement of benchmark cases on a device, and the rows of their tables."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from probattn.experiments.bench import flops, memory, timing
from probattn.experiments.bench.timing import Step
from probattn.experiments.runs.environment import environment


@dataclass(frozen=True)
class Measured:
    """Measurements of a case: seconds of each timed step, peak memory in bytes, floating-point operations."""

    seconds: list[float]
    peak: int | None = None
    operations: int | None = None


class Meter:
    """Device, with the rate of its matrix products measured in this run.

    Args:
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: another device, or no GPU.
    """

    def __init__(self, device: str) -> None:
        if device not in ("cpu", "cuda"):
            raise ValueError(f"--device is cpu or cuda, got {device!r}")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("PyTorch finds no GPU here; use --device cpu")
        self.device = device
        self.rates = flops.matmul_rates(device)

    def measure(self, cases: Mapping[str, Step], *, rounds: int) -> dict[str, Measured]:
        """Count the operations and measure the peak memory of each case, which warms it up, then time them in turns."""
        operations = {name: flops.count(step) or None for name, step in cases.items()}
        peaks = {name: memory.peak(step, self.device) or None for name, step in cases.items()}
        times = timing.alternate(cases, rounds=rounds, device=self.device)
        return {name: Measured(times[name], peaks[name], operations[name]) for name in cases}

    def section(self, title: str, cases: Mapping[str, Step], *, rounds: int) -> dict[str, Any]:
        """Return a section of a table: one row per case, relative to the first."""
        return {"title": title, "rounds": rounds, "rows": self.rows(self.measure(cases, rounds=rounds))}

    def rows(self, measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
        """Return the row of each case, relative to the first."""
        baseline = next(iter(measured))
        return [self.row(name, each, baseline, measured[baseline]) for name, each in measured.items()]

    def row(self, case: str, measured: Measured, baseline: str, relative_to: Measured | None) -> dict[str, Any]:
        """Return the row of a case, relative to another one if that was measured.

        ``ms`` is the median with ``quartiles`` and ``least``; ``rate`` is in FLOP/s, ``share`` relative to a float32
        matrix product.
        """
        low, median, high = np.quantile(measured.seconds, (0.25, 0.5, 0.75)).tolist()
        row = {"case": case, "baseline": baseline, "ms": 1e3 * median, "quartiles": [1e3 * low, 1e3 * high]}
        row["least"] = 1e3 * min(measured.seconds)
        if relative_to is not None:
            row["ratio"] = median / np.median(relative_to.seconds).item()
        if measured.peak is not None:
            row["peak_mib"] = measured.peak / 2**20
        if measured.peak is not None and relative_to is not None and relative_to.peak is not None:
            row["memory_ratio"] = measured.peak / relative_to.peak
        if measured.operations is not None:
            rate = measured.operations / median
            row |= {"operations": measured.operations, "rate": rate, "share": rate / self.rates["float32"]}
        return row

    def setting(self, seed: int) -> dict[str, Any]:
        """Return the environment, the date and the rates of the measurements."""
        return {
            "environment": environment(self.device)
            | {
                "pyro": version("pyro-ppl"),
                "python": platform.python_version(),
                "vector": torch.backends.cpu.get_cpu_capability(),
                "float32 products": torch.get_float32_matmul_precision(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            "seed": seed,
            "matmul_rates": self.rates,
        }
