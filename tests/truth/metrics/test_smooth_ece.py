"""The smooth calibration error, against its definition on a grid."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from probattn.inference.metrics.calibration_errors import smece

pytest.importorskip("relplot")


def smoothed_error(confidence, residual, width):
    """∫ |Σ_i r_i K_σ(t − f_i)| dt / n, of a normal kernel that is reflected at 0 and 1."""
    grid = np.linspace(0, 1, 2001)
    kernel = sum(
        norm.pdf(grid, 2 * period + sign * confidence[:, None], width)
        for period in range(-2, 3)
        for sign in (1, -1)
    )
    return np.trapezoid(abs(residual @ kernel), grid) / len(residual)


def test_it_is_the_width_that_is_its_own_smoothed_error():
    probs = (2 * torch.randn(300, 3, dtype=torch.float64)).softmax(-1)
    labels = torch.randint(3, (300,))
    confidence = probs.amax(1).numpy()
    residual = (probs.argmax(1) == labels).double().numpy() - confidence
    width = smece(probs, labels)
    assert smoothed_error(confidence, residual, width) == pytest.approx(width, rel=0.05)
