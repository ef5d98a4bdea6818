"""Search of the learning rate and the dropout of softmax and anchored attention, on validation data
of splits that no other study has.

Both layers have the same number of settings. A second call continues::

    python -m docs.studies.settings mnist --splits 30 --out experiments/results/settings.csv
"""

import argparse
import itertools
from pathlib import Path

import pandas as pd

from docs.studies.ensembles import MNIST
from probattn.experiments.config.presets import preset
from probattn.experiments.config.settings import Settings
from probattn.experiments.runs.build import build, loaders
from probattn.experiments.runs.sources import load_data
from probattn.inference import fit

TASKS = {"digits": [], "mnist": [MNIST, "network.patch_size=4"]}
"""Task → changes of the settings of all its networks."""
EPOCHS = {"digits": None, "mnist": 30}
"""Task → epochs; None takes the preset's."""
ANCHORS = {"digits": 32, "mnist": 16}
RATES = (0.001, 0.002, 0.003)
DROPOUTS = (0.1, 0.2)
KEYS = ["task", "layer", "lr", "dropout", "split"]


def validation_nll(settings: Settings) -> float:
    """Train a network, and return the NLL of its best epoch on validation data."""
    dataset = load_data(settings, None)
    model, guide = build(settings, dataset)
    batches = loaders(settings, dataset, device="cpu")
    history = fit(model, guide, *batches, options=settings.train.options, progress=False)
    return min(epoch["valid/nll"] for epoch in history.epochs)


def main() -> None:
    """Train what the file lacks, and write it after each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--splits", default="30,31")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = pd.read_csv(arguments.out) if arguments.out.exists() else pd.DataFrame(columns=KEYS)
    done = set(found[KEYS].itertuples(index=False, name=None))
    splits = map(int, arguments.splits.split(","))
    layers = ("softmax", "anchored")
    for split, rate, dropout, layer in itertools.product(splits, RATES, DROPOUTS, layers):
        task = arguments.task
        if (task, layer, rate, dropout, split) in done:
            continue
        changes = [
            *TASKS[task],
            "network.standardise=true",
            f"train.lr={rate}",
            f"network.dropout={dropout}",
            f"data.seed={split}",
            f"train.seed={split}",
        ]
        if layer == "anchored":
            changes.append(f"layer.anchors={ANCHORS[task]}")
        settings = preset(f"digits/{layer}").with_changes(changes, epochs=EPOCHS[task])
        values = (task, layer, rate, dropout, split, validation_nll(settings))
        row = pd.DataFrame([values], columns=[*KEYS, "valid_nll"])
        found = pd.concat([found, row], ignore_index=True)
        found.to_csv(arguments.out, index=False, float_format="%.6g")
        print(*values, flush=True)


if __name__ == "__main__":
    main()
