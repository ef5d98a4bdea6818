"""The ``probattn`` command."""

import os
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.table import Column, Table
from typer.core import TyperGroup

from probattn.experiments.cli import bench, export, reproduce
from probattn.experiments.cli.error_messages import fail_with_message
from probattn.experiments.cli.terminal import (
    COUNT,
    SEED,
    Data,
    Encoder,
    SettingChanges,
    check_folder,
    encoder_change,
    fail,
    interruptible,
    make_encodable,
    say,
    show_table,
)
from probattn.experiments.runs.allocator import keep_memory


class Commands(TyperGroup):
    """Group whose commands end with one line when the user presses Ctrl-C, also while they import what they need."""

    def make_context(self, *args: Any, **kwargs: Any) -> typer.Context:
        """Read the command line."""
        with interruptible("the same command starts again"):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: typer.Context) -> Any:
        """Run a command."""
        with interruptible("the same command starts again"):
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    help="Uncertainty-aware attention: train, evaluate and compare transformers whose attention is a Pyro program.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.command("export")(export.export)
app.command("reproduce")(reproduce.reproduce)
MAX_RUNS = 10_000
"""Maximum number of seeds."""


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="Name from `probattn presets`.")],
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(callback=check_folder, help="Folder of the run; default runs/PRESET.")
    ] = None,
    set_: SettingChanges = None,
    encoder: Encoder = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNS, help="Train seeds 0 to N-1 into OUT/seed-0, ….")
    ] = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs trained at a time with --seeds, one thread each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
) -> None:
    """Train a preset. A run that was stopped at any moment continues with --resume."""
    with interruptible("the same command with --resume continues after the last whole epoch"):
        from probattn.experiments.config import presets
        from probattn.experiments.runs import train as runs

        changes = [*(set_ or ()), *encoder_change(encoder)]
        settings = presets.preset(preset).with_changes(changes)
        folder = out or Path("runs") / preset
        if seeds is not None:
            from probattn.experiments.runs import seeds as sweep

            sweep.check_seedless(changes)
            common = {"name": preset, "root": data, "resume": resume, "workers": workers, "say": say}
            histories = sweep.train_seeds(settings, folder, seeds=seeds, **common)
            say(sweep.summary(histories, settings))
            say(f"next: for run in {folder}/seed-*; do probattn evaluate $run; done; probattn compare {folder}/seed-*")
            return
        done = runs.epochs_done(folder) if resume else 0
        history = runs.train(settings, folder, name=preset, root=data, resume=resume, say=say)
    if len(history.epochs) == done:
        say(f"{folder} was finished already, after {done} epochs; nothing to do")
    monitor = settings.train.monitor or "nll"
    if history.best_value is None:
        fail(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    say(
        f"best epoch {history.best_epoch} of {len(history.epochs)}, "
        f"valid {monitor} {history.best_value:.4f}; next: probattn evaluate {folder}"
    )


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    data: Data = None,
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Number of posterior samples; default train.num_samples.")
    ] = None,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of the posterior samples.")] = 0,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Also evaluate temperature, mc-dropout, laplace, sv-dkl or laplace+temperature."),
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Also evaluate on corrupted images (CIFAR-C or generated).")
    ] = False,
    corruptions: Annotated[str, typer.Option(help="standard (15), all (19) or comma-separated names.")] = "standard",
    severities: Annotated[str, typer.Option(help="Comma-separated severities of the corruptions.")] = "1,2,3,4,5",
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Also evaluate on OOD images: default, svhn, lsun-crop, … or a folder."),
    ] = None,
    convergence: Annotated[
        bool, typer.Option(help="Test whether the posterior has converged, by refitting it on small training sets.")
    ] = True,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Evaluated run to plot next to this one under --shift.")
    ] = None,
) -> None:
    """Evaluate a run on its test data: tables, metrics.json, predictions/, figures/ and report.html."""
    from probattn.experiments.evaluation import eval_sets, generated_files
    from probattn.experiments.evaluation import evaluate as evaluation
    from probattn.experiments.evaluation.provenance import digests
    from probattn.experiments.reporting import evaluation_tables, posterior_words, report
    from probattn.inference.distributed.collectives import world

    baselines = [evaluation_tables.read_baseline(baseline)] if baseline else []
    done = evaluation.evaluate(
        run,
        root=data,
        num_samples=num_samples,
        seed=seed,
        by=_words(method),
        shift=shift,
        corruptions=eval_sets.parse_corruptions(corruptions),
        severities=eval_sets.parse_severities(severities),
        ood=_words(ood),
        convergence=convergence,
        say=say if shift or ood or method else lambda text: None,
    )
    if world().rank > 0:
        return
    for title, table in evaluation_tables.terminal_tables(done).items():
        say(f"\n{title}", style="bold")
        show_table(table)
    say("\nDecisions", style="bold")
    for sentence in done.result.decisions.describe():
        say(sentence)
    for sentence in posterior_words.warnings(done.result):
        say(sentence)
    files = [run / "report.html", *report.save_figures(run / "figures", done.result)]
    files += evaluation_tables.save(run, done, baselines=baselines)
    report.write(run / "report.html", [done.result], title=f"probattn: {done.result.name}")
    generated_files.record(run, files, digests(done.provenance))
    say(f"report: {run / 'report.html'}; all tables: {run / 'tables'}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and of the report.")] = Path(
        "runs/demo"
    ),
    epochs: Annotated[
        int, typer.Option(min=3, max=COUNT["max"], help="Epochs of each run, including its warm start.")
    ] = 40,
    layers: Annotated[
        str, typer.Option(help="Comma-separated layers of the digits presets, or all (each layer once).")
    ] = "softmax,kep-svgp",
) -> None:
    """Train layers on digits, by default KEP-SVGP and softmax attention, and compare them in a table and a report."""
    with interruptible("the same command continues after the last whole epoch"):
        from probattn.experiments.config import presets
        from probattn.experiments.evaluation import evaluate as evaluation
        from probattn.experiments.reporting import posterior_words, report, table_formats
        from probattn.experiments.runs import train as runs

        results = []
        for name in presets.digits(layers):
            folder = out / name.partition("/")[2]
            settings = presets.preset(name).with_total_epochs(epochs)
            say(name, style="bold")
            runs.train(settings, folder, name=name, resume=True, say=say)
            results.append(evaluation.evaluate(folder).result)
            for sentence in posterior_words.warnings(results[-1]):
                say(sentence)
        show_table(table_formats.terminal(report.summary_table(results)))
        report.write(out / "report.html", results, title="probattn demo: handwritten digits")
    say(f"report: {out / 'report.html'}")


@app.command()
def presets() -> None:
    """List the presets."""
    from probattn.experiments.config.networks import EncoderSettings
    from probattn.experiments.config.presets import PRESETS

    table = Table(Column("preset", no_wrap=True), "data", "network", "layer", Column("epochs", justify="right"))
    for name, settings in PRESETS.items():
        network, layer, start = settings.network, settings.layer, settings.warm_start
        where = {0: "", None: ", every block"}.get(layer.last, f", last {layer.last}")
        is_encoder = isinstance(network, EncoderSettings)
        shape = "pretrained encoder" if is_encoder else f"{network.depth} × {network.dim}, {network.heads} heads"
        epochs = f"{start.epochs} + {settings.train.epochs}" if start else str(settings.train.epochs)
        table.add_row(name, settings.data.name, shape, f"{layer.name}{where}", epochs)
    show_table(table)
    say(
        "Epochs A + B: A of a warm start with kernel attention (--set warm_start.epochs=N, or warm_start=none), then B."
    )


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of evaluated runs.")],
    out: Annotated[
        Path, typer.Option(callback=check_folder, help="Folder of the tables (Markdown, LaTeX, CSV) and figures.")
    ] = Path("runs/comparison"),
) -> None:
    """Compare evaluated runs over seeds: mean ± standard deviation, paired with the softmax baseline, best in bold."""
    _compare(folders, out)


@app.command()
def study(
    presets: Annotated[
        list[str] | None, typer.Argument(metavar="[PRESET]…", help="Presets; by default those of --layers on digits.")
    ] = None,
    out: Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and of the comparison.")] = Path(
        "runs/study"
    ),
    layers: Annotated[
        str | None,
        typer.Option(help="Comma-separated layers on digits, or all (each once); default softmax,kep-svgp."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Runs of each preset.")] = 5,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=3, max=COUNT["max"], help="Epochs of each run, including its warm start; default from the preset."
        ),
    ] = None,
    set_: SettingChanges = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PRESET:]KEY=VALUE,…",
            help="Choose a setting on validation data, for one preset or for all; several form a grid.",
        ),
    ] = None,
    sweep_seeds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Runs of each value of --sweep.")] = 1,
    encoder: Encoder = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Methods besides the posterior predictive; default all four.")
    ] = None,
    data: Data = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs at a time; default: one per core.")] = os.cpu_count() or 1,
) -> None:
    """Train presets over seeds, evaluate them by every method (images also corrupted and OOD), and compare them."""
    with interruptible("the same command continues where it stopped"):
        from probattn.experiments.config import presets as known
        from probattn.experiments.evaluation import methods
        from probattn.experiments.reporting.table_formats import terminal
        from probattn.experiments.studies import study as whole
        from probattn.experiments.studies import sweep as sweeps
        from probattn.experiments.studies import sweep_tables

        if presets and layers:
            fail("give presets, or --layers for those on digits, not both")
        names = presets or known.digits(layers or "softmax,kep-svgp")
        changes = [*(set_ or ()), *encoder_change(encoder)]
        by = [methods.check(each) for each in _words(method) or whole.METHODS]
        common = {"epochs": epochs, "out": out, "changes": changes, "root": data}
        todo = whole.plan(names, seeds=seeds, **common)
        swept = sweeps.parse(sweep or (), names)
        choices = []
        if swept:
            planned = sweeps.plan_sweeps(swept, seeds=sweep_seeds, **common)
            say("\n".join(sweeps.budgets(names, planned, seeds=seeds, sweep_seeds=sweep_seeds)))
            choices = sweeps.run_sweeps(swept, planned, workers=workers, say=say)
            sweep_tables.write(out, choices)
            show_table(terminal(sweep_tables.sweep_table(choices)))
            say("\n".join(sweeps.outcome(choices)))
            own = {choice.preset: choice.changes for choice in choices}
            todo = whole.plan(names, seeds=seeds, own=own, **common)
        say(f"{len(todo)} runs, {min(workers, len(todo))} at a time; a run takes a minute or many")
        whole.run_study(todo, by=by, workers=workers, say=say)
        tuned = {key for lists in swept.values() for key in lists}
        _compare([job.folder for job in todo], out / "comparison", tuned=tuned, note=" ".join(map(str, choices)))


@app.command("check-posterior")
def check_posterior(
    layer: Annotated[Literal["kep-svgp", "cgp"], typer.Argument(help="Layer whose posterior is checked.")] = "kep-svgp",
    out: Annotated[
        Path | None,
        typer.Option(callback=check_folder, help="Folder of the text and the figures; default runs/posterior/LAYER."),
    ] = None,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of data, guides and samplers.")] = 0,
) -> None:
    """Check the guides of a small model on digits by NUTS, importance ratios and simulation-based calibration.

    Takes minutes.
    """
    from probattn.experiments.studies.posterior_check import posterior_check

    found = posterior_check(layer, seed=seed)
    say(str(found))
    folder = out or Path("runs/posterior") / layer
    found.save(folder)
    say(f"text and figures: {folder}")


@app.command("check-gp")
def check_gp(seed: Annotated[int, typer.Option(**SEED, help="Seed of inputs and parameters.")] = 0) -> None:
    """Compare the layers' closed forms with GPyTorch's Gaussian processes in float64. Takes seconds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from linear_operator, which GPyTorch imports
        from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check

    found = gp_check(seed=seed)
    table = Table(
        "component", "quantity", Column("largest difference", justify="right"), Column("relative", justify="right")
    )
    for each in found:
        table.add_row(each.component, each.quantity, f"{each.absolute:.1e}", f"{each.relative:.1e}")
    show_table(table)
    wrong = [f"{each.component}, {each.quantity}" for each in found if not each.passes]
    if wrong:
        fail(f"these differ from GPyTorch by more than a relative {TOLERANCE:.0e}: {'; '.join(wrong)}")
    say(f"all agree with GPyTorch to a relative {TOLERANCE:.0e}")


def _compare(folders: list[Path], out: Path, *, tuned: Collection[str] = (), note: str = "") -> None:
    from probattn.experiments.reporting.table import to_table
    from probattn.experiments.reporting.table_formats import terminal
    from probattn.experiments.studies import compare as compared
    from probattn.experiments.studies.collect import rows

    gathered = rows(folders, tuned=tuned, note=note)
    found = compared.comparisons(gathered)
    for key, comparison in found.items():
        if not key.startswith("ood-") or key.endswith("-auroc"):
            say(f"\n{compared.title(key)}", style="bold")
            show_table(terminal(to_table(comparison)))
    compared.write(out, gathered, found)
    say(f"tables and figures: {out}")


def _words(values: list[str] | None) -> list[str]:
    """Split the values of an option that is given several times, or once with commas."""
    return [word.strip() for value in values or () for word in value.split(",")]


def main() -> NoReturn:
    """Run the command; errors that a user can fix are displayed as one message without a traceback."""
    keep_memory()
    make_encodable()
    program = app
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from probattn.inference.distributed.collectives import report_first_error

        program = report_first_error(app)
    try:
        status = program(prog_name="probattn", standalone_mode=False)
    except Exception as error:
        fail_with_message(error)
        raise
    raise SystemExit(status if isinstance(status, int) else 0)
