"""``probattn predict``: answers of a trained model to images, texts and rows of tables, with their uncertainty."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, Sets, check_file, fail, say, show_metrics

if TYPE_CHECKING:
    import pandas as pd

    from probattn.experiments.sharing.pipeline import Pipeline

INPUTS = "Images and folders; texts: files with a text a line, .csv, .tsv or .jsonl, - for stdin; tables: .csv, …"
COLUMN = "Column of the texts in .csv, .tsv and .jsonl files; default that of training."
DELIMITER = "Character between the cells of .csv; default that of training."
FORMAT = "Output; default: by the suffix of --out, else table. Others have all probabilities."
Format = Literal["table", "jsonl", "csv"]
Measure = Literal["entropy", "mutual_information", "confidence", "std"]
# What the columns of the answers mean, of numbers and of classes, without and with a calibration.
NUMBERS = """\
std: of the predictive distribution; all in the units of the label
low, high: {level:g} % interval, which holds the label with that probability """
CLASSES = """\
confidence: probability of the class, the mean over {samples} posterior samples
entropy: total uncertainty in nats, at most that of {classes} classes equally likely
mutual information: how much samples disagree, not whether an input is like the training data
"""
SETS = """\
set: holds the true class with probability {level:g} % for inputs like the validation data
accepted: of these answers at most {risk:g} % are expected to be wrong
both were calibrated with {calibrated} samples"""


def predict(
    run: Annotated[str, typer.Argument(help="Folder of a run or of a shared model, or the name of one on the hub.")],
    inputs: Annotated[list[Path] | None, typer.Argument(metavar="INPUT...", help=INPUTS)] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text itself; may be given several times.")] = None,
    column: Annotated[str | None, typer.Option(help=COLUMN)] = None,
    delimiter: Annotated[str | None, typer.Option(metavar="CHAR", help=DELIMITER)] = None,
    format: Annotated[Format | None, typer.Option(help=FORMAT)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File .csv or .jsonl to write.")] = None,
    sort: Annotated[Measure | None, typer.Option(help="Sort from the most to the least uncertain.")] = None,
    sets: Sets = "plain",
    calibration: Annotated[bool, typer.Option(help="Use what `probattn evaluate` has fitted.")] = True,
    num_samples: Annotated[int | None, typer.Option(**COUNT, help="Posterior samples; default: of the run.")] = None,
    seed: Annotated[int | None, typer.Option(**SEED, help="Seed of the samples; default: of the evaluation.")] = None,
) -> None:
    """Predict images, texts or rows of tables: class, confidence, uncertainty and the classes that are likely enough.

    A regression answers with the mean and an interval.

    Exits with status 1 if an input could not be read; the others are answered.
    """
    import pandas as pd

    from probattn.experiments.sharing import answers as records
    from probattn.experiments.sharing.inputs import read_inputs
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.inference.io.files import write_bytes

    check_file(out)
    if out is not None:
        format = format or {".jsonl": "jsonl", ".csv": "csv"}.get(out.suffix.lower())
        if format in (None, "table"):
            raise ValueError(f"{out}: answers are written as .csv or .jsonl; choose another --out, or --format")
    pipeline, answers = Pipeline.open(run), pd.DataFrame()
    read = read_inputs(pipeline, inputs or [], text or [], column=column, delimiter=delimiter)
    if read.values:
        options = {"calibrated": calibration, "by_class": sets == "by-class", "num_samples": num_samples, "seed": seed}
        answers = pipeline.answers(list(read.values.values()), names=list(read.values), **options)
        answers = answers if sort is None else records.sort_answers(answers, sort)
    if format not in (None, "table"):
        content = {"jsonl": records.to_jsonl, "csv": records.to_csv}[format](answers, read.failures)
        if out is None:
            print(content, end="")
        else:
            write_bytes(out, content.encode())
            say(f"{out}: {len(answers)} answers")
    elif len(answers):
        _show(pipeline, answers, samples=num_samples or pipeline.num_samples, calibrated=calibration)
    if read.failures:
        names = [reason if name in reason else f"{name}: {reason}" for name, reason in read.failures.items()]
        fail("\n".join([f"{len(names)} of {len(names) + len(answers)} inputs could not be read", *names]))


def _show(pipeline: "Pipeline", answers: "pd.DataFrame", *, samples: int, calibrated: bool) -> None:
    """Print the answers as a table, with what its columns mean."""
    from probattn.experiments.reporting.tables import Table

    fit, classes = pipeline.calibration if calibrated else None, len(pipeline.classes)
    if classes:
        words = CLASSES + (SETS if fit else "no prediction sets: `probattn evaluate RUN` fits them")
    else:
        words = NUMBERS + ("for inputs like the validation data" if fit else "if the model is right")
    values = {"level": 90, "samples": samples, "classes": classes}
    if fit:
        values |= {"level": 100 * fit.level, "risk": 100 * fit.max_risk, "calibrated": fit.num_samples}
    frame = answers.drop(columns="probs", errors="ignore").map(_cell)
    show_metrics(Table(frame.rename(columns=lambda name: name.replace("_", " "))))
    say(words.format(**values))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else ", ".join(value) or "none"
