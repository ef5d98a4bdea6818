"""Program that torchrun starts on two ranks (gloo); each saves its results, which tests compare with one process."""

import os
import subprocess
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path

import torch
from elbos import ELBOS
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine.messenger import Messenger
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides
from probattn.inference import TrainOptions, fit
from probattn.inference.distributed import (
    average_over_ranks,
    broadcast_result,
    check_same_batches,
    make_fabric,
    rank_batches,
    world,
)
from probattn.inference.io.checkpoint import read
from probattn.inference.prediction.sharded import predict_sharded
from probattn.messages import is_amortised, is_global_latent
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian, TokenCategorical

SIZE, BATCH = 21, 5  # two ranks get 3 + 2 examples, and 1 + 0 at the end of an epoch


KEP = KEPSVGPAttention.partial(rank=2, eta=0.1)


TRAINED = {
    "closed KL, shared draw": {"attention": KEP, "per_example": False},
    "sampled KL, two particles": {"attention": KEP, "elbo": "trace", "num_particles": 2},
    "local sites": {"attention": SGPAttention.partial(inducing=3)},
    "regulariser": {"attention": CGPAttention},
}


class Network(nn.Module):
    """Two blocks, and a layer that is never used."""

    def __init__(self, attention=KEP, *, outputs=3, pool=True) -> None:
        super().__init__()
        self.embed, self.spare, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, outputs)
        self.layers = nn.ModuleList([SoftmaxAttention(4, 2), attention(4, 2)])
        self.pool = pool

    def forward(self, x, mask=None):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x.mean(-2) if self.pool else x)


class fixed(Messenger):  # noqa: N801
    """Handler whose draws depend only on the step, the site and the example, not on the rank."""

    def __init__(self, step, examples, *, per_example) -> None:
        super().__init__()
        self.step, self.examples, self.per_example = step, examples.tolist(), per_example

    def _pyro_sample(self, msg):
        fn = msg["fn"]
        if is_amortised(msg):
            noise = self.each(msg, lambda: torch.randn(fn.event_shape, dtype=torch.float64), dim=0)
            msg["value"] = (msg["infer"]["posterior"].mean + 0.1 * noise).expand(msg["value"].shape)
            return
        if msg["done"] or msg["value"] is not None:
            return
        if is_global_latent(msg) and self.per_example:
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


def train(*, attention, elbo="mean_field", per_example=True, num_particles=1):
    """Train an epoch on this rank's rows; return the first gradients, the last weights and the terms of each loss."""
    model, guide = build(attention=attention)
    fabric, objective = make_fabric("cpu", 1), ELBOS[elbo]()
    module = fabric.setup_module(objective(model, guide))
    parameters = {name: value for part in (model, guide) for name, value in part.named_parameters()}
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    loader, gradients, terms = shuffled(), {}, []
    for step, ((x, y, examples), loss_weight, _) in enumerate(rank_batches(loader)):
        with ExitStack() as handlers:
            handlers.enter_context(fixed(step, examples, per_example=per_example))
            if per_example:
                handlers.enter_context(draws("example"))
            if num_particles > 1:
                handlers.enter_context(draws(num_particles))
            loss = module(x, y) * loss_weight / SIZE
        optimizer.zero_grad()
        fabric.backward(loss)
        terms.append(average_over_ranks({name: value * loss_weight for name, value in objective.terms().items()}))
        if step == 0:
            gradients = {n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()}
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    return gradients, {name: value.detach().clone() for name, value in parameters.items()}, terms


def predictions():
    """Predict several kinds of data, each from the same random state on rank 0."""
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
        found[name] = content(predict_sharded(model, guide, given_data, num_samples=3, keep_draws=keep_draws))
    return found


def content(prediction):
    """Return the content of a prediction as tensors."""
    names = ("probs", "expected_entropy", "energy", "draws", "mask", "mean", "variance", "labels")
    values = {name: getattr(prediction, name) for name in names}
    if prediction.labels is not None:
        values["log_prob"] = prediction.log_prob(prediction.labels)
    return {name: value for name, value in values.items() if value is not None}


def local_predictions(predictor):
    """Predict the same batch twice, with local sites."""
    model, guide = build(attention=SGPAttention.partial(inducing=3))
    torch.manual_seed(7)
    return content(predictor(model, guide, [data(4)] * 2, num_samples=3, keep_draws=True))


class Augmented:
    """Five batches with random augmentation."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 5

    def __iter__(self):
        x, y = data(2)
        for _ in range(len(self)):
            yield x + torch.randn(x.shape, generator=self.generator), y


def after_prediction():
    """Predict a loader with a generator; return the probabilities and the generator's state afterwards."""
    loader = Augmented()
    torch.manual_seed(7)
    return content(predict_sharded(*build(), loader, num_samples=2))["probs"], loader.generator.get_state()


class Stopped(Exception):
    pass


class Interrupted(DataLoader):
    """Loader that stops the run at the second batch of its second epoch."""

    epochs = 0

    def __iter__(self):
        self.epochs += 1
        for number, batch in enumerate(super().__iter__()):
            if (self.epochs, number) == (2, 1):
                raise Stopped
            yield batch


def fitted(folder, *, family, stops=False, **more):
    """Return log and last weights of a run, which may be stopped and resumed; with family delta nothing is random."""
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
            logs = fit(
                model,
                guide,
                loader,
                valid,
                out=folder,
                options=TrainOptions(**options, **more),
                resume=True,
                progress=False,
            )
        except Stopped:
            continue
    content = read(folder / "last.pt")
    weights = {f"{part}.{name}": value for part in ("model", "guide") for name, value in content[part].items()}
    return logs.steps + logs.epochs, weights


def raised(function):
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def errors():
    """Return the errors of loaders that differ between ranks."""
    rank = world().rank
    x, y = data(9)
    sampler = DistributedSampler(TensorDataset(x, y), 2, rank)
    return {
        "sampler": raised(lambda: check_same_batches(DataLoader(sampler.dataset, sampler=sampler))),
        "batch sampler": raised(
            lambda: check_same_batches(DataLoader(x, batch_sampler=BatchSampler(RandomSampler(x), 2, False)))
        ),
        "no generator": raised(lambda: check_same_batches(DataLoader(x, shuffle=True))),
        "other seed": raised(lambda: check_same_batches(shuffled(rank))),
        "other length": raised(lambda: check_same_batches([(x, y)] * (rank + 1))),
        "fine": raised(lambda: check_same_batches(shuffled())),
    }


def main(folder):
    runs = Path(folder) / "runs"
    torch.save(
        {
            "trained": {name: train(**options) for name, options in TRAINED.items()},
            "predicted": predictions(),
            "local": local_predictions(predict_sharded),
            "generator": after_prediction(),
            "errors": errors(),
            "fitted": fitted(runs / "fitted", family="delta"),
            "accumulated": fitted(runs / "accumulated", family="delta", accumulate_grad_batches=3),
            "whole": fitted(runs / "whole", family="full"),
            "resumed": fitted(runs / "resumed", family="full", stops=True),
            "broadcast": broadcast_result(lambda: world().rank),
            "averaged": average_over_ranks({"rank": float(world().rank)}),
        },
        Path(folder) / f"{world().rank}.pt",
    )


def torchrun(*arguments, timeout=480):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, __file__, *map(str, arguments)]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )


if __name__ == "__main__":
    record(globals()[sys.argv[1]])(*sys.argv[2:])
