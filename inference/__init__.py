"""Everything done to a model: SVI, prediction, metrics, checkpoints."""

from probattn.inference import metrics
from probattn.inference.checkpoint import CheckpointError, load, save
from probattn.inference.diagnosis import NonFiniteError
from probattn.inference.diagnostics import attention_spectra, token_similarity
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.inference.options import TrainOptions
from probattn.inference.posterior import posterior_summary, posterior_variants
from probattn.inference.prediction import Prediction, predict
from probattn.inference.training import History, fit
from probattn.inference.warm_start import WarmStart, warm_start

__all__ = [
    "CheckpointError",
    "History",
    "NonFiniteError",
    "Prediction",
    "TraceMeanField_ELBO",
    "Trace_ELBO",
    "TrainOptions",
    "WarmStart",
    "attention_spectra",
    "fit",
    "load",
    "metrics",
    "posterior_summary",
    "posterior_variants",
    "predict",
    "save",
    "token_similarity",
    "warm_start",
]
