"""Several processes under torchrun: collective calls, sharding of batches, random states of the ranks.

May import ``io``."""
