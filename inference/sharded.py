"""Each rank's part of the work: of every batch in training, of all batches in prediction."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from probattn.handlers import draws
from probattn.inference import rng
from probattn.inference.distributed import on_every_rank, on_first_rank, world
from probattn.inference.prediction import Prediction, draw_latents, predict
from probattn.inference.rank_rng import diverge
from probattn.inference.summary import join


class Part(NamedTuple):
    """One rank's part of a batch.

    Args:
        batch: its rows of each tensor.
        share: what its loss counts.
        whole: number of examples of the whole batch.
    """

    batch: tuple[Tensor, ...]
    share: float
    whole: int


class Shard:
    """One rank's rows of each batch of a loader, with their share: every ``world``-th row from its rank on.

    The ELBO of a batch is the mean of those of its parts, weighted by their sizes: likelihood, penalties and KL. DDP
    averages over ranks without weights, so each multiplies its loss by its share, ``world · own / whole``. Then the KL
    counts once, and the objective is that of the whole batch, whatever the number of ranks.

    A rank without a row gets the first one with a share of 0.

    Args:
        loader: sized; gives the same batches, tuples of tensors, to all ranks.
        rank, world: which rank of how many.
    """

    def __init__(self, loader: Iterable, *, rank: int, world: int) -> None:
        self.loader, self.rank, self.world = loader, rank, world

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Part]:
        """Yields this rank's part of each batch."""
        for batch in self.loader:
            whole = len(batch[0])
            own = len(range(self.rank, whole, self.world))
            rows = slice(self.rank, None, self.world) if own else slice(0, 1)
            yield Part(tuple(each[rows].contiguous() for each in batch), self.world * own / whole, whole)


def shard(loader: Iterable) -> Shard:
    """This rank's rows of each batch of a loader (all of them without torchrun).

    Raises:
        ValueError: a loader that would not give the same batches to all ranks, with what to build it with.
    """
    rank, size = world()
    if size > 1:
        _check_order(loader)
    return Shard(loader, rank=rank, world=size)


def predict_sharded(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable, *, num_draws: int = 10, keep_draws: bool = False
) -> Prediction:
    """:func:`~probattn.inference.predict`, whose batches the ranks share out: all get the whole prediction.

    Every rank goes through the whole loader and predicts a range of its batches, all with the draws of the global sites
    that the first has made: what one process predicts from the first rank's random state, bit for bit if it has as many
    threads. Sites of one example are drawn anew on each rank.

    Args:
        model, guide, num_draws, keep_draws: as for ``predict``.
        data: as for ``predict``, and sized if it is no tensor.

    Raises:
        PeerError: where another rank failed, with its error.
        ValueError, NumericalError: as for ``predict``, where this rank failed.
    """
    rank, size = world()
    if size == 1:
        return predict(model, guide, data, num_draws=num_draws, keep_draws=keep_draws)
    batches = (data,) if isinstance(data, Tensor) else data
    start, stop = (number * len(batches) // size for number in (rank, rank + 1))
    stream = iter(batches)
    opening = next(stream, None)
    if opening is None:
        raise ValueError("no data to predict: the loader gave no batch")
    with torch.no_grad(), draws(num_draws):
        latents = draw_latents(model, guide, _inputs(opening, next(model.parameters()).device))
    values = on_first_rank(lambda: {name: site["value"] for name, site in latents.nodes.items()})
    for name, value in values.items():
        latents.nodes[name]["value"] = value
    diverge()

    def part() -> Prediction | None:
        numbered = enumerate(chain([opening], stream))
        own = (batch for number, batch in numbered if start <= number < stop)
        if start == stop:
            return deque(own, maxlen=0) or None  # a loader's generator shall stand where it stands elsewhere
        try:
            return predict(model, guide, own, num_draws=num_draws, keep_draws=keep_draws, latents=latents)
        except Exception as error:
            error.add_note(f"(on rank {rank}, which counts batches from {start} on)")
            raise

    return join([each for each in on_every_rank(part) if each is not None])


def _inputs(batch: Tensor | tuple, device: torch.device) -> tuple[Tensor, None, Tensor | None]:
    """The model's arguments, without labels."""
    x, _, mask = (*((batch,) if isinstance(batch, Tensor) else batch), None, None)[:3]
    return x.to(device), None, None if mask is None else mask.to(device)


def _check_order(loader: Iterable) -> None:
    """Refuses loaders whose batches would differ between ranks."""
    batched = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batched, getattr(batched, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise ValueError(
                "a DistributedSampler shares out the examples a second time: every rank takes its rows of each batch, "
                "so give all ranks the same loader, DataLoader(…, shuffle=True, generator=torch.Generator())"
            )
        if getattr(sampler, "generator", True) is None:
            raise ValueError(
                f"the training loader's {type(sampler).__name__} has no generator, so that each rank would see other "
                "batches: DataLoader(…, generator=torch.Generator().manual_seed(seed))"
            )
    generator = rng.capture(loader)["loader"]
    seen = on_every_rank(lambda: (len(loader), None if generator is None else generator.tolist()))
    differing = [number for number, each in enumerate(seen) if each != seen[0]]
    if differing:
        raise ValueError(
            f"rank {differing[0]} would see other batches than rank 0: give all ranks the same data, and seed their "
            "training loaders' generators alike"
        )
