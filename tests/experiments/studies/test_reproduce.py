"""A table is planned, estimated, trained, evaluated and written beside the paper's numbers."""

import csv
import io
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from probattn.experiments.cli import main
from probattn.experiments.cli import reproduce as command
from probattn.experiments.config.presets import preset
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.evaluation import methods
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.studies import estimate, reproduce, reproduction_report, reproductions
from probattn.experiments.studies.entries import Entry, Model, Part, Row, columns_of, keys_of
from probattn.experiments.studies.paper_tables import parse
from probattn.experiments.studies.scales import SCALES
from probattn.inference.training import trainer

TINY = (
    "train.epochs=3",
    "train.warmup_epochs=0",
    "data.limit=200",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
)
SOFTMAX, KEP = Model("digits/softmax", TINY), Model("digits/kep-svgp", (*TINY, "layer.rank=4"))
COLUMNS = columns_of("test", "accuracy", "nll")
PAPER = "MSP | 83.50±0.43 11.13±0.40\nKEP-SVGP | 84.70 8.00\nDeep Ensembles | 86.43 7.40"
ROWS = {
    "MSP": Row(SOFTMAX),
    "Temperature Scaling": Row(SOFTMAX, "temperature"),
    "KEP-SVGP": Row(KEP),
    "Deep Ensembles": Row(SOFTMAX, is_ensemble=True),
}
TABLE = Entry(
    "made-up/table-1",
    "Digits",
    "no paper, Table 1, section 1",
    5,
    (Part("digits", ROWS, COLUMNS, parse(PAPER, keys_of(COLUMNS)), baseline="MSP", note="A note."),),
)
MISSING = replace(TABLE.parts[0], title="CIFAR", rows={"MSP": Row(Model("kep-svgp/cifar100-softmax"))})


@pytest.fixture
def in_process(monkeypatch):
    """Run the jobs in this process, one after another."""

    def run(function, jobs, *, workers):
        return ((job, function(job)) for job in jobs)

    monkeypatch.setattr(reproduce, "run_in_workers", run)


def plan(entry=TABLE, *, scale="full", out, **options):
    return reproduce.plan(entry, scale=SCALES[scale], **{"seeds": 2, "out": out, **options})


def test_a_plan_has_a_run_for_each_model_and_seed_with_what_its_rows_need(tmp_path):
    planned = plan(out=tmp_path)
    assert [(job.model, job.seed, job.by) for job in planned.jobs] == [
        (SOFTMAX, 0, ("temperature",)),
        (KEP, 0, ()),
        (SOFTMAX, 1, ("temperature",)),
        (KEP, 1, ()),
    ]
    assert planned.jobs[1].folder == tmp_path / "runs/digits/kep-svgp" / ",".join(KEP.changes) / "seed-0"
    assert pickle.loads(pickle.dumps(planned.jobs)) == planned.jobs  # the workers are processes
    assert plan(out=tmp_path, seeds=None).jobs[-1].seed == 4
    assert plan(out=tmp_path, seeds=None, scale="cpu").jobs[-1].seed == 1


def test_a_block_without_its_data_has_no_runs_and_is_named(tmp_path):
    both = replace(TABLE, parts=(*TABLE.parts, MISSING))
    planned = plan(both, out=tmp_path, root=tmp_path)
    assert {job.model for job in planned.jobs} == {SOFTMAX, KEP}
    ((text, titles),) = planned.missing.items()
    assert titles == ("CIFAR",)
    assert all(word in text for word in ("cifar100", str(tmp_path), "cifar100-jpeg", "network"))
    alone = plan(replace(TABLE, parts=(MISSING,)), out=tmp_path, root=tmp_path)
    with pytest.raises(DatasetError, match="^the data of made-up/table-1 are missing: CIFAR$"):
        reproduce.run(alone, workers=1)


def test_a_run_needs_the_union_of_its_blocks_and_only_the_ood_sets_that_are_there(tmp_path):
    entry = replace(
        TABLE,
        parts=(
            replace(TABLE.parts[0], title="a", corruptions=("fog",), severities=(1, 5)),
            replace(TABLE.parts[0], title="b", corruptions=("snow",), severities=(5,), ood=("svhn",)),
        ),
    )
    (job, *_), missing = (planned := plan(entry, out=tmp_path, root=tmp_path)).jobs, planned.missing
    assert (job.corruptions, job.severities, job.ood) == (("fog", "snow"), (1, 5), ())
    assert list(missing.values()) == [("b",)]
    found = plan(entry, out=tmp_path, find=lambda name, root: "")
    assert found.jobs[0].ood == ("svhn",)
    assert plan(entry, out=tmp_path, scale="cpu").jobs[0].severities == (3,)


def fake_clock(monkeypatch, *, tick):
    """Replace the clocks of the training and of the estimate by one that advances by ``tick`` at each call."""
    state = [0.0]

    def perf_counter():
        state[0] += tick
        return state[0]

    for module in (trainer, estimate):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=perf_counter))


def test_the_estimate_is_the_number_of_steps_times_the_measured_time(monkeypatch):
    settings = preset("digits/softmax").with_changes([*TINY, "data.limit=none", "train.epochs=40"])
    fake_clock(monkeypatch, tick=6.0)  # an epoch of two steps and a prediction of their 128 examples last a tick each
    found = estimate.run_time(settings, None)
    steps, valid, test = 17, 359, 359  # 1,079 images in batches of 64
    assert found.epoch == pytest.approx(steps * 6 / 2 + valid * 6 / 128)
    assert found.test_set == pytest.approx(test * 6 / 128)
    assert found.seconds() == pytest.approx(40 * found.epoch + found.test_set)
    assert found.seconds(epochs_done=38, test_sets=0) == pytest.approx(2 * found.epoch)
    fake_clock(monkeypatch, tick=12.0)
    assert estimate.run_time(settings, None).seconds() == pytest.approx(2 * found.seconds())


def test_the_estimate_counts_the_warm_start_and_its_own_layer(monkeypatch):
    settings = preset("digits/cgp").with_changes([*TINY[2:], "warm_start.epochs=7", "train.epochs=30"])
    fake_clock(monkeypatch, tick=1.0)
    found = estimate.run_time(settings, None)
    assert (found.first_epochs, found.epochs) == (7, 30)
    assert found.seconds(test_sets=0) == pytest.approx(7 * found.first_epoch + 30 * found.epoch)
    assert found.seconds(epochs_done=10, test_sets=0) == pytest.approx(20 * found.epoch)


def test_the_estimate_of_a_plan_is_shared_by_the_workers(tmp_path, monkeypatch):
    time = estimate.RunTime(epoch=10.0, first_epoch=0.0, first_epochs=0, epochs=3, test_set=2.0)
    monkeypatch.setattr(reproduce, "run_time", lambda settings, root: time)
    planned = plan(out=tmp_path)
    assert reproduce.estimate(planned, workers=1) == pytest.approx(4 * (3 * 10 + 2))
    assert reproduce.estimate(planned, workers=2) == pytest.approx(2 * (3 * 10 + 2))
    assert reproduce.estimate(planned, workers=9) == pytest.approx(3 * 10 + 2)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "about 1 s"), (90, "about 90 s"), (1000, "about 17 min"), (50_400, "about 14 h"), (1e6, "about 12 days")],
)
def test_durations_have_a_fitting_unit(seconds, words):
    assert estimate.in_words(seconds) == words


def test_a_table_is_reproduced_beside_the_papers_and_a_second_call_trains_nothing(tmp_path, in_process, monkeypatch):
    planned = plan(out=tmp_path)
    said = []
    reproduce.run(planned, workers=1, say=said.append)
    assert len(said) == 4
    assert "digits/kep-svgp" in said[1]
    found = reproduction_report.compared(planned)
    paths = reproduction_report.write(planned, found, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "made-up/table-1.md",
        "made-up/table-1.csv",
    ]
    text, table = (path.read_text(encoding="utf-8") for path in paths)
    assert all(part in text for part in ("# made-up/table-1: Digits\n", "no paper, Table 1", "## digits", "A note."))
    assert all(part in text for part in ("Welch's t", "Student's t over our seeds alone", "difference to MSP"))
    assert "reduced" not in text
    records = {(record["row"], record["metric"]): record for record in csv.DictReader(io.StringIO(table))}
    assert len(records) == 8
    (accuracy, nll) = ("test:accuracy", "test:nll")
    own = [reproduce.measured(planned, planned.parts[0])["MSP"][seed][accuracy] for seed in (0, 1)]
    assert float(records["MSP", accuracy]["mean"]) == pytest.approx(100 * sum(own) / 2)
    assert float(records["MSP", accuracy]["difference"]) == pytest.approx(50 * sum(own) - 83.5)
    assert records["MSP", nll]["unit"] == "×10"
    assert [records[row, nll]["interval"] for row in ROWS] == ["welch", "", "own seeds", ""]
    assert records["Temperature Scaling", nll]["difference"] == ""
    assert records["KEP-SVGP", nll]["paper_to_baseline"] == "-3.13"
    assert records["Deep Ensembles", nll]["seeds"] == "1"
    before = {job.folder: (job.folder / "last.pt").stat().st_mtime_ns for job in planned.jobs}
    monkeypatch.setattr(methods, "fit", lambda *arguments, **options: pytest.fail("predicted"))
    reproduce.run(planned, workers=1)
    assert {job.folder: (job.folder / "last.pt").stat().st_mtime_ns for job in planned.jobs} == before
    assert reproduction_report.report(planned, reproduction_report.compared(planned), figures=[]) == text
    assert plan(out=tmp_path, seeds=3).jobs[:4] == planned.jobs


def test_the_label_of_a_reduced_size_leaves_a_figures_own_note():
    fog = {"fog": {severity: {"nll": float(severity)} for severity in (1, 3)}}
    figure = shift_plots.boxes({"MSP": fog}, metric="nll")
    note = figure.get_suptitle()
    assert "severities 1, 3" in note
    reproduction_report.label_size(figure, "")
    assert figure.get_suptitle() == note
    reproduction_report.label_size(figure, "reduced (cpu)")
    assert figure.get_suptitle() == f"reduced (cpu); {note}"


@pytest.mark.slow
def test_a_reduced_table_says_so_and_is_not_compared_with_the_papers(tmp_path, in_process, capsys, monkeypatch):
    monkeypatch.setitem(reproductions.ENTRIES, TABLE.name, replace(TABLE, name="made-up/figure-1", figure="similarity"))
    monkeypatch.setattr("sys.argv", ["probattn", "reproduce", TABLE.name, "--scale", "cpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as status:
        main.main()
    assert status.value.code == 0
    shown = capsys.readouterr().out
    assert "made-up/figure-1: Digits, reduced (cpu)" in shown
    assert "4 runs, 2 seeds." in shown
    assert "on this machine" in shown
    names = sorted(path.name for path in (tmp_path / "made-up").iterdir())
    assert names == [f"figure-1-reduced-cpu.{suffix}" for suffix in ("csv", "md", "svg")]
    text = (tmp_path / "made-up/figure-1-reduced-cpu.md").read_text(encoding="utf-8")
    assert text.startswith("# made-up/figure-1: Digits, reduced (cpu)\n")
    assert "## digits, reduced (cpu)" in text
    assert "cannot be compared" in text
    assert "vs the paper" not in text
    assert "Welch" not in text
    records = list(csv.DictReader(io.StringIO((tmp_path / "made-up/figure-1-reduced-cpu.csv").read_text())))
    assert {record["difference"] for record in records} == {""}
    assert (tmp_path / "runs-cpu").is_dir()
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_what_is_missing_and_how_long_it_takes_and_trains_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(reproductions.ENTRIES, TABLE.name, replace(TABLE, parts=(*TABLE.parts, MISSING)))
    fake_clock(monkeypatch, tick=36_000.0)
    monkeypatch.setattr(reproduce, "obtain", lambda name, root: pytest.fail("downloaded"))
    command.reproduce(
        TABLE.name, list_=False, scale="full", seeds=1, out=tmp_path, data=tmp_path, workers=1, dry_run=True
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "made-up/table-1: Digits (no paper, Table 1, section 1)"
    assert lines[1].startswith("missing for CIFAR: cifar100 is not in ")
    assert lines[2] == "presets: digits/softmax, digits/kep-svgp"
    assert lines[3] == "2 runs, 1 seed."
    assert lines[4].startswith("about ")
    assert "days on this machine, 1 at a time" in lines[4]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_without_any_data_says_which_presets_need_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(reproductions.ENTRIES, TABLE.name, replace(TABLE, parts=(MISSING,)))
    command.reproduce(
        TABLE.name, list_=False, scale="full", seeds=1, out=tmp_path, data=tmp_path, workers=1, dry_run=True
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("missing for CIFAR: cifar100 is not in ")
    assert lines[2].startswith("presets, once the data are there: ")
    assert all(row.model.preset in lines[2] for row in MISSING.rows.values())
    assert len(lines) == 3


def test_the_list_has_every_entry_with_its_data_and_runs(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["probattn", "reproduce", "--list"])
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().out
    assert all(name in shown for name in reproductions.ENTRIES)
    line = next(line for line in shown.splitlines() if "kep-svgp/table-5" in line)
    assert [cell.strip() for cell in line.split("│")[4:6]] == ["cola", "20"]
    assert max(map(len, shown.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ("name a table or figure", "--list")),
        (["kep-svgp/tabel-2"], ("unknown table or figure", "did you mean kep-svgp/table-2")),
        (["kep-svgp/table-8"], ("not reproduced", "probattn bench")),
    ],
)
def test_what_cannot_be_reproduced_is_an_error_of_one_line(arguments, words, capsys, monkeypatch, is_one_message):
    monkeypatch.setattr("sys.argv", ["probattn", "reproduce", *arguments])
    with pytest.raises(SystemExit) as status:
        main.main()
    assert status.value.code == 1
    assert is_one_message(capsys.readouterr().err, *words)


def test_blocks_and_rows_are_selected_by_name_and_changes_are_in_the_note(tmp_path):
    two = replace(TABLE, parts=(*TABLE.parts, MISSING))
    chosen = reproduce.select(two, blocks=["digits"], rows=["KEP-SVGP"])
    assert [(part.title, [*part.rows], part.baseline) for part in chosen.parts] == [("digits", ["KEP-SVGP"], "")]
    assert reproduce.select(two) == two
    assert reproduce.select(two, rows=["MSP"]).parts[0].baseline == "MSP"
    with pytest.raises(ValueError, match="has no row SGPA; it has MSP, Temperature Scaling, KEP-SVGP, Deep Ensembles"):
        reproduce.select(two, rows=["SGPA"])
    with pytest.raises(ValueError, match="has no block IMDB; it has digits, CIFAR"):
        reproduce.select(two, blocks=["IMDB"])
    changed = reproduce.plan(
        chosen, scale=replace(SCALES["full"], changes=("train.compile=true",)), seeds=1, out=tmp_path
    )
    assert changed.jobs[0].settings.train.compile
    assert changed.parts[0].note == "A note. All runs have train.compile=true."
