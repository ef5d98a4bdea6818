"""Report of any classifier, from its predictions alone."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.data.dataset import Part
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.decision_notes import decision_notes
from probattn.experiments.evaluation.evaluated_run import score
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting import report
from probattn.inference import Prediction


def write_classifier_report(
    path: Path | str,
    test: Prediction,
    valid: Prediction,
    *,
    classes: Sequence[str],
    data: Part | None = None,
    level: float = 0.9,
    max_risk: float = 0.05,
    title: str = "Classifier",
) -> RunResult:
    """Write the report that ``probattn evaluate`` writes of a run, of a classifier of any origin.

    Args:
        path: the HTML file, which is written over.
        test: prediction of the test data with labels, such as of
            :class:`~probattn.inference.Logits` or :class:`~probattn.inference.Kept`.
        valid: prediction with labels that sets and accepted answers are fitted to.
        classes: their names.
        data: the test data, ``Images`` or ``Texts``, for pictures and texts of single examples.
        level: share of labels in prediction sets.
        max_risk: largest error rate of accepted answers.
        title: heading of the page.

    Returns:
        What the page displays, such as ``scores`` and ``decisions``.

    Raises:
        ValueError: no labels; another number of names than of classes.
    """
    names = tuple(classes)
    width = test.require("probs").shape[-1]
    if len(names) != width:
        raise ValueError(f"classes must be {width} names, got {len(names)}")
    calibration = Calibration.fit(
        valid,
        level=level,
        max_risk=max_risk,
        weights="",
        num_samples=1,
        seed=0,
    )
    by_set = score({"valid": valid, "test": test})
    by_class = calibration.by_class(test, names)
    by_set |= {f"class/{name}": row for name, row in by_class.items()}
    result = RunResult(
        name=title,
        command="",
        settings={},
        scores=pd.DataFrame(list(by_set.values()), index=list(by_set)),
        steps=[],
        epochs=[],
        test=test,
        data=data,
        classes=names,
        spectra={},
        posterior=[],
        variants={},
        decisions=calibration.evaluate(test),
        decision_notes=decision_notes(calibration, names, test),
    )
    report.write(Path(path), [report.section(result)], title=title)
    return result
