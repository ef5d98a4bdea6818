"""Effect handlers: the number of posterior draws, local sites, KL weights and plates.

The batch shape of a site is right-aligned with the batch of examples: ``()`` is one shared draw, ``(batch,)`` a draw
per example, ``(S, 1)`` S draws for prediction. Layers only broadcast. A plate at dimension −1 is the data plate.
"""

from probattn.handlers.draws import (
    at_mean,
    current_draw,
    draw_local,
    draws,
    draws_in_batch,
    has_stochastic_input,
    num_folded,
    num_samples,
    one_draw,
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
from probattn.handlers.stored import StoredSites, stored_sites
from probattn.handlers.threads import Handler, exclusive
from probattn.handlers.weights import alpha, kl_weight

__all__ = [
    "Handler",
    "StoredSites",
    "alpha",
    "at_mean",
    "batch_size",
    "checked_guide",
    "current_draw",
    "data_plate",
    "draw_local",
    "draws",
    "draws_in_batch",
    "exclusive",
    "global_sites_only",
    "guided_local_sites",
    "has_data_plate",
    "has_stochastic_input",
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
    "num_folded",
    "num_samples",
    "one_draw",
    "outside_data_plate",
    "stochastic_input",
    "stored_sites",
]
