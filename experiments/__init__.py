"""Data sets, presets, the `probattn` command, reports and benchmarks."""
