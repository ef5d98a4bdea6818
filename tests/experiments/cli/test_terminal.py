"""Help, tables, errors and interruption of the command, in this process and as a process of its own."""

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
START = [sys.executable, "-m", "probattn.experiments"]
STREAMS = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def interruptible():
    """Let a process hear Ctrl-C, which a job in the background ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def fails_with(error):
    def fail(*arguments, **options):
        raise error

    return fail


@pytest.mark.parametrize("width", [40, 70, 90, 200])
def test_tables_lose_no_cell_on_a_narrow_terminal(monkeypatch, capsys, width):
    monkeypatch.setattr(terminal, "console", Console(width=width, force_terminal=True, color_system=None))
    table = Table(Column("run", no_wrap=True), *(f"metric {n}" for n in range(8)), "meaning")
    table.add_row("a-rather-long-name-of-a-run", *(f"{n}.123456" for n in range(8)), "some words and " + "x" * 99)
    terminal.show_table(table)
    text = capsys.readouterr().out
    assert "…" not in text
    assert [n for n in range(8) if f" {n}.123456 " not in text] == []
    assert text.count("x") == 99
    assert "a-rather-long-name-of-a-run" in text


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "compare", "study", "demo", "presets", "export"])
def test_help(command, name):
    code, text, err = command(name, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: probattn {name}" in text


def test_an_error_is_shown_as_it_is(command, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "load_data", fails_with(DatasetError("pip install x[y]; [red]x[/red]")))
    code, _, err = command("train", KEP, "--out", tmp_path / "[bold]run")
    assert (code, err) == (1, "error: pip install x[y]; [red]x[/red]\n")


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(train, "load_data", fails_with(KeyError("bug")))
    monkeypatch.setattr(sys, "argv", ["probattn", "train", KEP])
    with pytest.raises(KeyError, match="bug"):
        main.main()


@pytest.mark.parametrize("message", ["can't allocate memory: you tried to allocate 9 bytes.\n#2", "CUDA out of memory"])
def test_a_machine_without_enough_memory(command, monkeypatch, is_one_message, message):
    monkeypatch.setattr(train, "load_data", fails_with(RuntimeError(message)))
    code, _, err = command("train", KEP)
    assert code == 1
    assert is_one_message(err, "out of memory", "reduce")


@pytest.mark.parametrize(
    ("arguments", "advice"), [(["train", KEP], "--resume"), (["demo", "--workers", 1], "same command")]
)
def test_stopping_by_hand_tells_how_to_go_on(command, monkeypatch, tmp_path, arguments, advice):
    monkeypatch.setattr(train, "train", fails_with(KeyboardInterrupt()))
    code, _, err = command(*arguments, "--out", tmp_path)
    assert code == 130
    assert err.startswith("stopped; ")
    assert advice in err


def test_a_message_shows_escapes_in_place_of_control_characters(capsys):
    with pytest.raises(SystemExit, match="2"):
        terminal.fail("no \x1b[31mred\nsecond \u202e line", status=2)
    assert capsys.readouterr().err == "error: no \\x1b[31mred\nsecond \\u202e line\n"
    terminal.say("a\x07b\nc [bold]")
    assert capsys.readouterr().out == "a\\x07b\nc [bold]\n"


def test_options_have_the_bounds_of_the_settings():
    assert (terminal.COUNT["max"], terminal.SEED["max"]) == (MAX_COUNT, MAX_SEED)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_encodes_few_characters(tmp_path, encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    listed = subprocess.run([*START, "presets"], env=environment, capture_output=True, check=True)
    assert listed.stderr == b""
    run = os.fsencode(tmp_path) + "/ü中".encode() + b"\xff\x1b[31m"
    refused = subprocess.run([*START, "evaluate", run], env=environment, capture_output=True, check=False)
    assert refused.returncode == 1
    assert r"\u4e2d\udcff\x1b[31m holds no run" in refused.stderr.decode(encoding)


def test_a_reader_that_stops_reading():
    """As in ``probattn presets | head``: quiet, with an exit status that is not 0."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*START, "presets"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
def test_ctrl_c_in_training_and_then_an_error(tmp_path, assignments, tiny, is_one_message):
    training = [*START, "train", KEP, "--out", str(tmp_path / "run"), *assignments([*tiny, "train.epochs=1000"])]
    with subprocess.Popen(training, **STREAMS, preexec_fn=interruptible) as process:
        try:
            while not (tmp_path / "run" / "last.pt").exists():
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("stopped; ")
    assert "Traceback" not in err
    done = subprocess.run(training, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert is_one_message(done.stderr, tmp_path / "run", "--resume")


@pytest.mark.slow
def test_ctrl_c_ends_all_workers(tmp_path):
    """Ctrl-C reaches the whole group of processes: no traceback, and no run is begun or goes on."""
    demo = [*START, "demo", "--layers", "softmax,kernel,kep-svgp", "--workers", "2", "--out", str(tmp_path / "runs")]
    with subprocess.Popen(demo, **STREAMS, start_new_session=True, preexec_fn=interruptible) as process:
        try:
            assert "3 runs" in process.stdout.readline()
            while not list(tmp_path.glob("runs/*/last.pt")):
                assert process.poll() is None
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[0].startswith("stopped; ")
    assert "Traceback" not in err
    assert len(list(tmp_path.glob("runs/*"))) <= 2
