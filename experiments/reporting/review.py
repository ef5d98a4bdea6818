"""A page on which a person reviews the answers of an evaluated run, the least certain first."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from torch import Tensor

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.dataset import Part
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.tables.table_dataset import Table
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.decision_notes import reasons
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run, run_stamp
from probattn.experiments.evaluation.example_intervals import share_interval
from probattn.experiments.evaluation.methods import POSTERIOR
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting.example_cards import picture
from probattn.experiments.reporting.html import render
from probattn.experiments.runs.folder import WEIGHTS
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.answers import (
    class_answers,
    note,
    note_shares,
    number_answers,
    sort_answers,
)
from probattn.inference import Prediction
from probattn.inference.io.files import write_bytes

FILE = "review.html"  # in the folder of a run
# Largest number of examples of a page, and largest size of all of them in bytes.
MAX_EXAMPLES = 5_000
MAX_BYTES = 4_800_000
# An example of more than this share of MAX_BYTES, such as a book, is left out.
MAX_SHARE = 0.05
# Number of positions of the slider, about, and of the classes of a set that are named.
STEPS = 200
MAX_NAMES = 10
# Bytes of an example beside its picture, about.
AROUND = 350
# Longest side and format of pictures, the best first; the first that fits is taken.
FORMS: tuple[dict[str, Any], ...] = (
    {"side": 96, "form": "png"},
    {"side": 64, "form": "webp", "quality": 75},
    {"side": 40, "form": "webp", "quality": 60},
    {"side": 32, "form": "webp", "quality": 20},
    {"side": 24, "form": "webp", "quality": 20},
    {"side": 16, "form": "webp", "quality": 10},
)


def page(
    prediction: Prediction,
    data: Part | None,
    *,
    name: str,
    classes: Sequence[str],
    calibration: Calibration | None,
    settings: Mapping[str, Any],
    unseen: pd.DataFrame | None = None,
) -> str:
    """Return the page of a run as HTML that needs no other file.

    It has at most :data:`MAX_EXAMPLES` examples in :data:`MAX_BYTES`, the least certain. The counts
    of its slider are of all examples.

    Args:
        prediction: of the test part, with labels, not calibrated.
        data: the test part.
        name: name of the run.
        classes: their names; none for numbers, whose page has no slider.
        calibration: of the run.
        settings: of the run, by name; say how its file calls the columns.
        unseen: what the network does not see of each example, as
            :meth:`~probattn.experiments.data.dataset.Dataset.unseen` returns it.
    """
    if unseen is None:
        unseen = pd.DataFrame(index=range(len(prediction)))
    table = answers(prediction, classes, calibration)
    listed = _with_notes(table.head(MAX_EXAMPLES), unseen)
    kinds = list(dict.fromkeys(itertools.chain.from_iterable(listed["kinds"])))
    columns, label = _columns(data, settings)
    steps: list[dict[str, Any]] = []
    start = 0
    if classes:
        accepted = math.inf if calibration is None else calibration.confidence or 0.0
        wrong = (table["predicted"] != table["true"]).to_numpy()
        steps = slider_steps(table["confidence"].to_numpy(), wrong, accepted=accepted)
        thresholds = [step["threshold"] for step in steps]
        start = thresholds.index(accepted if math.isfinite(accepted) else None)
    kept = within(_entries(listed, data))
    about = {
        "columns": columns,
        "label": columns.index(label),
        "classes": list(classes),
        "kinds": kinds,
        "steps": steps,
        "total": len(table),
    }
    why = reasons(0.9 if calibration is None else calibration.level)
    return render(
        "review.html",
        name=name,
        about=htmlsafe_json_dumps(about),
        examples=Markup("[{}]").format(Markup(",\n").join(kept)),
        count=len(kept),
        total=len(table),
        classes=classes,
        has_notes=bool(kinds),
        reasons={kind: why[kind] for kind in kinds if kind in why},
        has_information="mutual_information" in table,
        last=len(steps) - 1,
        start=start,
    )


def write_beside(folder: Path, result: RunResult) -> None:
    """Write the page of a run that was just evaluated into its folder, atomically."""
    weights = run_stamp(folder)[WEIGHTS]
    calibration = Calibration.load(folder, weights=weights, classes=len(result.classes))
    content = page(
        result.test,
        result.data,
        name=result.name,
        classes=result.classes,
        calibration=calibration,
        settings=result.settings,
        unseen=result.unseen,
    )
    write_bytes(folder / FILE, content.encode())


def of_run(folder: Path, *, root: Path | None = None, trust_code: bool = False) -> str:
    """Return the page of an evaluated run by its stored predictions.

    Args:
        folder: the run's folder.
        root: folder of the data sets, or a user's own data; default those of the run.
        trust_code: as for :func:`~probattn.experiments.runs.load.open_run`.

    Raises:
        SettingsError: a run that was not evaluated, has changed since, or has no stored
            predictions on these test data.
        DatasetError: the data cannot be read.
    """
    evaluated = read_evaluated_run(folder, trust_code=trust_code)
    run = open_run(folder, root=root, trust_code=trust_code)
    test = run.dataset.test
    stored = evaluated.predictions(["test"], POSTERIOR)
    if evaluated.content["data"].get("test") != test.digest or not stored:
        raise SettingsError(
            f"{folder} has no stored predictions on these test data: evaluate it with "
            f"`probattn evaluate {folder}`, which also writes {FILE}"
        )
    classes = run.dataset.classes
    return page(
        stored["test"],
        test,
        name=run.name,
        classes=classes,
        calibration=Calibration.load(folder, weights=run.weights, classes=len(classes)),
        settings=run.settings.flat(),
        unseen=run.dataset.unseen(test),
    )


def answers(
    prediction: Prediction, classes: Sequence[str], calibration: Calibration | None
) -> pd.DataFrame:
    """Return the answers with their true values, the least certain first, indexed by the number of
    the example."""
    labels = prediction.require("labels").flatten().tolist()
    if not classes:
        numbers = number_answers(prediction, calibration=calibration)
        return sort_answers(numbers.assign(true=labels), "std")
    table = class_answers(prediction, classes, calibration=calibration)
    table["true"] = [classes[label] for label in labels]
    return sort_answers(table.drop(columns="probs"), "confidence")


def _with_notes(table: pd.DataFrame, unseen: pd.DataFrame) -> pd.DataFrame:
    """Return answers with ``notes`` on what is unseen of their inputs or odd, and its ``kinds``."""
    shares = note_shares(table, unseen.loc[table.index])
    present = shares > 0
    kinds = [list(shares.columns[row]) for row in present.to_numpy()]
    notes = [note(row) if row.any() else "" for _, row in shares.iterrows()]
    return table.assign(notes=notes, kinds=kinds)


def slider_steps(
    confidence: np.ndarray, is_wrong: np.ndarray, *, accepted: float = math.inf
) -> list[dict[str, Any]]:
    """Return what each position of the slider says: about :data:`STEPS` thresholds, ascending.

    A step has its ``threshold``, how many answers have at least this confidence (``answered``), how
    many of them are ``wrong``, and the exact 95 % interval of their error rate (``low``, ``high``).
    The first has all answers. The last, whose threshold is None, has none.

    Args:
        confidence: of each answer ``(n,)``.
        is_wrong: which answers are wrong ``(n,)``.
        accepted: a further threshold, unless it is infinite.
    """
    ascending = np.sort(confidence)
    places = np.linspace(0, len(ascending) - 1, min(len(ascending), STEPS))
    thresholds = ascending[places.round().astype(int)].tolist()
    if math.isfinite(accepted):
        thresholds.append(accepted)
    steps = []
    for threshold in [*sorted(set(thresholds)), math.inf]:
        is_answered = confidence >= threshold
        answered = int(is_answered.sum())
        wrong = int(is_wrong[is_answered].sum())
        low, high = share_interval(wrong, answered) if answered else (0.0, 1.0)
        step = {"threshold": _finite(threshold), "answered": answered, "wrong": wrong}
        steps.append(step | {"low": low, "high": high})
    return steps


def within(entries: Iterable[Mapping[str, Any]]) -> list[Markup]:
    """Return entries as JSON that is safe inside of HTML, in their order, while they fit in
    :data:`MAX_BYTES`; single ones that are very long are left out."""
    kept: list[Markup] = []
    free = MAX_BYTES
    for entry in entries:
        text = htmlsafe_json_dumps(entry, separators=(",", ":"))
        size = len(text) + 2  # ASCII, and what separates it from the next
        if size > MAX_SHARE * MAX_BYTES:
            continue
        free -= size
        if free < 0:
            break
        kept.append(text)
    return kept


def _columns(data: Part | None, settings: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the columns of the downloaded list, which are those of the run's file where it is
    one, and which of them has the labels."""
    label = str(settings.get("data.label_column", "label"))
    if isinstance(data, Table) and data.cells is not None:
        return list(data.cells), label
    if isinstance(data, Texts):
        return [str(settings.get("data.text_column", "text")), label], label
    has_files = isinstance(data, Images) and data.files
    return ["file" if has_files else "example", label], label


def _entries(table: pd.DataFrame, data: Part | None) -> Iterator[dict[str, Any]]:
    """Yield what the page has of each example: its answer, its cells in the downloaded list, and a
    picture or text."""
    form: dict[str, Any] = {}
    if isinstance(data, Images):
        form = picture_form(data.images[table.index.tolist()])
    for number, answer in zip(table.index.tolist(), table.to_dict("records"), strict=True):
        entry = {"number": number} | {key: _finite(value) for key, value in answer.items()}
        if "set" in answer:
            entry |= {"set": answer["set"][:MAX_NAMES], "size": len(answer["set"])}
        entry["cells"] = [str(number), ""]
        if isinstance(data, Texts):
            entry |= {"kind": "text", "cells": [data.texts[number], ""]}
        elif isinstance(data, Table) and data.cells is not None:
            entry |= {"kind": "row", "cells": list(map(str, data.cells.iloc[number]))}
        elif isinstance(data, Images):
            entry["picture"] = picture(data.images[number], **form)
            if data.files:
                entry["cells"] = [data.files[number], ""]
        yield entry


def _finite(value: Any) -> Any:
    """Return a value, or None for numbers that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def picture_form(images: Tensor) -> dict[str, Any]:
    """Return the first of :data:`FORMS` in which uint8 images ``(n, C, H, W)`` fit in a page."""
    # Nine tenths of what is left for each picture, since a sample is measured.
    room = 0.9 * (MAX_BYTES / max(1, len(images)) - AROUND)
    sample = images[:: max(1, len(images) // 50)]
    for form in FORMS:
        if fmean(len(picture(pixels, **form)) for pixels in sample) <= room:
            return form
    return FORMS[-1]
