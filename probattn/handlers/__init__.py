"""Effect handlers: the number of posterior draws, local sites, KL weights and plates.

The batch shape of a site is right-aligned with the batch of examples: ``()`` is one shared draw, ``(batch,)`` a draw
per example, ``(S, 1)`` S draws for prediction. Layers only broadcast. A plate at dimension −1 is the data plate.
"""

from probattn.handlers.draws import (
    are_from_input,
    at_mean,
    draws,
    draws_in_batch,
    num_folded,
    num_samples,
    one_draw,
    present_draw,
    stochastic_input,
)
from probattn.handlers.local import (
    checked_guide,
    global_sites_only,
    guided_local_sites,
    labels_at,
    local_posteriors,
    local_priors,
    local_sites,
)
from probattn.handlers.messages import batch_size, is_amortised, is_global_latent, is_latent, is_local, is_of_draws
from probattn.handlers.plates import data_plate, has_data_plate, left_of_examples, outside_data_plate
from probattn.handlers.weights import alpha, kl_weight

__all__ = [
    "alpha",
    "are_from_input",
    "at_mean",
    "batch_size",
    "checked_guide",
    "data_plate",
    "draws",
    "stochastic_input",
    "draws_in_batch",
    "global_sites_only",
    "guided_local_sites",
    "has_data_plate",
    "is_amortised",
    "is_global_latent",
    "is_latent",
    "is_local",
    "is_of_draws",
    "kl_weight",
    "labels_at",
    "left_of_examples",
    "local_posteriors",
    "local_priors",
    "local_sites",
    "num_samples",
    "num_folded",
    "one_draw",
    "outside_data_plate",
    "present_draw",
]
