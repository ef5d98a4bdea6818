import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.images.loader import ImageLoader

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)


def noise(count=23):
    pixels = torch.randint(1, 256, (count, 3, 5, 5), generator=torch.Generator().manual_seed(7))
    return Images(pixels.to(torch.uint8), torch.arange(count))


def loader(data=None, **options):
    data = noise() if data is None else data
    return ImageLoader(data, **{"batch_size": 5, "mean": MEAN, "std": STD} | options)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def epoch(batches):
    x, y = zip(*batches, strict=True)
    return torch.cat(x), torch.cat(y)


def pixels(x):
    """Undo the normalisation."""
    mean, std = torch.tensor(MEAN).view(-1, 1, 1), torch.tensor(STD).view(-1, 1, 1)
    return ((x * std + mean) * 255).round().to(torch.uint8)


def test_batches_are_torchvisions_normalisation_in_the_order_of_the_data():
    data = noise()
    expected = torch.stack([tv.normalize(tv.to_dtype(i, torch.float32, scale=True), MEAN, STD) for i in data.images])
    x, y = epoch(loader(data))
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, expected)
    assert torch.equal(y, data.labels)


def test_float32_whatever_the_default_dtype():
    try:
        torch.set_default_dtype(torch.float64)
        assert next(iter(loader()))[0].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("count", "batch_size"), [(23, 5), (20, 5), (5, 5), (6, 1)])
def test_last_batch(drop_last, count, batch_size):
    batches = loader(noise(count), batch_size=batch_size, drop_last=drop_last)
    sizes = [len(y) for _, y in batches]
    rest = [count % batch_size] if count % batch_size and not drop_last else []
    assert sizes == [batch_size] * (count // batch_size) + rest
    assert len(batches) == len(sizes)
    assert (batches.num_data, batches.batch_size) == (count, batch_size)


def test_one_smaller_batch():
    assert [len(y) for _, y in loader(noise(3), batch_size=5)] == [3]


def test_shuffle_yields_each_image_once_with_its_own_label():
    data = noise()
    x, y = epoch(loader(data, shuffle=True, generator=seeded()))
    assert not torch.equal(y, data.labels)
    assert torch.equal(y.sort().values, data.labels)
    assert torch.equal(pixels(x), data.images[y])


def test_augmented_images_are_zero_padded_crops_made_before_normalisation():
    data = noise()
    x, y = epoch(loader(data, shuffle=True, augment=True, padding=1, generator=seeded()))
    seen = set()
    for found, label in zip(pixels(x), y, strict=True):
        padded = tv.pad(data.images[label], [1])
        crops = {(top, left): tv.crop(padded, top, left, 5, 5) for top in range(3) for left in range(3)}
        flips = {(*at, flip): crop.flip(-1) if flip else crop for at, crop in crops.items() for flip in (False, True)}
        (match,) = [offset for offset, image in flips.items() if torch.equal(image, found)]
        seen.add(match)
    assert len(seen) > 5


@pytest.mark.parametrize("options", [{"shuffle": True}, {"augment": True}, {"shuffle": True, "augment": True}])
def test_state_at_the_start_fixes_the_epoch(options):
    batches = loader(generator=seeded(), **options)
    elsewhere = torch.get_rng_state()
    epoch(batches)
    state = batches.generator.get_state()
    second, third = epoch(batches), epoch(batches)
    assert not torch.equal(second[0], third[0])
    resumed = loader(generator=seeded(1), **options)
    resumed.generator.set_state(state)
    for result in (second, third):
        x, y = epoch(resumed)
        assert torch.equal(x, result[0])
        assert torch.equal(y, result[1])
    assert torch.equal(torch.get_rng_state(), elsewhere)


def test_the_seed_decides():
    first, again, other = (epoch(loader(shuffle=True, generator=seeded(seed)))[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_reading_in_order_leaves_the_generator_alone():
    generator = seeded()
    epoch(loader(generator=generator))
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_default_generators_are_alike_and_not_shared():
    one, other = loader(shuffle=True), loader(shuffle=True)
    assert one.generator is not other.generator
    assert torch.equal(epoch(one)[0], epoch(other)[0])


def test_to_moves_everything_but_the_generator():
    batches = loader(shuffle=True, augment=True, generator=seeded())
    assert batches.device == torch.device("cpu")
    assert batches.to("meta") is batches
    assert batches.device == torch.device("meta")
    for x, y in batches:
        assert (x.device.type, y.device.type) == ("meta", "meta")
    assert batches.generator.device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_device_does_not_change_the_epoch():
    on_cpu, on_gpu = (
        epoch(loader(shuffle=True, augment=True, generator=seeded(), device=device)) for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(on_gpu[0].cpu(), on_cpu[0])
    assert torch.equal(on_gpu[1].cpu(), on_cpu[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"data": noise(0)}, "no batch to yield: 0 images"),
        ({"data": noise(4), "drop_last": True}, "no batch to yield: 4 images, batch_size=5, drop_last=True"),
        ({"mean": (0.5,)}, "need 3 entries, one per channel"),
        ({"std": (0.5, 0.5)}, "need 3 entries, one per channel"),
        ({"std": (0.5, 0.0, 0.5)}, "std must be positive"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        loader(**options)
