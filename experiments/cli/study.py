"""``probattn study`` and ``probattn compare``: layers over seeds on any data, and their comparison."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import (
    CORES,
    COUNT,
    MAX_RUNS,
    Encoder,
    SettingChanges,
    check_folder,
    encoder_change,
    interruptible,
    say,
    show_metrics,
    split_words,
)

Out = Annotated[Path, typer.Option(callback=check_folder, help="Folder of the tables and the figure, or of a study.")]
SWEEP = "[PRESET:]KEY=VALUE,…"
RESULTS = "Evaluated runs, folders that hold them, or a results.csv."


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="RUN…", help=RESULTS)], out: Out = Path("runs/comparison")
) -> None:
    """Compare evaluated runs: mean ± standard deviation over seeds, paired with the softmax twin by the same method."""
    _compare(results, out)


def study(
    presets: Annotated[list[str] | None, typer.Argument(help="Presets; default digits/softmax.")] = None,
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Your data, or the folder of the data sets.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="NAME,…", help="Layers, also package.module:Class.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Runs of each preset and layer.")] = 5,
    epochs: Annotated[int | None, typer.Option(**COUNT, help="Epochs of each run; default the preset's.")] = None,
    set_: SettingChanges = None,
    encoder: Encoder = None,
    sweep: Annotated[list[str] | None, typer.Option(metavar=SWEEP, help="Choose a value on validation data.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Methods, or none; default all that suit.")] = None,
    shift: Annotated[bool | None, typer.Option(help="Evaluate on corrupted images; default for images.")] = None,
    ood: Annotated[list[str] | None, typer.Option(help="OOD images, folders or none; default those that suit.")] = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs at a time; default one per core.")] = CORES,
    out: Out = Path("runs/study"),
) -> None:
    """Train presets with several layers and seeds on any data, evaluate and compare them."""
    with interruptible("the same command continues where it stopped"):
        from probattn.experiments.config import presets as known
        from probattn.experiments.config.validation import SettingsError
        from probattn.experiments.evaluation.methods import check
        from probattn.experiments.studies import study as studies
        from probattn.experiments.studies import sweep as sweeps

        names = presets or (known.digits("all") if layers == "all" else ["digits/softmax"])
        if presets is None and layers is None:
            layers = "softmax,kep-svgp"
        chosen = [] if layers in (None, "all") else split_words([layers])
        plan = {"epochs": epochs, "out": out, "changes": [*(set_ or ()), *encoder_change(encoder)]}
        plan |= {"layers": chosen, "data": data}
        by, sets = (
            None if words is None else [w for w in split_words(words) if w != "none"] for words in (method, ood)
        )
        options = {"by": None if by is None else check(by), "shift": shift, "ood": sets}
        jobs = studies.plan(names, seeds=seeds, **plan)
        tuned, note = (), ""
        if sweep:
            names, plan["layers"] = list(dict.fromkeys(job.name for job in jobs)), []
            if len(names) * seeds < len(jobs):
                raise SettingsError("--sweep needs presets: leave out --layers that no preset of the family has")
            studies.check(jobs, **options)
            values = sweeps.parse(sweep, names)
            tuned = {key for lists in values.values() for key in lists}
            table = sweeps.sweep(values, workers=workers, say=say, **plan)
            best = dict(table[table["chosen"]].set_index("preset")["changes"])
            note = "Chosen on validation data of seed 0: " + "; ".join(f"{k} {', '.join(v)}" for k, v in best.items())
            say(f"{table.to_string(index=False)}\n{note}")
            jobs = studies.plan(names, seeds=seeds, preset_changes=best, **plan)
        say(f"{len(jobs)} runs, {min(workers, len(jobs))} at a time; a run takes a minute or many")
        studies.run_study(jobs, workers=workers, say=say, **options)
        _compare([job.folder for job in jobs], out, tuned=tuned, note=note)


def _compare(paths: Sequence[Path], out: Path, *, tuned: Collection[str] = (), note: str = "") -> None:
    from probattn.experiments.reporting.tables import comparison_table
    from probattn.experiments.studies import compare as comparison

    results, compared = comparison.read(paths, tuned=tuned)
    for title, table in compared.items():
        if "Detection" not in title or title.endswith("AUROC"):
            say(f"\n{title}", style="bold")
            show_metrics(comparison_table(table))
    comparison.write(out, results, compared, note=note)
    say(f"results.csv, comparison.md, comparison.tex: {out}")
