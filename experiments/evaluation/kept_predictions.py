"""Kept predictions: a table with a row for each example, from which scores, intervals and
comparisons can be made again.

Columns are ``example``, the beginning of the digest of its input, and those of
:func:`example_frame`. A file is ``RUN/predictions/METHOD/SET.parquet``.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor
from torch.nn.functional import one_hot

from probattn.inference import Prediction
from probattn.inference.io.files import write_bytes
from probattn.inference.metrics import regression
from probattn.inference.metrics.refinement import FOLDS, refined_log_probs

DIGITS = 12
"""Hexadecimal digits of a digest that are kept."""


def example_frame(prediction: Prediction) -> pd.DataFrame:
    """Return what is known of each example, in float64.

    Of classes ``predicted``, ``confidence``, ``entropy`` and ``mutual_information`` in nats, and
    with labels ``label``, ``log_prob`` of the label in nats, and ``brier``. Of numbers
    ``log_prob``, and of each example's mean over its numbers ``squared_error``, ``absolute_error``,
    ``crps`` and ``width_90``; of a single number ``label``, ``predicted`` and ``std``, too.
    """
    columns = _of_numbers(prediction) if prediction.probs is None else _of_classes(prediction)
    return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})


def _of_classes(prediction: Prediction) -> dict[str, Tensor]:
    columns = {
        "predicted": prediction.predicted,
        "confidence": prediction.confidence.double(),
        "entropy": prediction.entropy.double(),
    }
    if prediction.mutual_information is not None:
        columns["mutual_information"] = prediction.mutual_information.double()
    if (labels := prediction.labels) is not None:
        probs = prediction.require("probs").double()
        columns["label"] = labels
        columns["log_prob"] = prediction.log_prob(labels).double()
        columns["brier"] = (probs - one_hot(labels, probs.shape[1])).square().sum(1)
    return columns


def refined_frame(prediction: Prediction) -> pd.DataFrame:
    """Return :func:`example_frame` with a column ``refined_log_prob`` of classes: the log
    probability of the label after the scaling that is best on other examples."""
    frame = example_frame(prediction)
    if (refined := refined_log_prob(prediction)) is not None:
        frame["refined_log_prob"] = refined.numpy()
    return frame


def refined_log_prob(prediction: Prediction) -> Tensor | None:
    """Return the log probabilities of the labels of classes whose mean is minus the refinement part
    of the NLL, ``(n,)``; None for numbers, or fewer than :data:`FOLDS` examples."""
    if prediction.probs is None or len(prediction) < FOLDS:
        return None
    return refined_log_probs(prediction.probs, prediction.require("labels"))


def _of_numbers(prediction: Prediction) -> dict[str, Tensor]:
    labels = prediction.require("labels")
    mean = prediction.require("mean")
    low, high = regression.interval(prediction, level=0.9)
    errors = {
        "squared_error": (mean - labels).square(),
        "absolute_error": (prediction.median - labels).abs(),
        "crps": prediction.crps(labels),
        "width_90": high - low,
    }
    columns = {"log_prob": prediction.log_prob(labels).double()}
    for name, error in errors.items():
        columns[name] = error.double().reshape(len(labels), -1).mean(1)
    if mean[0].numel() == 1:
        columns["label"] = labels.reshape(-1)
        columns["predicted"] = mean.reshape(-1)
        columns["std"] = prediction.require("variance").sqrt().reshape(-1)
    return columns


def stored_files(run: Path, method: str, name: str) -> tuple[Path, Path]:
    """Return the files of a prediction by a method on a test set, ``METHOD/SET.pt``, and of its
    examples."""
    folder = run / "predictions" / method
    return folder / f"{name}.pt", folder / f"{name}.parquet"


def save_examples(
    file: Path,
    frame: pd.DataFrame,
    keys: Sequence[str],
    *,
    stamp: Mapping[str, Any],
) -> None:
    """Write the examples of a prediction, in float32.

    Args:
        file: its file.
        frame: of the n examples.
        keys: digests of their inputs.
        stamp: what the prediction depends on, as for
            :func:`~probattn.experiments.evaluation.evaluated_run.save_prediction`.
    """
    real = frame.select_dtypes("floating").columns
    frame = frame.astype(dict.fromkeys(real, "float32"))
    frame.insert(0, "example", [key[:DIGITS] for key in keys])
    frame.attrs["stamp"] = dict(stamp)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, parquet(frame))


def parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame in the format Parquet, compressed."""
    content = io.BytesIO()
    real = list(frame.select_dtypes("floating").columns)
    frame.to_parquet(
        content,
        index=False,
        compression="zstd",
        compression_level=19,
        # The bytes of equal significance together, since those of the exponents are alike.
        use_byte_stream_split=real,
        use_dictionary=list(frame.columns.difference(real)),
    )
    return content.getvalue()


def read_examples(file: Path, *, stamp: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return kept examples with this stamp; None without a file, or if it is damaged or of another
    evaluation."""
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError):  # pyarrow's errors are of these types
        return None
    if frame.attrs.get("stamp") != dict(stamp):
        return None
    frame.attrs.clear()  # concatenation compares them
    return frame
