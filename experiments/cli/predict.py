"""``probattn predict``: answers of a trained model to images, texts and rows of tables, with their uncertainty."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Column, Table

from probattn.experiments.cli.terminal import COUNT, SEED, check_file, console, fail, say, show_table
from probattn.experiments.displayable import displayable

if TYPE_CHECKING:
    import pandas as pd

    from probattn.experiments.sharing.inputs import Inputs
    from probattn.experiments.sharing.pipeline import Pipeline


def predict(
    run: Annotated[str, typer.Argument(help="Folder of a run or of a shared model, or the name of one on the hub.")],
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUT...",
            help="Images and folders of images; texts: files with a text a line, .csv, .tsv or .jsonl, - for stdin; or "
            "tables: .csv, .tsv or .jsonl.",
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text itself; may be given several times.")] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the texts in .csv, .tsv and .jsonl files; default that of training.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHAR", help="Character between the cells of .csv; default that of training.")
    ] = None,
    format: Annotated[
        Literal["table", "jsonl", "csv"] | None,
        typer.Option(help="Output; default: by the suffix of --out, else table. Others have all probabilities."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File .csv or .jsonl to write instead of the terminal.")
    ] = None,
    sort: Annotated[
        Literal["entropy", "mutual_information", "confidence", "std"] | None,
        typer.Option(help="Sort from the most to the least uncertain by this measure."),
    ] = None,
    sets: Annotated[
        Literal["plain", "by-class"],
        typer.Option(help="Conformal sets with the level on average, or in every class, which suits rare classes."),
    ] = "plain",
    calibration: Annotated[
        bool, typer.Option(help="Use the temperature, sets and intervals that `probattn evaluate` has fitted.")
    ] = True,
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Number of posterior samples; default: that of the evaluation.")
    ] = None,
    seed: Annotated[int | None, typer.Option(**SEED, help="Seed of the samples; default: of the evaluation.")] = None,
) -> None:
    """Predict images, texts or rows of tables: class, confidence, uncertainty and the classes that are likely enough.

    A regression answers with the mean and an interval.

    Exits with status 1 if an input could not be read; the others are answered.
    """
    import pandas as pd

    from probattn.experiments.sharing import answers as records
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.inference.io.files import write_bytes

    check_file(out, option="--out")
    if out is not None and format is None:
        format = {".jsonl": "jsonl", ".csv": "csv"}.get(out.suffix.lower())
    if out is not None and format in (None, "table"):
        raise ValueError(f"{out}: answers are written as .csv or .jsonl; choose another name with --out, or --format")
    pipeline = Pipeline.open(run)
    read, answers = _read(pipeline, inputs or [], text or [], column=column, delimiter=delimiter), pd.DataFrame()
    if read.values:
        options = {"calibrated": calibration, "by_class": sets == "by-class", "num_samples": num_samples, "seed": seed}
        answers = pipeline.answers(list(read.values.values()), names=list(read.values), **options)
        answers = answers if sort is None else records.sort_answers(answers, sort)
    if format in (None, "table"):
        _show(pipeline, answers, samples=num_samples or pipeline.num_samples, calibrated=calibration)
    else:
        content = {"jsonl": records.to_jsonl, "csv": records.to_csv}[format](answers, read.failures)
        if out is None:
            print(content, end="")
        else:
            write_bytes(out, content.encode())
            say(f"{out}: {len(answers)} answers")
    if read.failures:
        names = [reason if name in reason else f"{name}: {reason}" for name, reason in read.failures.items()]
        fail("\n".join([f"{len(names)} of {len(names) + len(answers)} inputs could not be read", *names]))


def _read(
    pipeline: "Pipeline", paths: list[Path], texts: list[str], *, column: str | None, delimiter: str | None
) -> "Inputs":
    """Read what was given, in the kind that the model takes.

    Raises:
        ValueError: nothing was given, or inputs of another kind.
    """
    from probattn.experiments.data.images.files import is_image
    from probattn.experiments.sharing.inputs import read_images, read_rows, read_texts

    kind = "rows of a table" if pipeline.columns else "texts" if pipeline.image_shape is None else "images"
    image = next((path for path in paths if is_image(path.name)), None)
    if not paths and not texts:
        raise ValueError(f"there is nothing to predict: this model takes {kind}, see `probattn predict --help`")
    if (image is not None and kind != "images") or (texts and kind != "texts"):
        given = "--text gives it a text" if texts else f"{image} is an image"
        raise ValueError(f"this model takes {kind}, and {given}")
    data = pipeline.run.settings.data
    delimiter = delimiter or getattr(data, "delimiter", None)
    if kind == "images":
        background = getattr(pipeline.run.settings.data, "background", "white")
        return read_images(paths, shape=pipeline.image_shape, background=background)
    if kind == "texts":
        column = column or getattr(data, "text_column", "text")
        return read_texts(paths, texts=texts, column=column, delimiter=delimiter)
    return read_rows(paths, encoding=pipeline.run.dataset.encoding, delimiter=delimiter)


def _show(pipeline: "Pipeline", answers: "pd.DataFrame", *, samples: int, calibrated: bool) -> None:
    """Print the answers as a table, with what its columns mean."""
    fit = pipeline.calibration if calibrated else None
    classes, level = len(pipeline.classes), "90" if fit is None else f"{100 * fit.level:g}"
    if not pipeline.classes:
        titles = {"predicted": "mean", "low": "low", "high": "high", "std": "std"}
        promise = "for inputs like the validation data" if fit else "if the model is right; evaluate calibrates it"
        words = [
            "mean, std: of the predictive distribution, in the units of the label",
            f"low, high: {level} % interval, which holds the label with that probability {promise}",
        ]
    else:
        titles = {"predicted": "class", "confidence": "conf.", "entropy": "entropy", "mutual_information": "mut. inf."}
        words = [
            f"conf.: probability of the class, the mean over {samples} posterior samples",
            f"entropy: total uncertainty in nats, at most that of {classes} classes equally likely",
            "mut. inf.: mutual information, how much the samples disagree; it does not",
            "  say whether an input is like the training data",
            "no prediction sets: `probattn evaluate RUN` fits them",
        ]
    if fit and pipeline.classes:
        titles |= {"accepted": "accept", "set": "set"}
        words[-1] = f"set: holds the true class with probability {level} % for inputs like the validation data"
        words += [f"accept: of accepted answers at most {100 * fit.max_risk:g} % are expected to be wrong"]
        if samples != fit.num_samples:
            words += [f"  calibrated with {fit.num_samples} samples: with {samples} these hold approximately"]
    texts = ("input", "class", "set")
    table = Table(*(Column(title, overflow="fold") for title in ("input", *titles.values())))
    for column in table.columns:
        column.justify = "left" if column.header in texts else "right"
    for answer in answers.to_dict("records"):
        table.add_row(*(escape(displayable(_cell(answer[name]))) for name in ("input", *titles)))
    if len(answers):
        (console.print if console.is_terminal else show_table)(table)  # a terminal folds long names, too
        say("\n".join(words))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else ", ".join(value) or "none"
