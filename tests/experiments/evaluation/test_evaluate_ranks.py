"""`torchrun … evaluate`: two processes share the test sets, with the same results as one, bit for bit."""

import os
import shutil
import subprocess
import sys

import pytest
from torch.testing import assert_close

from probattn.experiments.config import presets
from probattn.experiments.data.sealed_files import read_json
from probattn.experiments.evaluation import evaluate, prediction_store
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs import train
from probattn.inference.io.files import locked

KEP = "digits/kep-svgp"
TINY = [
    "train.epochs=1",
    "train.warmup_epochs=0",
    "data.limit=200",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
]
WHAT = {"by": ("mc-dropout", "temperature"), "corruptions": ("gaussian_noise", "contrast"), "severities": (2,)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "kep"
    train.train(presets.preset(KEP).with_changes(TINY), folder, name=KEP, progress=False)
    return folder


@pytest.fixture(autouse=True)
def _one_thread(threads):
    threads(1)


def evaluate_by_two(folder):
    options = ["--method", ",".join(WHAT["by"]), "--shift", "--corruptions", ",".join(WHAT["corruptions"])]
    options += ["--severities", ",".join(map(str, WHAT["severities"])), "--num-samples", "3", "--seed", "5"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "probattn.experiments", "evaluate", str(folder), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, env=environment
    )


@pytest.mark.slow
def test_two_processes_evaluate_as_one(trained, tmp_path):
    one, two = (shutil.copytree(trained, tmp_path / name) for name in ("one", "two"))
    evaluate.evaluate(one, num_samples=3, seed=5, shift=True, **WHAT)
    done = evaluate_by_two(two)
    assert done.returncode == 0, done.stdout
    for method in ("posterior", *WHAT["by"]):
        runs = map(read_evaluated_run, (one, two))
        mine, theirs = (run.predictions(run.test_sets, method) for run in runs)
        assert mine.keys() == theirs.keys()
        assert len(mine) == 4
        for name in mine:
            fields = [[getattr(each[name], field) for field in prediction_store.FIELDS] for each in (mine, theirs)]
            assert [value is None for value in fields[0]] == [value is None for value in fields[1]]
            known = [[value for value in part if value is not None] for part in fields]
            assert_close(*known, rtol=0, atol=0)
    contents = [read_json(folder / "metrics.json") for folder in (one, two)]
    for content in contents:
        assert content.pop("evaluated_on")
    assert repr(contents[0]) == repr(contents[1])
    assert (two / "report.html").is_file()
    assert done.stdout.count("4 of 4 groups of sets") == 1  # the first process alone speaks
    assert done.stdout.count("report: ") == 1


@pytest.mark.slow
def test_a_run_that_is_at_work_is_refused_by_all(trained):
    with locked(trained):
        done = evaluate_by_two(trained)
    assert done.returncode != 0
    assert f"The file lock '{trained}" in done.stdout
    assert not (trained / "metrics.json").exists()
