import torch

from probattn.experiments.data.images.known_sets import load


def test_every_digit_once_scaled_to_bytes():
    from sklearn.datasets import load_digits

    bunch, data = load_digits(), load("digits")
    expected = sorted(
        (label, *[round(value * 255 / 16) for value in image.ravel()])
        for image, label in zip(bunch.images, bunch.target.tolist(), strict=True)
    )
    found = sorted(
        (label, *image.flatten().tolist())
        for part in (data.train, data.valid, data.test)
        for image, label in zip(part.images, part.labels.tolist(), strict=True)
    )
    assert found == expected
    assert data.classes == tuple("0123456789")
    assert data.train.images.shape[1:] == (1, 8, 8)
    assert not data.augment


def test_parts_are_stratified_60_20_20():
    data = load("digits")
    assert [len(part) for part in (data.train, data.valid, data.test)] == [1079, 359, 359]
    whole = sum(part.labels.bincount() for part in (data.train, data.valid, data.test))
    for part, share in ((data.train, 0.6), (data.valid, 0.2), (data.test, 0.2)):
        assert (part.labels.bincount() - share * whole).abs().max() <= 2


def test_seed_fixes_the_parts():
    first, again, other = load("digits", seed=3), load("digits", seed=3), load("digits", seed=4)
    assert torch.equal(first.train.images, again.train.images)
    assert torch.equal(first.test.images, again.test.images)
    assert not torch.equal(first.train.images, other.train.images)
    assert not torch.equal(first.test.images, other.test.images)
