import pytest
import torch

from probattn.experiments.data.dataset import stratified_order
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset, Images


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


LABELS = torch.arange(4).repeat_interleave(torch.tensor([50, 50, 7, 1]))[torch.randperm(108, generator=seeded())]


def test_every_prefix_holds_the_classes_in_proportion():
    labels = torch.arange(7).repeat(9)
    order = stratified_order(labels, generator=seeded())
    assert torch.equal(order.sort().values, torch.arange(63))
    for end in range(1, 64):
        counts = labels[order[:end]].bincount(minlength=7)
        assert counts.max() - counts.min() <= 1


def test_uneven_classes():
    order = stratified_order(LABELS, generator=seeded())
    assert set(LABELS[order[:4]].tolist()) == {0, 1, 2, 3}
    assert LABELS[order[:54]].bincount().sub(torch.tensor([25, 25, 4, 1])).abs().max() <= 1


def test_order_inside_a_class_is_random():
    labels = torch.zeros(50, dtype=torch.long)
    first, second = (stratified_order(labels, generator=seeded(seed)) for seed in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.arange(50))


def test_parts_are_disjoint_and_keep_the_order_of_the_data():
    data = Images(torch.arange(108, dtype=torch.uint8).view(-1, 1, 1, 1), LABELS)
    parts = [part.images.flatten().long() for part in data.split(60, 30, 10, generator=seeded())]
    assert [len(part) for part in parts] == [60, 30, 10]
    assert len(set(torch.cat(parts).tolist())) == 100
    assert all((part.diff() > 0).all() for part in parts)


def test_labels_follow_their_images():
    data = Images(torch.arange(108, dtype=torch.uint8).view(-1, 1, 1, 1), LABELS)
    (part,) = data.split(40, generator=seeded())
    assert torch.equal(part.labels, LABELS[part.images.flatten().long()])


@pytest.mark.parametrize(("number", "change"), [(0, ""), (1, ""), (2, ""), (0, "one label")])
def test_an_empty_part_and_a_training_part_of_one_label_are_refused(number, change):
    labels = torch.arange(8) % 2
    parts = [Images(torch.zeros(8, 1, 2, 2, dtype=torch.uint8), labels)] * 3
    ImageDataset("mine", ("a", "b"), *parts, (0.0,), (1.0,), augment=False)
    parts[number] = parts[number].select((labels == 0).nonzero()[:, 0] if change else labels[:0])
    with pytest.raises(DatasetError, match="needs examples, .* two different labels"):
        ImageDataset("mine", ("a", "b"), *parts, (0.0,), (1.0,), augment=False)
