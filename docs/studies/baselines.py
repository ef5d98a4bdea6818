"""Score what one would use without a network on the tasks of *When does it help?*.

``DATA`` holds ``aclImdb`` and ``cola_public``; the split of each task is that of its networks.
Example::

    python docs/studies/baselines.py DATA --out experiments/results/baselines.csv
"""

import argparse
import time
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.config.presets import preset
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.evaluation.baselines import fit_baseline, suited
from probattn.experiments.runs.sources import load_data
from probattn.inference import metrics

PRESETS = {
    "digits": "digits/softmax",
    "CoLA": "kep-svgp/cola-softmax",
    "IMDB": "kep-svgp/imdb-softmax",
}


def scores(task: str, dataset: Dataset) -> list[dict[str, Any]]:
    """Return a row for each baseline, with CPU seconds of training and prediction."""
    rows = []
    for name in suited(dataset):
        start = time.process_time()
        prediction = fit_baseline(name, dataset)(dataset.test)
        seconds = round(time.process_time() - start, 1)
        about = {"task": task, "baseline": name, "n": len(prediction), "cpu_seconds": seconds}
        rows.append(about | metrics.evaluate(prediction))
    return rows


def main() -> None:
    """Write the scores of all tasks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for task, name in PRESETS.items():
        rows += scores(task, load_data(preset(name), options.data))
    pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
