"""A small convolutional network as a classifier of scikit-learn."""

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

EPOCHS = 15
BATCH = 64
DRAWS = 1_000
"""Images that are predicted at once."""


class SmallCNN:
    """Two convolutions and a linear layer, trained by AdamW.

    Args:
        shape: of an image, ``(channels, height, width)``.
        rate: largest learning rate, of one cycle.
    """

    def __init__(self, shape: tuple[int, int, int], *, rate: float = 3e-3) -> None:
        self.shape = shape
        self.rate = rate

    def fit(self, pixels: np.ndarray, labels: np.ndarray) -> Self:
        """Train on images ``(n, channels · height · width)`` in 0..1, from a fixed seed."""
        self.classes_, targets = np.unique(labels, return_inverse=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = self._network(len(self.classes_))
            self._train(self._images(pixels), torch.from_numpy(targets))
        return self

    def predict_proba(self, pixels: np.ndarray) -> np.ndarray:
        """Return probabilities ``(n, classes)``."""
        with torch.no_grad():
            parts = [self.network(part).softmax(-1) for part in self._images(pixels).split(DRAWS)]
        return torch.cat(parts).double().numpy()

    def _network(self, classes: int) -> nn.Module:
        channels, height, width = self.shape
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d((min(8, -(-height // 2)), min(8, -(-width // 2)))),
            nn.Flatten(),
            nn.LazyLinear(classes),
        )

    def _train(self, images: Tensor, targets: Tensor) -> None:
        self.network(images[:1])  # the linear layer takes its size
        optimiser = torch.optim.AdamW(self.network.parameters(), weight_decay=0.01)
        steps = EPOCHS * -(-len(images) // BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.rate, total_steps=steps)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images)).split(BATCH):
                loss = nn.functional.cross_entropy(self.network(images[batch]), targets[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()

    def _images(self, pixels: np.ndarray) -> Tensor:
        return torch.from_numpy(pixels).float().reshape(-1, *self.shape)
