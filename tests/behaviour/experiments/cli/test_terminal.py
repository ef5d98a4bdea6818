"""Tables, errors and interruption of the command, in this process and as a process of its own."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import filelock
import pandas as pd
import pytest
from full_disk import full_after
from rich.console import Console
from rich.table import Column, Table

from probattn.experiments.cli import main, terminal
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.reporting.tables import plain_table
from probattn.experiments.runs import train

KEP = "digits/kep-svgp"


def fails_with(error):
    def fail(*arguments, **options):
        raise error

    return fail


def test_tables_lose_no_cell_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr(
        terminal, "console", Console(width=40, force_terminal=True, color_system=None)
    )
    table = Table(Column("run", no_wrap=True), *(f"metric {n}" for n in range(8)), "meaning")
    table.add_row(
        "a-rather-long-name-of-a-run",
        *(f"{n}.123456" for n in range(8)),
        "some words and " + "x" * 99,
    )
    terminal.show_table(table)
    text = capsys.readouterr().out
    assert [n for n in range(8) if f" {n}.123456 " not in text] == []
    assert text.count("x") == 99
    assert "a-rather-long-name-of-a-run" in text


@pytest.mark.parametrize("width", [80, 120, 300])
def test_a_table_of_metrics_fits_the_terminal_and_keeps_its_cells(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(terminal, "console", Console(width=width, color_system=None))
    names = [f"METRIC{number}" for number in range(9)]
    cells = [f"[{number}.1234,{number}.5678]" for number in range(9)]
    row = ["digits/softmax of " + "long words " * 9, *cells]
    table = plain_table(pd.DataFrame([row], columns=["run", *names]))
    table = replace(table, note="A note.")
    terminal.show_metrics(table)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert [cell for cell in (*names, *cells) if text.count(cell) != 1] == []
    assert text.count("A note.") == 1


def test_an_error_is_shown_as_it_is_without_markup_and_control_characters(
    refused, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        train, "load_data", fails_with(DatasetError("[red]x[/red] \x1b[31m\nsecond \u202e line"))
    )
    err = refused("train", KEP, "--out", tmp_path / "[bold]run")
    assert err == "error: [red]x[/red] \\x1b[31m\nsecond \\u202e line\n"


ERRORS = {
    "out of memory; ": MemoryError(),
    "out of memory: of 3 GB; ": MemoryError("of 3 GB\nmore"),
    "No space left on device: standard output; free": OSError(
        errno.ENOSPC, "No space left on device"
    ),
    "No such file or directory: gone; ": FileNotFoundError(
        errno.ENOENT, "No such file or directory", "gone"
    ),
    "held by another process: wait": filelock.Timeout("run/.lock"),
}


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_of_memory_or_the_system_says_what_to_do(refused, monkeypatch, tmp_path, words):
    monkeypatch.setattr(train, "load_data", fails_with(ERRORS[words]))
    err = refused("train", KEP, "--out", tmp_path / "run")
    assert words in err
    assert err.count("\n") == 1


def test_an_interruption_that_a_library_turns_into_another_error_is_one(
    command, monkeypatch, tmp_path
):
    def fail(*arguments, **options):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interruption:
            raise ImportError("numpy failed to import") from interruption

    monkeypatch.setattr(train, "load_data", fail)
    code, _, err = command("train", KEP, "--out", tmp_path / "run")
    assert (code, "--resume" in err) == (130, True)


def test_a_full_disk_names_the_file_and_a_run_goes_on(
    command, succeed, tmp_path, tiny, assignments
):
    arguments = ["train", KEP, "--out", tmp_path / "run", *assignments(tiny)]
    with full_after(9000):
        code, _, err = command(*arguments)
    assert (code, str(tmp_path / "run") in err, "Traceback" in err) == (1, True, False)
    succeed(*arguments, "--resume")


# Forks of one process that has imported most of what the commands need, and not Matplotlib.
QUIET = """
import gc, os, sys
import probattn.experiments.config.presets
from probattn.experiments.cli.main import main

gc.freeze()  # no fork traverses what the imports have made when it ends

def closed(**streams):
    for name, number in streams.items():
        os.close(number)
        setattr(sys, name, None)

def pipe():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)

def full():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

def backend():
    assert "matplotlib" not in sys.modules
    os.environ["MPLBACKEND"] = "nowhere"
    sys.argv[1:] = ["compare", "scores.csv", "--out", "out"]

def run(change, **options):
    print(change.__name__, options, file=sys.stderr, flush=True)
    if os.fork() == 0:
        change(**options)
        main()
    return os.wait()[1]

sys.argv = ["probattn", "presets"]
run(closed, stdout=1)
run(closed, stdout=1, stderr=2)
run(pipe)
run(full)
sys.exit(run(backend))
"""


def test_no_traceback_where_output_or_a_figure_fail(tmp_path):
    scores = "run,seed,method,set,n,accuracy,nll\na/softmax,0,posterior,test,9,0.5,1\n"
    scores += "a/kernel,0,posterior,test,9,0.5,1\n"
    (tmp_path / "scores.csv").write_text(scores)
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "check": False}
    done = subprocess.run([sys.executable, "-c", QUIET], **options)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "out" / "results.csv").exists()


def test_no_traceback_at_ctrl_c_while_it_starts():
    line = f"timeout -s INT 1.5 {sys.executable} -m probattn.experiments presets"
    options = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run(["bash", "-c", f"trap - INT; {line}"], **options)
    assert "Traceback" not in done.stderr


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(train, "load_data", fails_with(KeyError("bug")))
    monkeypatch.setattr(sys, "argv", ["probattn", "train", KEP])
    with pytest.raises(KeyError, match="bug"):
        main.main()


@pytest.mark.slow
def test_ctrl_c_ends_all_workers(tmp_path):
    """Ctrl-C reaches the whole group of processes: no traceback, and no run begins or goes on."""
    demo = [
        "demo",
        "--layers",
        "softmax,kernel,kep-svgp",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "runs"),
    ]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    # A job in the background ignores Ctrl-C.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        [sys.executable, "-m", "probattn.experiments", *demo], **options
    ) as process:
        try:
            assert "3 runs" in process.stdout.readline()
            while not list(tmp_path.glob("runs/digits/*/*/last.pt")):
                assert process.poll() is None
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out, err[:9], "Traceback" in err) == (130, "", "stopped; ", False)
    assert len(list(tmp_path.glob("runs/digits/*"))) <= 2
