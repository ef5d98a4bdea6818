"""Studies: their runs, the files of a run, and resuming."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation import methods, provenance
from probattn.experiments.studies import study

TINY = ("data.limit=200", "network.dim=16", "network.depth=2", "network.heads=2", "network.mlp_dim=16")


def test_jobs_are_all_layers_of_a_seed_before_the_next(tmp_path):
    jobs = study.plan(["digits/softmax", "digits/cgp"], seeds=2, epochs=7, out=tmp_path)
    assert [(job.preset, job.seed, job.folder.relative_to(tmp_path)) for job in jobs] == [
        ("digits/softmax", 0, Path("digits/softmax/seed-0")),
        ("digits/cgp", 0, Path("digits/cgp/seed-0")),
        ("digits/softmax", 1, Path("digits/softmax/seed-1")),
        ("digits/cgp", 1, Path("digits/cgp/seed-1")),
    ]


def test_unknown_presets_are_named(tmp_path):
    with pytest.raises(SettingsError, match="sofmax"):
        study.plan(["digits/sofmax"], seeds=1, epochs=3, out=tmp_path)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(study, "SEVERITIES", (3,))


def test_a_job_trains_and_evaluates_and_a_second_call_does_neither(small, tmp_path, monkeypatch):
    (job,) = study.plan(["digits/softmax"], seeds=1, epochs=3, out=tmp_path, changes=TINY)
    accuracy = study.run_job(job, ("temperature",))
    content = json.loads((job.folder / "metrics.json").read_text())
    settings = json.loads((job.folder / "settings.json").read_text())["settings"]
    assert settings["train"]["seed"] == 0
    assert settings["train"]["epochs"] == 3
    assert set(content["methods"]) == {"posterior", "temperature"}
    assert len(content["methods"]["temperature"]["shift"]) == 15
    assert set(content["methods"]["posterior"]["ood"]) == {"letters", "patches"}
    assert accuracy == content["metrics"]["accuracy"]
    monkeypatch.setattr(methods, "fit", lambda *arguments, **options: pytest.fail("predicted"))
    before = (job.folder / "last.pt").stat().st_mtime_ns
    assert study.run_job(job, ("temperature",)) == accuracy
    assert (job.folder / "last.pt").stat().st_mtime_ns == before
    monkeypatch.setattr(provenance, "version", lambda name: "another")
    with pytest.raises(pytest.fail.Exception, match="predicted"):
        study.run_job(job, ("temperature",))


@pytest.mark.slow
def test_what_a_run_raises_ends_the_study(tmp_path):
    job = study.Job("digits/nothing", 0, 3, tmp_path / "run")
    with pytest.raises(SettingsError, match="unknown preset"):
        study.run_study([job], by=(), workers=2)


def test_unknown_methods_are_refused_before_anything_is_trained(tmp_path):
    todo = study.plan(["digits/softmax"], seeds=1, epochs=3, out=tmp_path)
    with pytest.raises(SettingsError, match="unknown method"):
        study.run_study(todo, by=("laplac",), workers=1)
    assert not list(tmp_path.iterdir())


def test_a_preset_named_twice_is_one_job(tmp_path):
    assert len(study.plan(["digits/softmax"] * 2, seeds=1, epochs=3, out=tmp_path)) == 1


def test_the_seed_is_the_studys_own(tmp_path):
    with pytest.raises(SettingsError, match=r"use --seeds N in place of train\.seed"):
        study.plan(["digits/softmax"], seeds=1, epochs=3, out=tmp_path, changes=["train.seed=7"])


def test_changes_are_checked_before_anything_is_trained(tmp_path):
    with pytest.raises(SettingsError, match="unknown key"):
        study.plan(["digits/softmax"], seeds=1, epochs=3, out=tmp_path, changes=["train.epoch=7"])


def test_workers_end_with_a_study_that_is_killed(tmp_path):
    """Workers that survive would continue training, in folders that the next study uses as well."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "from probattn.experiments.runs.workers import run_in_workers\n"
        "def job(seconds):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(seconds)\n"
        "if __name__ == '__main__':\n"
        "    list(run_in_workers(job, [300], workers=1))\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 30
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(worker)


def is_running(pid):
    """Return True if a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
