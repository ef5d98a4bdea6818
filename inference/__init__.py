"""Everything done to a model: SVI, prediction, metrics, checkpoints."""

from probattn.inference import metrics
from probattn.inference.checkpoint import CheckpointError, load, save
from probattn.inference.diagnosis import NonFiniteError
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.inference.options import TrainOptions
from probattn.inference.posterior import attention_spectra, posterior_summary, posterior_variants
from probattn.inference.prediction import Prediction, predict
from probattn.inference.training import History, fit

__all__ = [
    "CheckpointError",
    "History",
    "NonFiniteError",
    "Prediction",
    "TraceMeanField_ELBO",
    "Trace_ELBO",
    "TrainOptions",
    "attention_spectra",
    "fit",
    "load",
    "metrics",
    "posterior_summary",
    "posterior_variants",
    "predict",
    "save",
]
