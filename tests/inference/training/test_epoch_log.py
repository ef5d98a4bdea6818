"""The mean loss of an epoch of many steps."""

import torch

from probattn.inference.training.epoch_log import EpochLog
from probattn.inference.training.step import Outcome


def test_the_mean_loss_of_many_steps_keeps_its_digits():
    """A sum in float32 would not."""
    log = EpochLog(None, epoch=1, every=10**9)
    loss = torch.tensor(1000.1)
    for step in range(2, 2002):
        log.add(Outcome(loss, {}), step=step, lr=0.1, examples=3)
    assert log.examples == 6000
    assert abs(log.mean() - loss.double().item()) < 1e-9 * loss.item()
