"""The posterior predictive: likelihoods averaged over posterior samples, streamed over a data
set."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from probattn.evaluation_mode import evaluation_mode
from probattn.guides import Program, module_of
from probattn.inference.objective import guide_checks
from probattn.inference.prediction.latents import Latents, parameters_of
from probattn.inference.prediction.refine import predict_refined
from probattn.inference.prediction.replays import Replays
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.streaming import predict_batches
from probattn.param_store import follow
from probattn.threads import one_thread_at_a_time


@one_thread_at_a_time
def predict(
    model: Program,
    guide: Callable[..., Any] | Mapping[str, Tensor] | Any | None,
    data: Tensor | Iterable,
    *,
    num_samples: int = 10,
    seed: int | None = None,
    keep_draws: bool = False,
    latents: Latents | None = None,
    vectorize: bool | None = None,
    refine: float | None = None,
) -> Prediction:
    """Compute the posterior predictive of a batch or of a loader's batches, in evaluation mode.

    The global latent variables are sampled once and shared by all batches: sample s is one function
    on the whole data set. The dimension of the samples appears at the first stochastic layer; the
    layers before it run once per batch. Batches are read one at a time and run in chunks of a
    bounded number of examples times samples; of each, only its part of the result is kept.

    Args:
        model: a module with its labels at the site ``y``, or one under handlers such as
            ``pyro.condition(model, data=...)``, which runs each batch as a whole.
        guide: its guide, a module, or a function with its parameters in Pyro's store; or posterior
            samples of the global sites, such as those of :func:`~probattn.inference.sgld` or of
            Pyro's ``MCMC``; None samples from the prior. With posterior samples, local sites come
            from the posterior that their layer defines, or else from their prior.
        data: inputs ``(n, ...)`` or another batch, with labels or without (see
            :func:`~probattn.inference.batches.unpack_batch`); an iterable of batches; or a data
            set.
        num_samples: number of posterior samples S; posterior samples are thinned to S at equal
            distances.
        seed: seed of the samples; all of PyTorch's generators keep their states. None draws from
            the global generator.
        keep_draws: keep the probabilities of each sample, and the values of its latent variables.
        latents: result of :func:`~probattn.inference.prediction.latents.draw_latents`; None samples
            at the first batch.
        vectorize: True runs all samples at once, False one after another, for models whose shapes
            do not broadcast over a dimension of samples; None chooses False for models with global
            sites outside attention layers, such as Bayesian weights (``PyroSample`` in a PyTorch
            module).
        refine: share in (0, 1] of each batch that gets all S samples: that with the least
            confidence after the first. The others keep the first sample; ``samples_used`` of the
            result tells which. For one class per example; None gives all inputs S samples.

    Raises:
        KeyError: posterior samples without a global site of the model.
        TypeError: labels in some batches only.
        ValueError: no data; an empty batch; labels of another shape than the likelihood's; NaN or
            Inf in the inputs of real tokens or in the outputs, with the batch's number; a guide
            that does not cover the model's latent sites (see
            :func:`~probattn.inference.objective.coverage.check_coverage`); posterior samples of
            another shape; without a guide, statements of sites outside attention layers (pass
            ``vectorize=False``).
        NumericalError: a layer's numerical failure, with the batch's number and the layer.
    """
    modules = {"model": module_of(model)}
    if isinstance(guide, nn.Module):
        guide_checks.check(model, guide)
        modules["guide"] = guide
    for module in modules.values():
        follow(module)
    replays = Replays(model, guide, latents, num_samples=num_samples, vectorize=vectorize)
    own_seed = torch.random.fork_rng(enabled=seed is not None)
    with parameters_of(guide), own_seed, evaluation_mode(*modules.values()), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
        if refine is not None:
            if keep_draws:
                raise ValueError("refine gives inputs other numbers of draws: leave out keep_draws")
            return predict_refined(data, replays, modules, share=refine)
        prediction = predict_batches(
            data, replays.likelihoods, modules, num_samples=num_samples, keep_draws=keep_draws
        )
    if keep_draws and replays.latents is not None:
        prediction = replace(prediction, latents=replays.latents.values())
    return prediction
