import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probattn.experiments.data.batch_loader import TextLoader


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sequences(lengths, *, width=None):
    """Sequence i holds i + 1 in every place (with a width: counts on from it), so that none is like another."""
    if width is None:
        return [torch.full((length,), index + 1) for index, length in enumerate(lengths)]
    return [torch.arange(1, 1 + length * width).view(length, width) + index for index, length in enumerate(lengths)]


def loader(lengths, *, width=None, **options):
    return TextLoader(sequences(lengths, width=width), torch.arange(len(lengths)), **{"batch_size": 3} | options)


def skewed(count=400):
    """Many short ones, few long ones."""
    return (2 + 60 * torch.rand(count, generator=seeded(5)) ** 4).long().tolist()


def padding(batches):
    return sum((~mask).sum().item() for _, _, mask in batches)


property_test = settings(deadline=None)
many_lengths = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@property_test
@given(many_lengths, st.integers(1, 9), st.booleans(), st.sampled_from([None, 1, 3]))
def test_every_example_once_with_its_label_padded_by_zeros(lengths, batch_size, shuffle, width):
    data = sequences(lengths, width=width)
    batches = loader(lengths, width=width, batch_size=batch_size, shuffle=shuffle)
    seen = []
    for x, y, mask in batches:
        assert x.dtype == torch.int64
        assert mask.dtype == torch.bool
        longest = max(lengths[index] for index in y)
        assert mask.shape == (len(y), longest)
        assert x.shape == (len(y), longest, *data[0].shape[1:])
        for row, index, real in zip(x, y.tolist(), mask, strict=True):
            length = lengths[index]
            assert real.tolist() == [True] * length + [False] * (longest - length)
            assert torch.equal(row[:length], data[index])
            assert (row[length:] == 0).all()
        seen.append(y)
    assert len(seen) == len(batches) == -(-len(lengths) // batch_size)
    order = torch.cat(seen).tolist()
    assert sorted(order) == list(range(len(lengths)))
    assert shuffle or order == sorted(order)
    assert sorted(map(len, seen))[1:] == [batch_size] * (len(seen) - 1)
    assert (batches.num_data, batches.batch_size) == (len(lengths), batch_size)


@property_test
@given(many_lengths, st.integers(1, 9), st.integers(0, 2**31))
def test_state_at_the_start_fixes_the_epoch(lengths, batch_size, seed):
    elsewhere = torch.get_rng_state()
    batches = loader(lengths, batch_size=batch_size, shuffle=True, generator=seeded(seed))
    list(batches)
    state = batches.generator.get_state()
    epochs = [list(batches), list(batches)]
    resumed = loader(lengths, batch_size=batch_size, shuffle=True)
    resumed.generator.set_state(state)
    for epoch in epochs:
        for found, expected in zip(resumed, epoch, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), elsewhere)


def test_by_length_the_longest_come_first_and_order_says_which_sequence_is_where():
    lengths = skewed()
    batches = loader(lengths, batch_size=7, by_length=True)
    seen, shortest = torch.cat([y for _, y, _ in batches]), max(lengths)
    assert torch.equal(seen, batches.order)
    assert seen.tolist() == sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for _, y, mask in batches:
        assert mask.shape[1] <= shortest
        shortest = min(lengths[index] for index in y)
    assert 10 * padding(batches) < padding(loader(lengths, batch_size=7))
    assert torch.equal(loader(lengths).order, torch.arange(len(lengths)))


def test_batches_have_similar_lengths():
    lengths = skewed(1600)
    unsorted = padding(loader(lengths, batch_size=8))
    assert padding(loader(lengths, batch_size=8, shuffle=True)) < unsorted / 5


def test_what_a_batch_is_changed_to_stays_out_of_the_data():
    batches = loader([2, 3])
    for x, y, mask in batches:
        for each in (x, y, mask):
            each.zero_()
    ((x, y, mask),) = batches
    assert (x[:, 0].tolist(), y.tolist(), mask.sum().item()) == ([1, 2], [0, 1], 5)
