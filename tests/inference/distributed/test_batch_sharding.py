"""Loss weights of the ranks add up to the loss of the whole batch."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from two_ranks import SIZE, data

from probattn.inference.distributed.batch_sharding import ShardedLoader, shard


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_weighted_mean_of_the_parts_is_the_mean_of_the_batch(size, number, seed):
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    parts = [next(iter(ShardedLoader([(x, x)], rank=rank, world=number))) for rank in range(number)]
    assert sum(each.loss_weight for each in parts) == pytest.approx(number)
    mean = sum(each.loss_weight * each.tensors[0].mean(0) for each in parts) / number
    torch.testing.assert_close(mean, x.mean(0))
    rows = torch.cat([each.tensors[0] for each in parts if each.loss_weight > 0])
    assert sorted(rows.tolist()) == sorted(x.tolist())
    assert all(each.batch_size == size and len(each.tensors[0]) >= 1 for each in parts)


def test_one_process_has_the_whole_batch():
    batches = [data()]
    own = shard(batches)
    assert len(own) == 1
    (((x, _), loss_weight, size),) = own
    assert (loss_weight, size) == (1.0, SIZE)
    assert x.data_ptr() == batches[0][0].data_ptr()
