"""Results of synthetic runs, for plots and reports."""

from dataclasses import replace

import pytest
import torch

from probattn.experiments.evaluation.run_result import RunResult
from probattn.inference import metrics


def make_result(name="softmax", *, n=60, classes=4, channels=1, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, classes, generator=generator)).softmax(-1)
    labels = torch.where(
        torch.rand(n, generator=generator) < 0.7,
        probs.argmax(-1),
        torch.randint(0, classes, (n,), generator=generator),
    )
    if n:
        labels[0] = (probs[0].argmax() + 1) % classes  # at least one wrong answer
    ramp = torch.arange(n, dtype=torch.uint8)[:, None, None, None]
    given = {
        "name": name,
        "command": f"probattn train {name}",
        "settings": {"epochs": 2, "optimiser.lr": 1e-3},
        "metrics": metrics.evaluate(probs, labels),
        "steps": [
            {"step": t, "epoch": t // 4, "loss": 3.5 - t / 4, "nll": 2.5 - t / 4, "kl/a.u": 1.0, "lr": 0.1}
            for t in range(8)
        ],
        "epochs": [{"epoch": e, "step": 4, "valid/accuracy": 0.5 + e / 4, "valid/nll": 1 - e / 4} for e in (0, 1)],
        "probs": probs,
        "labels": labels,
        "images": ramp.expand(n, channels, 5, 5).contiguous(),  # image i is filled with i
        "classes": tuple(f"class {c}" for c in range(classes)),
        "spectra": {},
        "posterior": [],
        "variants": {},
    }
    return RunResult(**(given | changes))


def make_probabilistic(name="kep-svgp", n=60, **changes):
    spectra = {"network.blocks.0.attention": (torch.tensor([[4.0, 2, 1], [3, 1, 0.5]]), torch.tensor([[4.0, 2]] * 2))}
    rows = [
        {
            "site": "network.blocks.0.attention.u",
            "kl": 60.0,
            "size": 120,
            "prior_std": 2.0,
            "posterior_std": 0.5,
        },
        {
            "site": "network.blocks.1.attention.u",
            "kl": 3.0,
            "size": 12,
            "prior_std": 1.0,
            "posterior_std": 1.5,
        },
    ]
    posterior = [{**row, "posterior_mean_rms": 0.75} for row in rows]
    base = make_result(name, seed=1, n=n)
    variants = {"drawn from q": base.metrics, "drawn from the prior": dict.fromkeys(metrics.DISPLAY, 0.4321)}
    similarity = {"network.blocks.0.attention": 0.25, "network.blocks.1.attention": 0.75}
    given = {"spectra": spectra, "posterior": posterior, "variants": variants, "similarity": similarity}
    return replace(base, **(given | changes))


@pytest.fixture
def result():
    """Function that builds the result of a softmax run: n predictions, some wrong, where image i is filled with i."""
    return make_result


@pytest.fixture
def probabilistic():
    """Function that builds the result of a run with latent sites."""
    return make_probabilistic
