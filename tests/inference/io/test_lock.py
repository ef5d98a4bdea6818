"""Lock of a run's folder: a second process is refused and changes nothing."""

import subprocess
import sys
import threading

import filelock
import pytest

from probattn.inference.io.files import LOCK, locked

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Start a process that holds the lock of a folder."""
    started = []

    def start(folder):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", HOLD, folder / LOCK]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def attempt(folder):
    """Return the error that another thread gets, or None."""
    found = []

    def enter():
        try:
            with locked(folder):
                found.append(None)
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return found[0]


def test_another_process_is_refused_until_the_first_is_gone_however_it_ends(tmp_path, other):
    process = other(tmp_path / "run")
    with pytest.raises(filelock.Timeout, match=str(tmp_path / "run")), locked(tmp_path / "run"):
        pass
    process.kill()
    process.wait()
    with locked(tmp_path / "run"):
        pass


def test_a_process_that_holds_it_keeps_others_out(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path / LOCK]
    with locked(tmp_path):
        held = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in held.stderr
    assert subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def test_another_thread_is_refused_and_the_same_one_may_enter_again(tmp_path):
    with locked(tmp_path):
        with locked(tmp_path):
            assert isinstance(attempt(tmp_path), filelock.Timeout)
        assert isinstance(attempt(tmp_path), filelock.Timeout)
    assert attempt(tmp_path) is None


def test_an_error_releases_it(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    assert attempt(tmp_path) is None


def test_a_relative_path_is_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with locked(tmp_path):
        assert isinstance(attempt(tmp_path.joinpath("..", tmp_path.name)), filelock.Timeout)
