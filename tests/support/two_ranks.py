"""Program that torchrun starts on two ranks (gloo); each saves its results, which tests compare
with one process."""

import contextlib
import sys
from pathlib import Path

import torch
from small_fit import Loader, kill
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_collate,
)

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, guides
from probattn.draws import at_mean
from probattn.inference import TrainOptions, distributed, fit
from probattn.inference.io.checkpoint import read
from probattn.inference.prediction.sharded import predict_sharded
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian, TokenCategorical

SIZE, BATCH = 21, 5  # two ranks get 3 + 2 examples, and 1 + 0 at the end of an epoch


KEP = KEPSVGPAttention.partial(rank=2, eta=0.1)


# With all sites at their means, so that nothing is random.
TRAINED = {
    "closed KL, shared draw": {"samples_per": "batch"},
    "sampled KL, two particles": {"elbo": "trace", "num_particles": 2},
    "local sites": {"attention": SGPAttention.partial(inducing=3)},
    "regulariser": {"attention": CGPAttention},
    "accumulated": {"accumulate_grad_batches": 3},
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
    return DataLoader(
        TensorDataset(*data(), torch.arange(SIZE)), batch_size=BATCH, shuffle=True, generator=source
    )


def predictions():
    """Predict several kinds of data, each from the same random state on rank 0."""
    x, y = data(9)
    batches, texts = list(zip(x.split(4), y.split(4), strict=True)), []
    for seed, longest in enumerate((3, 6, 4)):
        mask = torch.arange(longest) < torch.tensor([[longest], [2]])
        texts.append((data(2, longest, seed=seed)[0], mask.new_ones(mask.shape, dtype=int), mask))
    values = {}
    for name, likelihood, options, batches_of_kind, keep_draws in (
        ("classes", None, {}, batches, True),
        ("fewer batches than ranks", None, {}, batches[:1], False),
        ("a tensor", None, {}, x, False),
        ("tokens", TokenCategorical(), {"pool": False}, texts, True),
        (
            "regression",
            Gaussian(),
            {"outputs": 2},
            [(x, x.mean(-2)[:, :2]) for x, _ in batches],
            False,
        ),
    ):
        pair = build(likelihood, **options)
        torch.manual_seed(7 + distributed.world().rank)
        values[name] = content(
            predict_sharded(*pair, batches_of_kind, num_samples=3, keep_draws=keep_draws)
        )
    return values


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


def after_prediction():
    """Predict a loader with augmentation by a generator; return the probabilities and its state
    afterwards."""
    generator = torch.Generator().manual_seed(0)

    def noisy(rows):
        x, y = default_collate(rows)
        return x + torch.randn(x.shape, generator=generator), y

    loader = DataLoader(
        TensorDataset(*data(10)), batch_size=2, collate_fn=noisy, generator=generator
    )
    torch.manual_seed(7)
    return content(predict_sharded(*build(), loader, num_samples=2))["probs"], generator.get_state()


def fitted(folder, *, attention=KEP, stops=False, **more):
    """Return log and last weights of a run, which may be stopped and resumed."""
    options = {"epochs": 2, "lr": 0.02, "clip_norm": 0.5, "weight_decay": 0.01, "log_every": 1}
    run = {
        "options": TrainOptions(**options, num_samples=2, **more),
        "out": folder,
        "resume": True,
        "progress": False,
    }
    for stop in [True, False] if stops else [False]:
        source = torch.Generator().manual_seed(1)
        loader = Loader(TensorDataset(*data()), batch_size=BATCH, shuffle=True, generator=source)
        loader.at, loader.callback = (2, 1) if stop else None, kill
        valid = DataLoader(TensorDataset(*data(9, seed=1)), batch_size=4)
        with contextlib.suppress(KeyboardInterrupt):
            logs = fit(*build(attention=attention), loader, valid, **run)
    content = read(folder / "last.pt")
    weights = {
        f"{part}.{name}": value
        for part in ("model", "guide")
        for name, value in content[part].items()
    }
    return logs.steps + logs.epochs, weights


def fitted_at_mean(folder, **options):
    with at_mean():
        return fitted(folder, **options)


def without_batches():
    """Return the error of a prediction for no data."""
    try:
        return predict_sharded(*build(), [])
    except ValueError as error:
        return str(error)


def refused_loaders():
    """Return the names of loaders that differ between ranks and are refused."""
    rank, (x, y) = distributed.world().rank, data(9)
    loaders = {
        "sampler": DataLoader(x, sampler=DistributedSampler(x, 2, rank)),
        "batch sampler": DataLoader(x, batch_sampler=BatchSampler(RandomSampler(x), 2, False)),
        "no generator": DataLoader(x, shuffle=True),
        "other seed": shuffled(rank),
        "other length": [(x, y)] * (rank + 1),
        "fine": shuffled(),
        "stream": DataLoader(Stream(), batch_size=2),
    }
    refused = []
    for name, loader in loaders.items():
        try:
            distributed.check_same_batches(loader)
        except ValueError:
            refused.append(name)
    return refused


class Stream(IterableDataset):
    """Examples that come in one order, of a known number."""

    def __iter__(self):
        return iter(data(4)[0])

    def __len__(self):
        return 4


def in_order_of_rank(**values):
    """Return numbers, on rank 1 in the reversed order."""
    order = (1, -1)[distributed.world().rank]
    return dict(list(values.items())[::order])


def main(folder):
    runs, rank = Path(folder) / "runs", distributed.world().rank
    results = {
        "trained": {name: fitted_at_mean(runs / name, **TRAINED[name]) for name in TRAINED},
        "predicted": predictions(),
        "local": local_predictions(predict_sharded),
        "generator": after_prediction(),
        "refused": refused_loaders(),
        "without batches": without_batches(),
        "whole": fitted(runs / "whole"),
        "resumed": fitted(runs / "resumed", stops=True),
        "broadcast": distributed.broadcast_result(lambda: rank),
        "averaged": distributed.average_over_ranks(in_order_of_rank(rank=rank, three=3)),
    }
    torch.save(results, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    record(main)(sys.argv[1])
