"""Results of a study that a second call continues: a CSV of the scores, and the kept predictions
of the test examples beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.displayable import csv_text
from probattn.experiments.evaluation.evaluated_run import score, to_frame
from probattn.experiments.evaluation.kept_predictions import DIGITS, parquet, refined_frame
from probattn.inference import Prediction, TemperatureScaling
from probattn.inference.io.files import write_files

Predictions = Mapping[str, Mapping[str, Prediction]]
"""Name of a method → its predictions of the sets, ``valid`` and ``test`` among them."""


class KeptResults:
    """Scores and kept predictions of the networks of a study.

    Args:
        path: the CSV; the kept predictions are beside it, as ``.parquet``.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.kept = path, path.with_suffix(".parquet")
        self.scores, self.examples = pd.DataFrame(columns=["run", "seed"]), pd.DataFrame()
        if self.kept.exists():
            self.scores, self.examples = pd.read_csv(path), pd.read_parquet(self.kept)
        self.done = set(zip(self.scores["run"], self.scores["seed"], strict=True))

    def add(
        self,
        run: str,
        seed: int,
        methods: Predictions,
        keys: Sequence[str],
    ) -> None:
        """Add a network, and write all results.

        Args:
            run: its name.
            seed: of the network.
            methods: predictions by each method.
            keys: digests of the test examples.
        """
        scores, frames = {}, [self.examples]
        for method, predictions in methods.items():
            scores[method] = score(predictions)
            frame = refined_frame(predictions["test"])
            frame.insert(0, "example", [key[:DIGITS] for key in keys])
            frames.append(frame.assign(run=run, seed=seed, method=method, set="test"))
        of_network = to_frame(scores, run=run, seed=seed)
        self.scores = pd.concat([self.scores, of_network], ignore_index=True)
        self.examples = pd.concat(frames, ignore_index=True)
        contents = {
            self.path: csv_text(self.scores).encode(),
            self.kept: parquet(self.examples),
        }
        write_files(contents)
        self.done.add((run, seed))


def with_scaling(plain: Mapping[str, Prediction]) -> dict[str, Mapping[str, Prediction]]:
    """Return the predictions of some sets as they are, ``posterior``, and after ``temperature``
    scaling that is fitted to ``valid``."""
    scaling = TemperatureScaling().fit_prediction(plain["valid"])
    scaled = {name: scaling.scaled(prediction) for name, prediction in plain.items()}
    return {"posterior": plain, "temperature": scaled}
