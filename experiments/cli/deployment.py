"""``probattn predict`` and ``export``: a trained model answers, and goes to other programs and
other people."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from probattn.experiments.cli.terminal import (
    COUNT,
    Refine,
    Sets,
    TrustCode,
    fail,
    say,
    show_metrics,
)

if TYPE_CHECKING:
    import pandas as pd

    from probattn.experiments.sharing.pipeline import Pipeline

INPUTS = (
    "Images, folders of images, or files of rows or texts: .csv, .tsv, .jsonl, or a text a line."
)
COLUMN = "Column of the texts; default that of training."
OUT = "Write the answers, with all probabilities, to a CSV file; no table is printed."
Measure = Literal["entropy", "mutual_information", "confidence", "std"]
TARGET = "Folder to share, or FILE.pt2 for a PyTorch program."
SAMPLES = "Posterior samples in a program; 0 is the posterior mean; default those of predict."
# Largest number of inputs that the error names.
MAX_FAILURES = 20


def predict(
    run: Annotated[
        str,
        typer.Argument(help="Folder of a run or of a shared model, or hf://USER/NAME of the hub."),
    ],
    inputs: Annotated[list[Path] | None, typer.Argument(metavar="INPUT...", help=INPUTS)] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A text; may be given several times.")
    ] = None,
    column: Annotated[str | None, typer.Option(help=COLUMN)] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, metavar="FILE.csv", help=OUT)] = None,
    sort: Annotated[
        Measure | None, typer.Option(help="Sort from the most to the least uncertain.")
    ] = None,
    sets: Sets = "plain",
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Posterior samples; default the run's.")
    ] = None,
    refine: Refine = None,
    trust_code: TrustCode = False,
) -> None:
    """Predict images, texts or rows of tables: class, confidence, uncertainty and conformal set.

    A regression gives a mean and an interval. The calibration is that of `probattn evaluate`.

    The exit status is 1 if an input could not be read. The others are answered.
    """
    import pandas as pd

    from probattn.experiments.sharing.answers import sort_answers, to_csv
    from probattn.experiments.sharing.inputs import read_inputs
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.inference.io.outputs import check_outputs, write_outputs

    # The columns with which answers begin, by which earlier ones are known.
    place: dict[str, Any] = {"mark": "input,predicted", "inputs": inputs or ()}
    if out is not None:
        check_outputs([out], **place)
    pipeline = Pipeline.from_pretrained(run, trust_code=trust_code)
    answers = pd.DataFrame()
    read = read_inputs(pipeline.run, inputs or [], text or [], column=column)
    if read.values:
        answers = pipeline.answers(
            list(read.values.values()),
            sets=sets,
            num_samples=num_samples,
            refine=refine,
        )
        answers.insert(0, "input", list(read.values))
        answers = answers if sort is None else sort_answers(answers, sort)
    kept = []
    if out is not None and (
        not len(answers) or (read.failures and out.exists() and out.stat().st_size)
    ):
        kept = [f"{out} was not written: there are no answers, or it holds earlier ones"]
    elif out is not None:
        write_outputs({out: to_csv(answers, read.failures)}, **place)
        say(f"{out}: {len(answers)} answers")
    elif len(answers):
        _show(answers)
        say(_legend(pipeline, answers))
    if read.failures:
        names = [
            reason if name in reason else f"{name}: {reason}"
            for name, reason in read.failures.items()
        ]
        number = f"{len(names)} of {len(names) + len(answers)} inputs could not be read"
        fail("\n".join([number, *names[:MAX_FAILURES], *kept]))


def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(help=TARGET)],
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="Also upload the folder.")
    ] = None,
    num_samples: Annotated[int | None, typer.Option(min=0, max=COUNT["max"], help=SAMPLES)] = None,
    sets: Sets = "plain",
    trust_code: TrustCode = False,
) -> None:
    """Export a run: as a folder to share, or as a program that runs without this library.

    Programs give probabilities and their uncertainty. After `probattn evaluate` they are
    calibrated, with conformal sets and accepted answers. Share folders: a PyTorch program from
    elsewhere can run code when it is loaded.
    """
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.experiments.sharing.programs import export_program
    from probattn.inference import upload_pretrained

    pipeline = Pipeline.from_pretrained(run, trust_code=trust_code)
    if out.suffix == ".pt2":
        if push_to_hub is not None:
            raise ValueError(
                f"--push-to-hub uploads folders, and {out} is a file: leave out one of the two"
            )
        about = export_program(pipeline, out, num_samples=num_samples, sets=sets)
        gives = f"{out}: takes {about['takes']}; gives {', '.join(about['gives'])}"
        say("\n".join([*_notes(pipeline), gives]))
        return
    pipeline.save_pretrained(out)
    say(f"{out}: weights, settings, preprocessing and a model card; its licence is yours to choose")
    if push_to_hub is not None:
        say(upload_pretrained(out, push_to_hub))


def _show(answers: "pd.DataFrame") -> None:
    """Print a table of answers, without the probabilities of all classes."""
    from probattn.experiments.reporting.tables import plain_table

    frame = answers.drop(columns="probs", errors="ignore")
    if "set" in frame:
        frame["set"] = [", ".join(names) or "none" for names in frame["set"]]
    show_metrics(plain_table(frame.rename(columns=lambda name: name.replace("_", " "))))


def _legend(pipeline: "Pipeline", answers: "pd.DataFrame") -> str:
    """Return what the columns of the answers mean, and what the decisions cannot do."""
    from probattn.experiments.evaluation.decision_notes import reasons

    fit = pipeline.calibration
    share = 0.9 if fit is None else fit.level
    level = f"{100 * share:g} %"
    said = " ".join(answers.get("notes", []))
    outside = [f"{kind}: {why}" for kind, why in reasons(share).items() if kind in said]
    notes = [*outside, *_notes(pipeline)]
    if not pipeline.classes:
        meaning = (
            f"low, high: {level} interval; std: of the predictive distribution; all in the units "
            "of the label"
        )
        return "\n".join([meaning, *notes])
    meaning = "entropy: total uncertainty in nats"
    if "mutual_information" in answers:
        meaning += "; mutual information: how much posterior samples disagree"
    if fit is None:
        return f"{meaning}\nno prediction sets: `probattn evaluate RUN` fits them"
    meaning += (
        f"\nset: holds the true class with probability {level}, for inputs like the validation data"
    )
    accepted = f"of these answers at most {100 * fit.max_risk:g} % are expected to be wrong"
    return "\n".join([meaning, f"accepted: {accepted}", *notes])


def _notes(pipeline: "Pipeline") -> list[str]:
    """Return sentences on what the decisions of a model cannot do."""
    from probattn.experiments.evaluation.decision_notes import few_examples

    fit = pipeline.calibration
    return [] if fit is None else few_examples(fit, pipeline.classes)
