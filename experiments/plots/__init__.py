"""Figures of the uncertainty toolbox: pure functions from results to a matplotlib figure."""
