"""The mean loss of an epoch of many steps."""

import torch

from probattn.inference.training.epoch_log import EpochLog
from probattn.inference.training.step import Outcome


def test_the_mean_loss_of_many_steps_keeps_its_digits():
    """One after another in float32, 20,000 batches of loss 1000.1 sum to a mean that is off in the fifth digit."""
    log = EpochLog(None, epoch=1, every=10**9)
    loss = torch.tensor(1000.1)
    for step in range(2, 20_002):
        log.add(Outcome(loss, {}), step=step, lr=0.1, examples=3)
    assert log.examples == 60_000
    assert abs(log.mean() - loss.double().item()) < 1e-9 * loss.item()
