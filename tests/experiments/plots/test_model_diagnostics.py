"""Training curves, spectra, similarities and posteriors: numbers read back from the axes."""

import math

import numpy as np
import pytest
import torch

from probattn.experiments.plots import model_diagnostics
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.diagnostics.convergence import SiteConvergence


def spectrum(values, scales):
    shares = torch.full(scales.shape[:1], 0.5)
    return Spectrum(values, scales, shares, shares)


def test_spectrum_lines_are_the_input(probabilistic):
    values, scales, *_ = next(iter(probabilistic().spectra.values()))
    (ax,) = model_diagnostics.spectrum({"layer": spectrum(values, scales)}).axes
    assert ax.get_yscale() == "log"
    drawn = [line.get_ydata().tolist() for line in ax.lines]
    assert drawn == [*values.tolist(), values.mean(0).tolist(), *scales.tolist()]
    assert [line.get_xdata()[0] for line in ax.lines] == [1] * 5
    assert [line.get_marker() for line in ax.lines] == ["None"] * 3 + ["o"] * 2
    low, high = ax.get_ylim()
    assert low < 0.5 < 4 < high


def test_spectrum_survives_zeros_and_keeps_every_scale_in_view():
    values, scales = torch.tensor([[10.0, 1e-9, 0]]), torch.tensor([[1e-5]])
    zero = torch.zeros(1, 3)
    first, second = model_diagnostics.spectrum({"a": spectrum(values, scales), "b": spectrum(zero, zero[:, :1])}).axes
    assert 1e-6 < first.get_ylim()[0] < 1e-5
    assert second.get_yscale() == "linear"


def test_spectrum_leaves_out_layers_that_learn_no_scale(probabilistic):
    values, scales, *_ = next(iter(probabilistic().spectra.values()))
    spectra = {"softmax": spectrum(values, torch.empty(2, 0)), "kep": spectrum(values, scales)}
    (ax,) = model_diagnostics.spectrum(spectra).axes
    assert ax.get_title("left") == "kep"
    assert model_diagnostics.spectrum({"softmax": spectra["softmax"]}) is None


def test_spectrum_by_layer_is_the_mean_of_the_heads_cumulative_shares():
    values = torch.tensor([[4.0, 3, 1], [1, 1, 0]])
    spectra = {
        "network.a": spectrum(values, torch.empty(2, 0)),
        "network.b": spectrum(2 * values[:1, :2], torch.ones(1, 2)),
    }
    (ax,) = model_diagnostics.spectrum_by_layer(spectra).axes
    first, second, threshold = ax.lines
    assert first.get_xdata().tolist() == [1, 2, 3]
    assert first.get_ydata().tolist() == pytest.approx([(4 / 8 + 1 / 2) / 2, (7 / 8 + 2 / 2) / 2, 1])
    assert second.get_ydata().tolist() == pytest.approx([4 / 7, 1])
    assert threshold.get_ydata() == [0.95, 0.95]
    assert first.get_color() != second.get_color()
    assert [text.get_text() for text in ax.figure.legends[0].texts] == ["a", "b", "95 %"]


def test_spectrum_by_layer_leaves_out_heads_and_layers_of_zeros():
    values = torch.tensor([[4.0, 1], [0, 0]])
    (ax,) = model_diagnostics.spectrum_by_layer(
        {"a": spectrum(values, torch.empty(2, 0)), "b": spectrum(0 * values, torch.empty(2, 0))}
    ).axes
    assert [line.get_ydata()[0] for line in ax.lines[:-1]] == pytest.approx([0.8])
    assert model_diagnostics.spectrum_by_layer({"b": spectrum(0 * values, torch.empty(2, 0))}) is None


def test_spectrum_by_model_has_a_panel_for_each_layer_and_a_line_for_each_model_that_has_it():
    values = torch.tensor([[4.0, 3, 1], [1, 1, 0]])
    both = {layer: spectrum(values, torch.empty(2, 0)) for layer in ("network.a", "network.b")}
    zeros = {"network.c": spectrum(0 * values, torch.empty(2, 0))}
    models = {"kep": {"network.b": spectrum(values[:1], torch.ones(1, 2))}, "softmax": both | zeros}
    figure = model_diagnostics.spectrum_by_model(models)
    lines = {ax.get_title("left"): {line.get_label(): line for line in ax.lines} for ax in figure.axes}
    assert sorted(lines) == ["a", "b"]
    mean = [(4 / 8 + 1 / 2) / 2, (7 / 8 + 2 / 2) / 2, 1]
    for panel in lines.values():
        assert list(panel["softmax"].get_ydata()) == pytest.approx(mean)
        assert panel["95 %"].get_ydata() == [0.95, 0.95]
    assert list(lines["b"]["kep"].get_ydata()) == pytest.approx([4 / 8, 7 / 8, 1])
    assert not np.isfinite(lines["a"]["kep"].get_ydata()).any()
    assert lines["a"]["softmax"].get_color() == lines["b"]["softmax"].get_color() != lines["b"]["kep"].get_color()
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.texts] == ["kep", "softmax", "95 %"]
    assert [line.get_color() for line in legend.get_lines()[:2]] == [lines["b"][name].get_color() for name in models]
    assert model_diagnostics.spectrum_by_model({"softmax": {}, "kep": zeros}) is None


def test_many_lines_are_told_apart_by_colour_and_dashes():
    spectra = {f"layer {i}": spectrum(torch.ones(1, 3), torch.empty(1, 0)) for i in range(20)}
    (ax,) = model_diagnostics.spectrum_by_layer(spectra).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines[:-1]}) == 20


def test_similarity_is_a_line_per_run_over_depth():
    runs = {"kep": {"a": 0.25, "b": 0.5, "c": -0.2}, "softmax": {"x": 0.1, "y": math.nan}, "none": {}}
    figure = model_diagnostics.similarity(runs)
    (ax,) = figure.axes
    first, second = ax.lines
    assert first.get_xdata().tolist() == [1, 2, 3]
    assert first.get_ydata().tolist() == [0.25, 0.5, -0.2]
    np.testing.assert_array_equal(second.get_ydata(), [0.1, math.nan])
    low, high = ax.get_ylim()
    assert low < -0.2
    assert high > 1
    assert [text.get_text() for text in figure.legends[0].texts] == ["kep", "softmax"]
    assert model_diagnostics.similarity({"kep": runs["kep"]}).legends == []


def test_posterior_bars_are_nats_per_scalar_and_ratios_of_spreads(probabilistic):
    left, right = model_diagnostics.posterior(probabilistic().posterior).axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([0.5, 0.25])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([0.25, 1.5])
    assert [text.get_text() for text in left.get_yticklabels()] == [
        "blocks.0.attention.u",
        "blocks.1.attention.u",
    ]
    assert right.get_xlim()[1] > 1.5


def test_training_draws_each_term_once_and_exactly(result):
    run = result()
    axes = {ax.get_title("left"): ax for ax in model_diagnostics.training(run.steps, run.epochs).axes}
    keys = {
        "negative log-likelihood": "nll",
        "KL a.u": "kl/a.u",
        "loss: the sum of all terms": "loss",
        "learning rate": "lr",
    }
    assert list(axes) == [*keys, "validation accuracy", "validation NLL"]
    for title, key in keys.items():
        (line,) = axes[title].lines
        assert line.get_xdata().tolist() == list(range(8))
        assert line.get_ydata().tolist() == [row[key] for row in run.steps]
        assert axes[title].get_xlabel() == "step"
    assert axes["validation accuracy"].lines[0].get_ydata().tolist() == [0.5, 0.75]
    assert axes["validation accuracy"].get_xlabel() == "epoch"
    assert axes["validation accuracy"].yaxis.get_major_formatter()(0.75) == "75\u00a0%"


def test_training_of_many_steps_has_every_point_and_their_moving_mean():
    values = [float(t % 2) for t in range(100)]
    (ax,) = model_diagnostics.training([{"step": t, "nll": value} for t, value in enumerate(values)], []).axes
    raw, mean = ax.lines
    assert raw.get_ydata().tolist() == values
    assert mean.get_ydata()[2] == pytest.approx(0.4)  # of 0 1 0 1 0
    assert mean.get_ydata()[0] == pytest.approx(1 / 3)  # of 0 1 0


def test_training_leaves_gaps_where_numbers_are_not_finite_and_uses_decades():
    rows = [{"step": t, "nll": v, "loss": math.nan} for t, v in enumerate([1000.0, math.inf, 1.0])]
    (ax,) = model_diagnostics.training(rows, []).axes
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1000, math.nan, 1])
    assert ax.get_yscale() == "log"


def test_fractions_have_percent_axes_and_no_nats():
    epochs = [{"epoch": e, "valid/accuracy": 0.5, "valid/mcc": 0.25 * e} for e in (1, 2)]
    axes = {ax.get_title("left"): ax for ax in model_diagnostics.training([], epochs).axes}
    assert list(axes) == ["validation accuracy", "validation MCC"]
    for ax in axes.values():
        assert ax.get_ylabel() == ""
        assert ax.yaxis.get_major_formatter()(0.5) == "50\u00a0%"


def test_figures_with_nothing_to_show_are_none():
    assert model_diagnostics.training([], []) is None
    assert model_diagnostics.training([{"step": 0, "nll": math.nan}], []) is None
    assert model_diagnostics.spectrum({}) is None
    assert model_diagnostics.spectrum_by_layer({}) is None
    assert model_diagnostics.similarity({}) is None
    assert model_diagnostics.similarity({"run": {}, "other": {"a": math.nan}}) is None
    assert model_diagnostics.posterior([]) is None


def test_of_many_sites_the_twelve_nearest_to_their_prior_are_drawn_whole():
    rows = [
        SiteConvergence(site=f"network.blocks.{n}.attention.u", size=10, num_data=9, kl=30.0 - n, std_ratio=(1, 1, 1))
        for n in range(30)
    ]
    left = model_diagnostics.posterior(rows).axes[0]
    assert [text.get_text() for text in left.get_yticklabels()] == [f"blocks.{n}.attention.u" for n in range(18, 30)]
    assert left.get_title("left").endswith("the lowest of 30 sites")
    assert "lowest" not in model_diagnostics.posterior(rows[:12]).axes[0].get_title("left")
