"""Results of runs that were never trained."""

import pandas as pd
import pytest
import torch

from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.run_result import RunResult
from probattn.inference import metrics
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.diagnostics.convergence import SiteConvergence

LAYERS = tuple(f"network.blocks.{number}.attention" for number in range(2))


@pytest.fixture(scope="session")
def result():
    """Function that builds the result of a run with latent sites from its predictions, where image
    i is filled with i.

    What is given beside the predictions replaces parts of the result; ``sets`` are scores on
    further test sets by name.
    """

    def build(test, *, sets=None, **changes):
        count = 0 if test.probs is None else test.probs.shape[1]
        images = torch.arange(len(test), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 5, 5)
        scores = metrics.evaluate(test)
        site = {"num_data": 100, "std_ratio": (0.25, 0.25, 0.25)}
        scale, share = torch.tensor([[4.0, 2]] * 2), torch.tensor([0.75, 0.85])
        parts = {
            "name": "kep-svgp",
            "command": "probattn train kep-svgp",
            "settings": {"epochs": 2, "optimiser.lr": 1e-3},
            "scores": pd.DataFrame([scores | {"n": len(test)}], index=["test"]),
            "steps": [
                {"step": t, "epoch": t // 4, "loss": 3.5, "nll": 2.5, "kl/a.u": 1.0, "lr": 0.1}
                for t in range(8)
            ],
            "epochs": [
                {"epoch": e, "step": 4, "valid/accuracy": 0.5, "valid/nll": 1.0} for e in (0, 1)
            ],
            "test": test,
            "data": Images(images.contiguous(), test.labels.flatten().long()),
            "classes": tuple(f"class {number}" for number in range(count)),
            "spectra": {
                LAYERS[0]: Spectrum(
                    torch.tensor([[4.0, 2, 1], [3, 1, 0.5]]), scale, share, share + 0.1
                )
            },
            "posterior": [
                SiteConvergence(site=f"{layer}.u", size=12, kl=3.0, **site) for layer in LAYERS
            ],
            "variants": dict.fromkeys(
                ("at its mean", "drawn from q", "drawn from the prior"), scores
            ),
            "similarity": dict.fromkeys(LAYERS, 0.25),
        }
        if sets:
            further = pd.DataFrame(list(sets.values()), index=list(map(displayable, sets)))
            parts["scores"] = pd.concat([parts["scores"], further])
        return RunResult(**(parts | changes))

    return build
