"""Training curves, spectra, similarities, shift and regression: numbers read back from the axes."""

import math

import numpy as np
import pytest
import torch
from pyro.distributions import Normal

from probattn.experiments.plots import model_diagnostics, prediction_figures
from probattn.inference import Prediction
from probattn.inference.diagnostics.attention import Spectrum


def spectrum(values):
    values = torch.tensor(values)
    return Spectrum(values, torch.empty(len(values), 0), torch.empty(0), torch.empty(0))


def test_training_draws_each_term_and_leaves_out_what_is_not_finite():
    steps = [{"step": t, "loss": 3.0 - t, "kl/a.u": math.nan, "lr": 0.1} for t in range(3)]
    steps[1]["loss"] = math.inf
    epochs = [{"epoch": 1, "step": 2, "valid/accuracy": 0.5, "valid/ece": 0.1}]
    axes = model_diagnostics.training(steps, epochs).axes
    assert [ax.get_title("left") for ax in axes] == ["loss", "lr", "validation accuracy"]
    assert axes[0].lines[0].get_xydata().tolist() == [[0, 3], [2, 1]]
    assert model_diagnostics.training([], []) is None


def test_spectrum_is_the_mean_of_the_heads_cumulative_shares_without_heads_of_zeros():
    spectra = {"network.a": spectrum([[4.0, 3, 1], [1, 1, 0]]), "b": spectrum([[4.0, 1], [0, 0]])}
    (ax,) = model_diagnostics.spectrum({"run": spectra}).axes
    first, second, threshold = ax.lines
    assert first.get_ydata().tolist() == pytest.approx([(4 / 8 + 1 / 2) / 2, (7 / 8 + 2 / 2) / 2, 1])
    assert second.get_ydata().tolist() == pytest.approx([0.8, 1])
    assert threshold.get_ydata() == [0.95, 0.95]
    assert [text.get_text() for text in ax.figure.legends[0].texts] == ["a", "b", "95 %"]
    assert model_diagnostics.spectrum({"run": {"b": spectrum([[0.0, 0.0]])}}) is None


def test_boxes_are_the_quartiles_over_severities_of_each_corruption():
    fog = {f"fog/{severity}": {"accuracy": severity / 10} for severity in range(1, 6)}
    runs = {"one": fog, "other": {"snow/1": {"accuracy": 0.9}}}
    (ax,) = prediction_figures.boxes(runs).axes
    heights = [patch.get_path().vertices[:, 1] for patch in ax.patches]
    np.testing.assert_allclose([(values.min(), values.max()) for values in heights], [(20, 40), (90, 90)])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["fog", "snow"]
    assert prediction_figures.boxes({"one": {}}) is None


def test_predicted_numbers_stand_against_the_true_ones_with_their_quantiles():
    loc, labels = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.5], [2.0], [3.0]])
    law = Normal(loc.expand(2, 3, 1), torch.ones(2, 3, 1)).to_event(1)
    prediction = Prediction(mean=loc, variance=torch.ones(3, 1), labels=labels, components=(law,))
    (ax,) = prediction_figures.predicted(prediction).axes
    assert ax.lines[0].get_xydata().tolist() == [[1.5, 1], [2, 2], [3, 4]]
    segments = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(np.ptp(segments[:, :, 1], axis=1), 2 * 1.6448536, rtol=1e-5)
    (ax,) = prediction_figures.quantiles(prediction).axes
    shares = dict(ax.lines[1].get_xydata().round(4).tolist())
    assert shares[0.1] == pytest.approx(0)  # z = 0.5, 0 and -1: Φ = 0.69, 0.5 and 0.16
    assert [shares[level] for level in (0.2, 0.6, 0.7)] == pytest.approx([1 / 3, 2 / 3, 1], abs=1e-4)
