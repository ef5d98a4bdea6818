"""Tables, errors and interruption of the command, in this process and as a process of its own."""

import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from rich.table import Column, Table

from probattn.experiments.cli import main, terminal
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.runs import train

KEP = "digits/kep-svgp"


def fails_with(error):
    def fail(*arguments, **options):
        raise error

    return fail


def test_tables_lose_no_cell_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "console", Console(width=40, force_terminal=True, color_system=None))
    table = Table(Column("run", no_wrap=True), *(f"metric {n}" for n in range(8)), "meaning")
    table.add_row("a-rather-long-name-of-a-run", *(f"{n}.123456" for n in range(8)), "some words and " + "x" * 99)
    terminal.show_table(table)
    text = capsys.readouterr().out
    assert [n for n in range(8) if f" {n}.123456 " not in text] == []
    assert text.count("x") == 99
    assert "a-rather-long-name-of-a-run" in text


def test_an_error_is_shown_as_it_is_without_markup_and_control_characters(command, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "load_data", fails_with(DatasetError("[red]x[/red] \x1b[31m\nsecond \u202e line")))
    code, _, err = command("train", KEP, "--out", tmp_path / "[bold]run")
    assert (code, err) == (1, "error: [red]x[/red] \\x1b[31m\nsecond \\u202e line\n")


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(train, "load_data", fails_with(KeyError("bug")))
    monkeypatch.setattr(sys, "argv", ["probattn", "train", KEP])
    with pytest.raises(KeyError, match="bug"):
        main.main()


@pytest.mark.slow
def test_ctrl_c_ends_all_workers(tmp_path):
    """Ctrl-C reaches the whole group of processes: no traceback, and no run begins or goes on."""
    demo = ["demo", "--layers", "softmax,kernel,kep-svgp", "--workers", "2", "--out", str(tmp_path / "runs")]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    # A job in the background ignores Ctrl-C.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen([sys.executable, "-m", "probattn.experiments", *demo], **options) as process:
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
