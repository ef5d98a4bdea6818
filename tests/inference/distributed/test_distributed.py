"""Two processes that torchrun starts (gloo) do what one does. They run this very file, which leaves what they find."""

import os
import signal
import subprocess
import sys
import time
import zlib
from contextlib import ExitStack
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch import distributed, nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides
from probattn.handlers import is_amortised, is_global_latent, kl_weight
from probattn.inference import CheckpointError, fit, predict
from probattn.inference.distributed.batch_sharding import Shard, shard
from probattn.inference.distributed.collectives import (
    averaged,
    broadcast_result,
    gather_results,
    make_fabric,
    rank_zero_first,
    reporting,
    world,
)
from probattn.inference.distributed.random_state import capture, restore, seed_per_rank
from probattn.inference.elbo import ELBOS
from probattn.inference.io.checkpoint import read
from probattn.inference.prediction.sharded import predict_sharded
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian, TokenCategorical

SIZE, BATCH, STEPS = 21, 5, 10  # two ranks get 3 + 2 examples, and 1 + 0 at the end of an epoch
KEP = KEPSVGPAttention.partial(rank=2, eta=0.1)
TRAINED = {
    "closed KL, shared draw": {"attention": KEP, "per_example": False},
    "closed KL, draw per example": {"attention": KEP},
    "sampled KL, two particles": {"attention": KEP, "elbo": "trace", "num_particles": 2},
    "sites of one example": {"attention": SGPAttention.partial(inducing=3)},
    "sites of one example, sampled KL": {"attention": SGPAttention.partial(inducing=3), "elbo": "trace"},
    "regulariser": {"attention": CGPAttention},
}
BROKEN = {
    "share forgotten": {"attention": KEP, "shared": False},
    "KL twice": {"attention": KEP, "kl": 2.0},
}


class Network(PyroModule):
    """Two blocks and a layer that nothing uses."""

    def __init__(self, attention=KEP, *, outputs=3, pool=True) -> None:
        super().__init__()
        self.embed, self.spare, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, outputs)
        self.layers = PyroModule[nn.ModuleList]([SoftmaxAttention(4, 2), attention(4, 2)])
        self.pool = pool

    def forward(self, x, mask=None):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x.mean(-2) if self.pool else x)


class fixed(Messenger):  # noqa: N801
    """Draws that depend on the step, the site and the example, wherever that is."""

    def __init__(self, step, examples, *, per_example) -> None:
        super().__init__()
        self.step, self.examples, self.per_example = step, examples.tolist(), per_example

    def _pyro_sample(self, msg):
        fn = msg["fn"]
        if msg["done"] or msg["value"] is not None:
            return
        if is_amortised(msg):
            noise = self.each(msg, lambda: torch.randn(fn.event_shape, dtype=torch.float64), dim=0)
            msg["value"], msg["done"] = (fn.mean + 0.1 * noise).expand(fn.batch_shape + fn.event_shape), True
        elif is_global_latent(msg) and self.per_example:
            above, base = fn.batch_shape[:-1], fn
            while isinstance(base, ExpandedDistribution):
                base = base.base_dist
            msg["value"], msg["done"] = self.each(msg, lambda: base.rsample(above), dim=len(above)), True
        elif is_global_latent(msg):
            msg["value"], msg["done"] = self.seeded(msg, None, fn.rsample), True

    def each(self, msg, draw, *, dim):
        return torch.stack([self.seeded(msg, example, draw) for example in self.examples], dim)

    def seeded(self, msg, example, draw):
        with torch.random.fork_rng():
            torch.manual_seed(zlib.crc32(f"{self.step} {msg['name']} {example}".encode()))
            return draw()


def build(likelihood=None, **options):
    torch.manual_seed(0)
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=SIZE).double()
    return model, guides.for_model(model)


def data(size=SIZE, tokens=4, *, seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(size, tokens, 3, generator=source, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=source)


def shuffled(seed=0):
    source = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*data(), torch.arange(SIZE)), batch_size=BATCH, shuffle=True, generator=source)


def train(*, attention, elbo="mean_field", per_example=True, num_particles=1, shared=True, kl=1.0):
    """First gradients, last weights and the terms of each loss of ten steps of this process's part of each batch."""
    model, guide = build(attention=attention)
    fabric, objective = make_fabric("cpu", 1), ELBOS[elbo]()
    module = fabric.setup_module(objective(model, guide))
    parameters = {name: value for part in (model, guide) for name, value in part.named_parameters()}
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    batches, gradients, terms = shard(shuffled()), {}, []
    epochs = -(-STEPS // len(batches))
    for step, ((x, y, examples), share, _) in enumerate(each for _ in range(epochs) for each in batches):
        with ExitStack() as handlers:
            handlers.enter_context(fixed(step, examples, per_example=per_example))
            handlers.enter_context(kl_weight(kl if world().size > 1 else 1.0))
            if per_example:
                handlers.enter_context(draws("example"))
            if num_particles > 1:
                handlers.enter_context(draws(num_particles))
            scale = share if shared else 1.0
            loss = module(x, y) * scale / SIZE
        optimizer.zero_grad()
        fabric.backward(loss)
        terms.append(averaged({name: value * scale for name, value in objective.terms().items()}))
        if step == 0:
            gradients = {n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()}
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    return gradients, {name: value.detach().clone() for name, value in parameters.items()}, terms


def predictions():
    """What is predicted of several kinds of data, each from the same random state on rank 0."""
    x, y = data(9)
    batches = list(zip(x.split(4), y.split(4), strict=True))
    masks = [torch.arange(longest) < torch.tensor([[longest], [2]]) for longest in (3, 6, 4)]
    texts = [
        (data(2, mask.shape[1], seed=n)[0], torch.ones(mask.shape, dtype=int), mask) for n, mask in enumerate(masks)
    ]
    cases = {
        "classes": ((None, {}), batches, True),
        "fewer batches than ranks": ((None, {}), batches[:1], False),
        "a tensor": ((None, {}), x, False),
        "tokens": ((TokenCategorical(), {"pool": False}), texts, True),
        "regression": ((Gaussian(), {"outputs": 2}), [(x, x.mean(-2)[:, :2]) for x, _ in batches], False),
    }
    found = {}
    for name, ((likelihood, options), given_data, keep_draws) in cases.items():
        model, guide = build(likelihood, **options)
        torch.manual_seed(7 + world().rank)
        found[name] = told(predict_sharded(model, guide, given_data, num_samples=3, keep_draws=keep_draws))
    return found


def told(prediction):
    """All that a prediction says, as tensors."""
    names = ("probs", "expected_entropy", "energy", "draws", "mask", "mean", "variance", "labels")
    values = {name: getattr(prediction, name) for name in names}
    if prediction.labels is not None:
        values["log_prob"] = prediction.log_prob(prediction.labels)
    return {name: value for name, value in values.items() if value is not None}


def local_predictions(predictor):
    """The same batch twice, with sites of one example."""
    model, guide = build(attention=SGPAttention.partial(inducing=3))
    torch.manual_seed(7)
    return told(predictor(model, guide, [data(4)] * 2, num_samples=3, keep_draws=True))


class Augmented:
    """Five batches, each changed at random when it is asked for."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 5

    def __iter__(self):
        x, y = data(2)
        for _ in range(len(self)):
            yield x + torch.randn(x.shape, generator=self.generator), y


def after_prediction():
    """What is predicted of a loader with a generator, and the generator's state behind that."""
    loader = Augmented()
    torch.manual_seed(7)
    return told(predict_sharded(*build(), loader, num_samples=2))["probs"], loader.generator.get_state()


class Stopped(Exception):
    pass


class Interrupted(DataLoader):
    """A loader that stops the run it is in at the second batch of its second epoch."""

    epochs = 0

    def __iter__(self):
        self.epochs += 1
        for number, batch in enumerate(super().__iter__()):
            if (self.epochs, number) == (2, 1):
                raise Stopped
            yield batch


def fitted(folder, *, family, stops=False, **more):
    """Logs and last weights of a run, which may be stopped and resumed; of family delta, it knows no chance."""
    x, y = data()
    logs = None
    while logs is None:
        model, _ = build()
        guide = guides.for_model(model, family)
        kind = Interrupted if stops and not (folder / "last.pt").exists() else DataLoader
        source = torch.Generator().manual_seed(1)
        loader = kind(TensorDataset(x, y), batch_size=BATCH, shuffle=True, generator=source)
        valid = DataLoader(TensorDataset(*data(9, seed=1)), batch_size=4)
        options = {"epochs": 3, "lr": 0.02, "clip_norm": 0.5, "weight_decay": 0.01, "log_every": 1, "num_samples": 2}
        try:
            logs = fit(model, guide, loader, valid, out=folder, resume=True, progress=False, **options, **more)
        except Stopped:
            continue
    content = read(folder / "last.pt")
    weights = {f"{part}.{name}": value for part in ("model", "guide") for name, value in content[part].items()}
    return logs.steps + logs.epochs, weights


def raised(function):
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "__notes__", [])
    return None


def errors():
    """Of functions that fail on one rank, on each."""
    rank = world().rank
    x, y = data(9)
    broken = x.clone()
    broken[-1] = torch.nan
    sampler = DistributedSampler(TensorDataset(x, y), 2, rank)
    return {
        "NaN": raised(lambda: predict_sharded(*build(), list(zip(broken.split(4), y.split(4), strict=True)))),
        "no batch": raised(lambda: predict_sharded(*build(), [])),
        "first": raised(lambda: broadcast_result(lambda: {}["x"])),
        "last": raised(lambda: gather_results(lambda: 1 // (1 - rank))),
        "unpicklable": raised(lambda: gather_results(lambda: lambda: None)),
        "devices": raised(lambda: make_fabric("cpu", 2)),
        "sampler": raised(lambda: shard(DataLoader(sampler.dataset, sampler=sampler))),
        "batch sampler": raised(lambda: shard(DataLoader(x, batch_sampler=BatchSampler(RandomSampler(x), 2, False)))),
        "no generator": raised(lambda: shard(DataLoader(x, shuffle=True))),
        "other seed": raised(lambda: shard(shuffled(rank))),
        "other length": raised(lambda: shard([(x, y)] * (rank + 1))),
        "fine": raised(lambda: shard(shuffled())),
    }


def random_states():
    """The draws of a run on two ranks, and of those that go on from its states, or those of fewer or more ranks."""
    found = {}
    torch.manual_seed(3)
    seed_per_rank()
    loader = shuffled()
    next(iter(loader))
    states = capture(loader)

    def drawn():
        return torch.rand(4), next(iter(loader))[2]

    found["whole"] = drawn()
    for name, given_states in {
        "two": states,
        "one": states[:1],
        "old": states[0],
        "three": [*states, states[0]],
    }.items():
        restore(given_states, loader)
        found[name] = drawn()
    return states, found


def main(folder):
    runs = Path(folder) / "runs"
    torch.save(
        {
            "trained": {name: train(**options) for name, options in (TRAINED | BROKEN).items()},
            "predicted": predictions(),
            "local": local_predictions(predict_sharded),
            "generator": after_prediction(),
            "errors": errors(),
            "random": random_states(),
            "fitted": fitted(runs / "fitted", family="delta"),
            "deferred": fitted(runs / "deferred", family="delta", capture=True),
            "whole": fitted(runs / "whole", family="full"),
            "resumed": fitted(runs / "resumed", family="full", stops=True),
            "on first": broadcast_result(lambda: world().rank),
            "averaged": averaged({"rank": float(world().rank)}),
        },
        Path(folder) / f"{world().rank}.pt",
    )


def fail():
    """Ten steps of DDP, in which rank 1 fails the first time torchrun starts it, and dies slowly the second time."""
    fabric = make_fabric("auto", 1)
    module = fabric.setup_module(nn.Linear(3, 2))
    for step in range(10):
        if step == 3 and world().rank == 1:
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise ValueError("this is the cause")
            del fabric, module
            distributed.destroy_process_group()
            time.sleep(5)  # rank 0 has lost it, and torchrun sees it live
            os.kill(os.getpid(), signal.SIGKILL)
        fabric.backward(module(torch.ones(4, 3)).sum())


def torchrun(*arguments, restarts=0):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, f"--max-restarts={restarts}", __file__, *map(str, arguments)]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks has found."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun("main", folder)
    assert done.returncode == 0, done.stdout
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture
def _one_thread(threads):
    threads(1)


def distance(one, other):
    """The largest difference of tensors by name; None beside None is none."""
    assert one.keys() == other.keys()
    assert all((one[name] is None) == (other[name] is None) for name in one)
    return max((one[name] - other[name]).abs().max().item() for name in one if one[name] is not None)


@pytest.mark.parametrize("name", TRAINED)
def test_two_processes_train_as_one(ranks, name):
    gradients, weights, terms = train(**TRAINED[name])
    assert any(value is None for value in gradients.values())
    for rank in ranks:
        first, last, seen = rank["trained"][name]
        assert distance(first, gradients) < 1e-10
        assert distance(last, weights) < 1e-10
        assert [each.keys() for each in seen] == [each.keys() for each in terms]
        pairs = [(each[key], whole[key]) for each, whole in zip(seen, terms, strict=True) for key in whole]
        assert all(value == pytest.approx(whole, rel=1e-10, abs=1e-10) for value, whole in pairs)


@pytest.mark.parametrize("name", ["fitted", "deferred"])
def test_fit_on_two_processes_is_fit_on_one(ranks, tmp_path, name):
    records, weights = fitted(tmp_path, family="delta", capture=name == "deferred")
    assert len(records) == 3 * 5 + 3
    seen, last = ranks[0][name]
    assert distance(last, weights) < 1e-10
    for own, whole in zip(seen, records, strict=True):
        assert own.keys() == whole.keys()
        numbers = own.keys() - {"kind", "seconds"}
        assert all(own[key] == pytest.approx(whole[key], rel=1e-10, abs=1e-10) for key in numbers)


def test_a_run_on_two_processes_that_is_stopped_and_resumed_ends_bit_for_bit_as_one_that_is_not(ranks):
    assert all(distance(rank["whole"][1], rank["resumed"][1]) == 0 for rank in ranks)
    whole, resumed = ([each | {"seconds": 0} for each in ranks[0][name][0]] for name in ("whole", "resumed"))
    assert resumed == whole


@pytest.mark.parametrize("name", BROKEN)
def test_a_forgotten_share_and_a_kl_that_counts_twice_are_seen(ranks, name):
    first, last, _ = ranks[0]["trained"][name]
    gradients, weights, _ = train(attention=KEP)
    assert distance(first, gradients) > 1e-4
    assert distance(last, weights) > 1e-4


@pytest.mark.usefixtures("_one_thread")
def test_two_processes_predict_as_one_bit_for_bit(ranks):
    expected = predictions()
    for rank in ranks:
        assert rank["predicted"].keys() == expected.keys()
        for name, values in expected.items():
            found = rank["predicted"][name]
            assert found.keys() == values.keys()
            assert all(torch.equal(found[key], values[key]) for key in values), name


@pytest.mark.usefixtures("_one_thread")
def test_sites_of_one_example_are_drawn_anew_on_each_rank(ranks):
    one, other = (rank["local"] for rank in ranks)
    assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = one["draws"].split(4, 1)
    assert torch.equal(first, local_predictions(predict)["draws"][:, :4])
    assert not torch.isclose(first, second).any()


@pytest.mark.usefixtures("_one_thread")
def test_the_loaders_generator_stands_on_all_ranks_where_it_stands_on_one(ranks):
    probs, state = after_prediction()
    for rank in ranks:
        assert torch.equal(rank["generator"][0], probs)
        assert torch.equal(rank["generator"][1], state)


def test_an_error_is_raised_on_all_ranks_and_says_what_failed_where(ranks):
    zero, one = (rank["errors"] for rank in ranks)
    assert one["NaN"][:2] == ("ValueError", "NaN or Inf in the inputs of batch 1")
    assert "counts batches from 1 on" in one["NaN"][2][0]
    assert zero["NaN"][0] == "PeerError"
    assert "rank 1 failed: ValueError: NaN or Inf in the inputs of batch 1" in zero["NaN"][1]
    assert "counts batches from 1 on" in zero["NaN"][1]
    assert zero["first"][:2] == ("KeyError", "'x'")
    assert one["first"][:2] == ("PeerError", "rank 0 failed: KeyError: 'x'")
    assert one["last"][0] == "ZeroDivisionError"
    assert zero["last"][:2] == ("PeerError", "rank 1 failed: ZeroDivisionError: integer division or modulo by zero")
    for found in (zero, one):
        assert found["no batch"][:2] == ("ValueError", "no data to predict: the loader gave no batch")
        assert "pickle" in found["unpicklable"][1].lower()


def test_what_would_train_wrongly_is_refused(ranks):
    for rank in ranks:
        found = rank["errors"]
        assert found.pop("fine") is None
        for name, words in {
            "devices": "leave devices=1",
            "sampler": "DistributedSampler shares out the examples a second time",
            "batch sampler": "RandomSampler has no generator",
            "no generator": "RandomSampler has no generator",
            "other seed": "rank 1 would see other batches",
            "other length": "rank 1 would see other batches",
        }.items():
            assert found[name][0] == "ValueError"
            assert words in found[name][1]


def test_random_states_of_all_ranks_are_kept_and_another_number_of_ranks_goes_on_with_other_draws(ranks):
    (states, zero), (same, one) = (rank["random"] for rank in ranks)
    assert len(states) == 2
    assert all(torch.equal(a[key], b[key]) for a, b in zip(states, same, strict=True) for key in ("torch", "loader"))
    torch.manual_seed(3)
    loader = shuffled()
    next(iter(loader))
    assert torch.equal(zero["whole"][0], torch.rand(4))
    for found in (zero, one):
        assert torch.equal(found["two"][0], found["whole"][0])
        assert all(torch.equal(each[1], found["whole"][1]) for each in found.values())
    for other in ("one", "old", "three"):
        drawn = [found[name][0] for found in (zero, one) for name in ("whole", other)]
        assert all(not torch.equal(a, b) for n, a in enumerate(drawn) for b in drawn[:n])


def test_the_first_rank_speaks_for_all_and_means_are_of_all(ranks):
    assert [rank["on first"] for rank in ranks] == [0, 0]
    assert [rank["averaged"] for rank in ranks] == [{"rank": 0.5}] * 2


def test_torchrun_names_the_rank_that_died_and_not_those_that_died_of_it():
    done = torchrun("fail", restarts=1)
    assert done.returncode != 0
    first, _, second = done.stdout.partition("failed (exitcode: 1) local_rank: 1")
    assert "[rank1]: ValueError: this is the cause" in first
    _, _, cause = second.rpartition("Root Cause")
    assert "rank      : 1" in cause
    assert "Signal 9 (SIGKILL)" in cause
    assert "Connection" not in cause


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_mean_of_the_parts_times_their_shares_is_that_of_the_batch(size, number, seed):
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    parts = [next(iter(Shard([(x, x)], rank=rank, world=number))) for rank in range(number)]
    assert sum(each.share for each in parts) == pytest.approx(number)
    mean = sum(each.share * each.batch[0].mean(0) for each in parts) / number
    torch.testing.assert_close(mean, x.mean(0))
    rows = torch.cat([each.batch[0] for each in parts if each.share > 0])
    assert sorted(rows.tolist()) == sorted(x.tolist())
    assert all(each.whole == size and len(each.batch[0]) >= 1 for each in parts)


def test_one_process_is_as_it_was():
    assert world() == (0, 1)
    batches = [data()]
    own = shard(batches)
    assert len(own) == 1
    (((x, _), share, whole),) = own
    assert (share, whole) == (1.0, SIZE)
    assert x.data_ptr() == batches[0][0].data_ptr()
    assert reporting(main) is main
    calls = []
    assert rank_zero_first(lambda: calls.append(1) or len(calls)) == 1
    for function in (broadcast_result, rank_zero_first):
        with pytest.raises(ZeroDivisionError):
            function(lambda: 1 // 0)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node=2"):
        make_fabric("cpu", 2)
    with pytest.raises(CheckpointError, match="generator"):
        restore(capture(shuffled()), batches)


if __name__ == "__main__":
    reporting(globals()[sys.argv[1]])(*sys.argv[2:])
