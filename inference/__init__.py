"""Inference: training by SVI, prediction, uncertainty methods, metrics, decisions, diagnostics,
checkpoints, export.

Sub-packages from the lowest level on: ``io``; ``objective``; ``prediction``; ``metrics``,
``methods``, ``export`` and ``posterior``; ``decisions``, ``diagnostics`` and ``training``. Each
imports lower levels only.
"""

from probattn.inference import imports as _imports

with _imports.without_side_effects():
    import scipy.special  # noqa: F401

from probattn.inference import metrics
from probattn.inference.batches import select_fields, unpack_batch
from probattn.inference.decisions import conformal
from probattn.inference.decisions.abstention import RiskThreshold
from probattn.inference.diagnostics.arviz_export import to_datatree
from probattn.inference.diagnostics.attention import attention_spectra, token_similarity
from probattn.inference.diagnostics.convergence import (
    SiteConvergence,
    convergence,
    posterior_summary,
)
from probattn.inference.diagnostics.posterior_draws import posterior_draws
from probattn.inference.diagnostics.predictive_check import posterior_predictive_check
from probattn.inference.diagnostics.psis import psis_khat
from probattn.inference.diagnostics.sbc import simulation_based_calibration
from probattn.inference.export.posterior_network import mean_network, predictor_network
from probattn.inference.export.torch_export import export
from probattn.inference.io.checkpoint import CheckpointError, load, save
from probattn.inference.io.pretrained import load_pretrained, save_pretrained, upload_pretrained
from probattn.inference.io.safetensors_io import load_safetensors, save_safetensors
from probattn.inference.io.warm_start import warm_start
from probattn.inference.methods.any_classifier import Kept, Logits
from probattn.inference.methods.ensemble import Ensemble
from probattn.inference.methods.gp_readout import GPReadout, with_gp_readout
from probattn.inference.methods.laplace import Laplace
from probattn.inference.methods.mc_dropout import MCDropout
from probattn.inference.methods.sv_dkl import SVDKL
from probattn.inference.methods.temperature import BiasScaling, TemperatureScaling
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.objective.elbo import ELBOLoss
from probattn.inference.objective.guide_checks import materialise
from probattn.inference.posterior.branches import Branches
from probattn.inference.posterior.refit_guide import GuideRefit, refit_guide
from probattn.inference.posterior.sgld import sgld
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.predictor import (
    FewExamplesWarning,
    NotFittedError,
    PosteriorPredictive,
    Predictor,
)
from probattn.inference.prediction.result import Prediction
from probattn.inference.training.callbacks import Callback
from probattn.inference.training.fit import History, fit
from probattn.inference.training.options import TrainOptions

__all__ = [
    "BiasScaling",
    "Branches",
    "Callback",
    "CheckpointError",
    "ELBOLoss",
    "Ensemble",
    "FewExamplesWarning",
    "GPReadout",
    "GuideRefit",
    "History",
    "Kept",
    "Laplace",
    "Logits",
    "MCDropout",
    "NonFiniteError",
    "NotFittedError",
    "PosteriorPredictive",
    "Prediction",
    "Predictor",
    "RiskThreshold",
    "SVDKL",
    "SiteConvergence",
    "TemperatureScaling",
    "TrainOptions",
    "attention_spectra",
    "conformal",
    "convergence",
    "export",
    "fit",
    "load",
    "load_pretrained",
    "load_safetensors",
    "materialise",
    "mean_network",
    "metrics",
    "posterior_draws",
    "posterior_predictive_check",
    "posterior_summary",
    "predict",
    "predictor_network",
    "psis_khat",
    "refit_guide",
    "save",
    "save_pretrained",
    "save_safetensors",
    "select_fields",
    "sgld",
    "simulation_based_calibration",
    "to_datatree",
    "token_similarity",
    "unpack_batch",
    "upload_pretrained",
    "warm_start",
    "with_gp_readout",
]
