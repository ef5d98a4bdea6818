"""No loader waits for the device while it yields batches: copies to it are non-blocking, and no value is read."""

import pytest
import torch
from synchronisations import BlockingCopies

from probattn.experiments.data.batch_loader import BatchLoader, ImageLoader, TextLoader

NUMBER = 11
SENTENCES = [torch.full((1 + index % 5,), index) for index in range(NUMBER)]
LABELS = torch.arange(NUMBER)
IMAGES = torch.zeros(NUMBER, 3, 5, 5, dtype=torch.uint8)
NORMALISATION = {"mean": (0.5,) * 3, "std": (0.2,) * 3}
LOADERS = {
    "images": lambda **options: ImageLoader(IMAGES, LABELS, augment=True, **NORMALISATION, **options),
    "tables": lambda **options: BatchLoader(torch.zeros(NUMBER, 2), LABELS, **options),
    "texts": lambda **options: TextLoader(SENTENCES, LABELS, **options),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", LOADERS)
def test_an_epoch_does_not_wait_for_the_device(kind, shuffle):
    loader = LOADERS[kind](batch_size=4, shuffle=shuffle, device="meta")  # reading a value of it is an error
    with BlockingCopies() as copying:
        batches = list(loader)
    assert len(batches) == 3
    assert all(part.is_meta for batch in batches for part in batch)
    assert copying.copies > 0
    assert copying.seen == []
