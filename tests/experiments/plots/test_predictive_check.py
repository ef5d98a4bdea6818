"""Figures of predictive checks, read back from their artists."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from torch import nn

from probattn.experiments.plots.predictive_check import FEW, observed_and_replicated
from probattn.experiments.plots.style import ORANGE
from probattn.inference.diagnostics.predictive_check import PredictiveCheck, posterior_predictive_check
from probattn.models import Classifier


class Logits(nn.Module):
    def forward(self, x):
        return x


def check(**statistics):
    torch.manual_seed(0)
    model = Classifier(Logits(), num_data=40)
    model.register_parameter("unused", nn.Parameter(torch.zeros(())))
    x, y = torch.randn(40, 3), torch.randint(3, (40,))
    return posterior_predictive_check(model, None, [(x, y)], statistics=statistics or None, num_replicates=80)


def made(name: str, observed: torch.Tensor, replicated: torch.Tensor) -> PredictiveCheck:
    return dataclasses.replace(check(), observed={name: observed}, replicated={name: replicated})


def colour_of(ax, colour):
    return next(line for line in ax.get_lines() if line.get_color() == colour)


def bars(ax):
    return np.array([[bar.get_x(), bar.get_width(), bar.get_height()] for bar in ax.patches])


def test_each_statistic_has_a_panel_with_its_p_value():
    result = check()
    figure = observed_and_replicated(result)
    assert len(figure.axes) == 4
    for ax, (name, p) in zip(figure.axes, result.p_values.items(), strict=True):
        title, note = ax.get_title(loc="left").split("\n")
        assert title == name.replace("_", " ")
        smallest = 2 * torch.minimum(p, 1 - p).min()
        expected = f"smallest of 3 two-sided p: {smallest:.3f}" if p.dim() else f"P(replicated ≥ data) = {p.item():.3f}"
        assert note == expected
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(texts) == ["data", "replicated", "replicated, 5 to 95 %", "their median"]
    figure.savefig(io.BytesIO())


def test_a_histogram_counts_every_replicate_and_the_line_stands_at_the_data():
    result = check()
    ax = observed_and_replicated(result).axes[0]
    values = result.replicated["accuracy"].numpy()
    for x, width, height in bars(ax):
        assert height == np.isclose(values, x + width / 2).sum() > 0
    assert bars(ax)[:, 2].sum() == 80
    assert colour_of(ax, ORANGE).get_xdata()[0] == result.observed["accuracy"].item()


def test_many_different_values_are_binned_and_one_value_has_a_bar():
    values = torch.randn(500, dtype=torch.float64)
    ax = observed_and_replicated(made("t", torch.tensor(0.3), values)).axes[0]
    drawn = bars(ax)
    assert 5 < len(drawn) <= FEW
    for x, width, height in drawn:
        assert height == pytest.approx(((values >= x - 1e-9) & (values < x + width - 1e-9)).sum(), abs=1)
    assert drawn[:, 2].sum() == 500
    ax = observed_and_replicated(made("t", torch.tensor(2.0), torch.ones(7))).axes[0]
    assert bars(ax)[:, 2].tolist() == [7]
    low, high = ax.get_xlim()
    assert low < 1 < 2 < high


@pytest.mark.parametrize("entries", [1, 3, 100])
def test_a_vector_has_the_quantiles_of_each_entry(entries):
    observed, replicated = torch.rand(entries), torch.rand(60, entries)
    figure = observed_and_replicated(made("t", observed, replicated))
    ax = figure.axes[0]
    segments = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(segments[:, :, 1], np.quantile(replicated, [0.05, 0.95], axis=0).T, rtol=1e-6)
    np.testing.assert_array_equal(segments[:, :, 0], np.repeat(np.arange(entries)[:, None], 2, axis=1))
    np.testing.assert_allclose(colour_of(ax, ORANGE).get_ydata(), observed)
    medians = next(line for line in ax.get_lines() if line.get_marker() == "_")
    np.testing.assert_allclose(medians.get_ydata(), np.median(replicated, axis=0))
    figure.savefig(io.BytesIO())


def test_names_that_would_be_formulae_are_drawn_as_they_are():
    figure = observed_and_replicated(made("$x$", torch.tensor(0.5), torch.rand(9)))
    assert figure.axes[0].get_title(loc="left").startswith(r"\$x\$")
    figure.savefig(io.BytesIO())
