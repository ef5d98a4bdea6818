"""Cost, measured as ratios within one run: time, peak memory, achieved FLOP/s."""
