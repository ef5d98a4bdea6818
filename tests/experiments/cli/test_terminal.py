"""Help, tables, errors and interruption of the command."""

import functools
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
from probattn.inference.training.options import MAX_COUNT, MAX_SEED

KEP = "digits/kep-svgp"


@pytest.mark.parametrize("width", [40, 200])
def test_tables_lose_no_cell_on_a_narrow_terminal(monkeypatch, capsys, width):
    monkeypatch.setattr(terminal, "console", Console(width=width, force_terminal=True, color_system=None))
    table = Table(Column("run", overflow="fold"), *(Column(f"metric {n}", no_wrap=True) for n in range(8)))
    table.add_row("a-rather-long-name", *(f"{n}.123456" for n in range(8)))
    terminal.show_table(table)
    text = capsys.readouterr().out
    assert "…" not in text
    assert [n for n in range(8) if f" {n}.123456 " not in text] == []


@pytest.mark.parametrize(
    "arguments", [[], ["train"], ["evaluate"], ["demo"], ["presets"], ["bench"], ["bench", "layers"]]
)
def test_help(command, arguments):
    code, text, err = command(*arguments, "--help")
    assert (code, err) == (0, "")
    assert "Usage: probattn" in text


def test_an_error_is_shown_as_it_is(command, monkeypatch, tmp_path, is_one_message):
    def fail(*arguments, **options):
        raise DatasetError("pip install probattn[digits]; [red]x[/red]")

    monkeypatch.setattr(train, "load_data", fail)
    code, _, err = command("train", KEP, "--out", tmp_path / "[bold]run")
    assert code == 1
    assert err == "error: pip install probattn[digits]; [red]x[/red]\n"
    code, _, err = command("evaluate", tmp_path / "[bold]run")
    assert code == 1
    assert is_one_message(err, "[bold]run holds no run")


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(train, "load_data", lambda *arguments, **options: {}["bug"])
    monkeypatch.setattr(sys, "argv", ["probattn", "train", KEP])
    with pytest.raises(KeyError, match="bug"):
        main.main()


@pytest.mark.parametrize(
    ("arguments", "advice"), [(["train", KEP], "--resume"), (["demo", "--workers", 1], "same command")]
)
def test_stopping_by_hand_tells_how_to_go_on(command, monkeypatch, tmp_path, arguments, advice):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", stop)
    code, _, err = command(*arguments, "--out", tmp_path)
    assert code == 130
    assert err.startswith("stopped; ")
    assert advice in err


START = [sys.executable, "-m", "probattn.experiments"]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_encodes_few_characters(tmp_path, encoding):
    """Tables, symbols and names fall back to what it can display."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    listed = subprocess.run([*START, "presets"], env=environment, capture_output=True, check=True)
    assert listed.stderr == b""
    assert {"ascii": "4 x 64, 4 heads", "latin-1": "4 × 64, 4 heads"}[encoding] in listed.stdout.decode(encoding)
    run = os.fsencode(tmp_path) + "/ü中".encode() + b"\xff\x1b[31m"
    refused = subprocess.run([*START, "evaluate", run], env=environment, capture_output=True, check=False)
    assert refused.returncode == 1
    assert rf"{tmp_path}/{'ü' if encoding == 'latin-1' else chr(92) + 'xfc'}\u4e2d\udcff\x1b[31m holds no run" in (
        refused.stderr.decode(encoding)
    )


def test_a_reader_that_stops_reading():
    """As in ``probattn presets | head``: quiet, with an exit status that is not 0."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*START, "presets"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_message_shows_escapes_in_place_of_control_characters(capsys):
    with pytest.raises(SystemExit) as stopped:
        terminal.fail("no \x1b[31mred\nsecond \u202e line", status=2)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: no \\x1b[31mred\nsecond \\u202e line\n"
    terminal.say("a\x07b\nc [bold]")
    assert capsys.readouterr().out == "a\\x07b\nc [bold]\n"


@pytest.mark.parametrize(
    "message",
    [
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.\n#2",
        "Storage size calculation overflowed with sizes=[9]",
    ],
)
def test_a_machine_without_enough_memory(command, monkeypatch, is_one_message, message):
    def fail(*arguments, **options):
        raise RuntimeError(message)

    monkeypatch.setattr(train, "load_data", fail)
    code, _, err = command("train", KEP)
    assert code == 1
    assert is_one_message(err, "out of memory", message.splitlines()[0], "reduce")


def test_options_have_the_bounds_of_the_settings():
    assert (terminal.COUNT["max"], terminal.SEED["max"]) == (MAX_COUNT, MAX_SEED)


@pytest.mark.slow
def test_the_process_itself(tmp_path, assignments, tiny, is_one_message):
    """Interrupted in training: no traceback, exit code 130; then an error: exit code 1, stderr alone."""
    changes = assignments([*tiny, "train.epochs=1000"])
    training = [*START, "train", KEP, "--out", str(tmp_path / "run"), *changes]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    with subprocess.Popen(training, **streams, preexec_fn=heard) as process:
        try:
            while not (tmp_path / "run" / "last.pt").exists():
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "stopped; the same command with --resume continues after the last whole epoch"
    assert "Traceback" not in err
    done = subprocess.run(training, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert is_one_message(done.stderr, tmp_path / "run", "holds a run", "--resume")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["while workers start", "while they train"])
def test_ctrl_c_ends_all_workers(tmp_path, begun):
    """Ctrl-C reaches the whole group of processes: no traceback, and no run is begun or goes on."""
    demo = [*START, "demo", "--layers", "softmax,kernel,kep-svgp", "--workers", "2", "--out", str(tmp_path / "runs")]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(demo, **streams, preexec_fn=heard) as process:
        try:
            assert process.stdout.readline().startswith("3 runs of 20 epochs, 2 at a time")
            time.sleep(1)
            while begun and not list(tmp_path.glob("runs/*/last.pt")):
                assert process.poll() is None
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines() == ["stopped; the same command continues after the last whole epoch"]
    assert len(list(tmp_path.glob("runs/*"))) <= 2
    assert not list(tmp_path.glob("runs/*/metrics.json"))
