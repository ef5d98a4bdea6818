"""Training and prediction on two ranks of torchrun equal those of one process."""

import os
import subprocess
import sys

import pytest
import torch
import two_ranks
from two_ranks import TRAINED, after_prediction, fitted_at_mean, local_predictions, predictions

from probattn.inference import predict


def launch(*arguments):
    """Run a program on two ranks, which must end well; return what it wrote to stderr."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [*launcher, *arguments],
        capture_output=True,
        text=True,
        timeout=480,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Results of each of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    launch(two_ranks.__file__, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture
def _one_thread(threads):
    threads(1)


def distance(one, other):
    """Return the largest difference of tensors by name."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("name", TRAINED)
def test_two_processes_train_as_one(ranks, tmp_path, name):
    records, weights = fitted_at_mean(tmp_path, **TRAINED[name])
    assert all(distance(rank["trained"][name][1], weights) < 1e-10 for rank in ranks)
    for one, whole in zip(ranks[0]["trained"][name][0], records, strict=True):
        names = whole.keys() - {"kind", "seconds"}
        assert all(one[key] == pytest.approx(whole[key], rel=1e-10, abs=1e-10) for key in names)


def test_a_run_on_two_processes_that_is_stopped_and_resumed_ends_bit_for_bit_as_one_that_is_not(
    ranks,
):
    assert all(distance(rank["whole"][1], rank["resumed"][1]) == 0 for rank in ranks)
    whole, resumed = (
        [record | {"seconds": 0} for record in ranks[0][name][0]] for name in ("whole", "resumed")
    )
    assert resumed == whole


@pytest.mark.usefixtures("_one_thread")
def test_two_processes_predict_as_one_bit_for_bit(ranks):
    expected = predictions()
    for rank in ranks:
        assert rank["predicted"].keys() == expected.keys()
        for name, values in expected.items():
            assert rank["predicted"][name].keys() == values.keys()
            assert all(torch.equal(rank["predicted"][name][key], values[key]) for key in values), (
                name
            )


@pytest.mark.usefixtures("_one_thread")
def test_local_sites_are_drawn_on_each_rank(ranks):
    one, other = (rank["local"] for rank in ranks)
    assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = one["draws"].split(4, 1)
    assert torch.equal(first, local_predictions(predict)["draws"][:, :4])
    assert not torch.isclose(first, second).any()


@pytest.mark.usefixtures("_one_thread")
def test_the_loaders_generator_has_the_same_state_on_all_ranks_as_in_one_process(ranks):
    probs, state = after_prediction()
    for rank in ranks:
        assert torch.equal(rank["generator"][0], probs)
        assert torch.equal(rank["generator"][1], state)


def test_loaders_that_would_train_wrongly_are_refused(ranks):
    expected = ["sampler", "batch sampler", "no generator", "other seed", "other length"]
    assert [rank["refused"] for rank in ranks] == [expected] * 2


def test_prediction_without_data_fails_on_each_rank_as_in_one_process(ranks):
    assert all("no data to predict" in rank["without batches"] for rank in ranks)


def test_results_are_broadcast_from_the_first_rank_and_means_are_over_all(ranks):
    assert [rank["broadcast"] for rank in ranks] == [0, 0]
    assert [rank["averaged"] for rank in ranks] == [{"rank": 0.5, "three": 3.0}] * 2


def test_a_network_that_uses_all_its_parameters_is_trained_without_a_warning(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from probattn import guides\n"
        "from probattn.inference import TrainOptions, fit\n"
        "from probattn.models import Classifier\n"
        "model = Classifier(torch.nn.Linear(3, 2), num_data=4)\n"
        "data = [(torch.eye(4, 3), torch.tensor([0, 1, 0, 1]))]\n"
        "options = TrainOptions(epochs=2, clip_norm=1.0)\n"
        "fit(model, guides.for_model(model), data, data, options=options, progress=False)\n"
    )
    assert "unused" not in launch(program)


@pytest.mark.slow
def test_processes_end_well_however_busy_the_machine_is(tmp_path):
    """The threads of a process group that is left to the end abort the process now and then."""
    program = tmp_path / "program.py"
    program.write_text(
        "from probattn.inference import distributed\n"
        "distributed.make_fabric('cpu', 1)\n"
        "distributed.broadcast_result(lambda: 1)\n"
    )
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for _ in range(12):
            launch(program)
    finally:
        for process in busy:
            process.kill()
            process.wait()
