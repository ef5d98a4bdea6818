"""``probattn predict``: answers of a trained model to images, texts and rows of tables, with their uncertainty."""

import math
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from probattn.experiments.cli.terminal import COUNT, SEED, check_file, console, fail, say, show_table
from probattn.experiments.displayable import displayable
from probattn.inference.io.files import write_bytes

if TYPE_CHECKING:
    from probattn.experiments.sharing.answers import Answer
    from probattn.experiments.sharing.inputs import Inputs
    from probattn.experiments.sharing.pipeline import Pipeline

FORMATS = {".jsonl": "jsonl", ".csv": "csv"}
"""Formats by the suffix of ``--out``."""
NUMBER_COLUMNS = ("mean", "90 % interval", "std")
"""Columns of a regression's answers."""


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
        typer.Option(help="Output; default: by the suffix of --out, else table. jsonl also has all probabilities."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write instead of the terminal.")] = None,
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Number of posterior samples; default: that of the evaluation.")
    ] = None,
    seed: Annotated[int | None, typer.Option(**SEED, help="Seed of the samples; default: of the evaluation.")] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Frozen encoder of a shared text model that has one.")
    ] = None,
) -> None:
    """Predict images, texts or rows of tables: class, confidence, uncertainty and the classes that are likely enough.

    A regression answers with the mean and a 90 % interval.

    Exits with status 1 if an input could not be read; the others are answered.
    """
    from probattn.experiments.sharing import answers as records
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.inference.io.files import write_bytes

    check_file(out, option="--out")
    chosen = format or (FORMATS.get(out.suffix.lower(), "table") if out else "table")
    pipeline = Pipeline.open(run, encoder=encoder)
    read = _read(pipeline, inputs or [], text or [], column=column, delimiter=delimiter)
    found = _answer(pipeline, read, num_samples=num_samples, seed=seed) if read.values else []
    if chosen == "table":
        _show(pipeline, found, num_samples or pipeline.num_samples, out)
    else:
        content = {"jsonl": records.to_jsonl, "csv": records.to_csv}[chosen](found, read.failures)
        if out is None:
            print(content, end="")
        else:
            write_bytes(out, content.encode())
    if out is not None:
        say(f"{out}: {len(found)} answers")
    if read.failures:
        names = [reason if name in reason else f"{name}: {reason}" for name, reason in read.failures.items()]
        fail("\n".join([f"{len(names)} of {len(names) + len(found)} inputs could not be read", *names]))


def _read(
    pipeline: "Pipeline", paths: list[Path], texts: list[str], *, column: str | None, delimiter: str | None
) -> "Inputs":
    """Read what was given, in the kind that the model takes.

    Raises:
        ValueError: nothing was given, or ``--text`` for a model of images.
    """
    from probattn.experiments.data.images.files import is_image
    from probattn.experiments.sharing.inputs import read_images, read_rows, read_texts

    if not paths and not texts:
        kind = "tables" if pipeline.columns else "texts" if pipeline.image_shape is None else "images"
        raise ValueError(f"there is nothing to predict: name {kind}, see `probattn predict --help`")
    image = next((path for path in paths if is_image(path.name)), None)
    if image is not None and pipeline.image_shape is None:
        kind = "texts" if pipeline.columns is None else "rows of a table"
        raise ValueError(f"this model takes {kind}, and {image} is an image")
    data = pipeline.run.settings.data
    delimiter = delimiter or getattr(data, "delimiter", None)
    if pipeline.columns is not None:
        if texts:
            raise ValueError("this model takes rows of a table, and --text gives it a text: name a .csv or .jsonl file")
        return read_rows(paths, encoding=pipeline.run.dataset.encoding, delimiter=delimiter)
    if pipeline.image_shape is None:
        column = column or getattr(data, "text_column", "text")
        return read_texts(paths, texts=texts, column=column, delimiter=delimiter)
    if texts:
        raise ValueError("this model takes images, and --text gives it a text: name image files or folders")
    background = getattr(pipeline.run.settings.data, "background", "white")
    return read_images(paths, shape=pipeline.image_shape, background=background)


def _answer(pipeline: "Pipeline", read: "Inputs", *, num_samples: int | None, seed: int | None) -> "list[Answer]":
    import torch

    from probattn.experiments.sharing.answers import answers, number_answers

    inputs = read.values if pipeline.image_shape is None else torch.stack(read.values)
    prediction = pipeline.predict(inputs, num_samples=num_samples, seed=seed)
    if prediction.probs is None:
        return number_answers(prediction, read.names)
    quantile = None if pipeline.evaluation is None else pipeline.evaluation.threshold
    return answers(prediction, read.names, pipeline.classes, quantile=quantile)


def _show(pipeline: "Pipeline", found: "list[Answer]", num_samples: int, out: Path | None) -> None:
    """Print the answers as a table, or write it to a file, with what its columns mean."""
    if not found:
        return
    if not pipeline.classes:
        words = [
            "mean, std: of the predictive distribution, in the units of the label",
            "90 % interval: holds the label with probability 90 % if the model is right",
        ]
        table = Table(Column("input", overflow="fold"), *(Column(name, justify="right") for name in NUMBER_COLUMNS))
        for each in found:
            interval = f"{each.low:.4g} to {each.high:.4g}"
            table.add_row(escape(displayable(each.input)), f"{each.predicted:.4g}", interval, f"{each.std:.4g}")
        _write(table, words, out)
        return
    table = Table()
    for title in ("input", "class"):
        table.add_column(title, overflow="fold")
    for title in ("conf.", "entropy", "mut. inf."):
        table.add_column(title, justify="right", no_wrap=True)
    has_sets = found[0].set is not None
    if has_sets:
        table.add_column("set", overflow="fold")
    for each in found:
        cells = [displayable(each.input), displayable(each.predicted), f"{each.confidence:.3f}"]
        cells += [f"{each.entropy:.3f}", f"{each.mutual_information:z.3f}"]
        members = [displayable(", ".join(each.set)) or "none"] if each.set is not None else []
        table.add_row(*map(escape, [*cells, *members]))
    words = _legend(pipeline, num_samples, has_sets=has_sets)
    _write(table, words, out)


def _write(table: Table, words: list[str], out: Path | None) -> None:
    """Print a table and what its columns mean, or write them to a file."""
    if out is None:
        (console.print if console.is_terminal else show_table)(table)  # a terminal folds long names, too
        for line in words:
            say(line)
        return
    width = Console(file=StringIO(), width=1000).measure(table).maximum
    file = StringIO()
    Console(file=file, width=width).print(table)
    write_bytes(out, (file.getvalue() + "".join(f"{line}\n" for line in words)).encode())


def _verdict(pipeline: "Pipeline") -> str:
    if pipeline.evaluation is not None and pipeline.evaluation.verdict:
        return pipeline.evaluation.verdict
    return "no verdict; `probattn evaluate RUN` stores it"


def _legend(pipeline: "Pipeline", num_samples: int, *, has_sets: bool) -> list[str]:
    """Return what the columns mean, in lines of at most 80 characters."""
    classes = len(pipeline.classes)
    lines = [
        "conf.: probability of the class, the mean over posterior samples",
        f"entropy: total uncertainty in nats, from 0 to {math.log(classes):.3f} ({classes} classes equally likely)",
        f"mut. inf.: mutual information, how much the {num_samples} samples of the attention layers",
        "  disagree; it does not say whether an input is like the training data",
        f"posterior of the attention layers: {_verdict(pipeline)}",
    ]
    if has_sets:
        promise = 100 * (1 - pipeline.evaluation.alpha)
        lines += [
            f"set: holds the true class with probability {promise:g} % for inputs like the test data;",
            "  none: no class is likely enough",
        ]
        if num_samples != pipeline.num_samples:
            lines += [f"  calibrated with {pipeline.num_samples} samples: with {num_samples} that holds approximately"]
    else:
        lines += ["no prediction sets: `probattn evaluate RUN` calibrates and stores their threshold"]
    return lines
