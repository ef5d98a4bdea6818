"""Everything done to a model: SVI, prediction, uncertainty methods, checks, decisions, metrics, checkpoints."""

from probattn.inference import metrics, multilabel, ood, regression
from probattn.inference.checkpoint import CheckpointError, load, save
from probattn.inference.checks.agreement import compare_posteriors
from probattn.inference.checks.export import to_inference_data
from probattn.inference.checks.fitting import fit_guide
from probattn.inference.checks.latents import posterior_draws
from probattn.inference.checks.nuts import nuts
from probattn.inference.checks.predictive import posterior_predictive_check, prior_predictive_check
from probattn.inference.checks.psis import psis_khat
from probattn.inference.checks.simulation import simulation_based_calibration
from probattn.inference.decisions import conformal
from probattn.inference.decisions.abstention import risk_threshold
from probattn.inference.diagnosis import NonFiniteError
from probattn.inference.diagnostics import attention_spectra, token_similarity
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.inference.exported import export
from probattn.inference.members import Member, fit_members
from probattn.inference.methods.dropout import mc_dropout
from probattn.inference.methods.ensembles import ensemble
from probattn.inference.methods.laplace import laplace
from probattn.inference.methods.predictor import Predictor, posterior_predictive
from probattn.inference.methods.sv_dkl import sv_dkl
from probattn.inference.methods.temperature import temperature_scaled
from probattn.inference.networks import mean_network, predictor_network
from probattn.inference.options import TrainOptions
from probattn.inference.posterior import posterior_summary, posterior_variants
from probattn.inference.posterior_samples import PosteriorSamples
from probattn.inference.prediction import Prediction, predict
from probattn.inference.sgld import sgld
from probattn.inference.training import History, fit
from probattn.inference.warm_start import WarmStart, warm_start
from probattn.inference.weights import load_safetensors, save_safetensors

__all__ = [
    "CheckpointError",
    "History",
    "Member",
    "NonFiniteError",
    "PosteriorSamples",
    "Prediction",
    "Predictor",
    "TraceMeanField_ELBO",
    "Trace_ELBO",
    "TrainOptions",
    "WarmStart",
    "attention_spectra",
    "compare_posteriors",
    "conformal",
    "ensemble",
    "export",
    "fit",
    "fit_guide",
    "fit_members",
    "laplace",
    "load",
    "load_safetensors",
    "mc_dropout",
    "mean_network",
    "metrics",
    "multilabel",
    "nuts",
    "ood",
    "posterior_draws",
    "posterior_predictive",
    "posterior_predictive_check",
    "posterior_summary",
    "posterior_variants",
    "predict",
    "predictor_network",
    "prior_predictive_check",
    "psis_khat",
    "regression",
    "risk_threshold",
    "save",
    "save_safetensors",
    "sgld",
    "simulation_based_calibration",
    "sv_dkl",
    "temperature_scaled",
    "to_inference_data",
    "token_similarity",
    "warm_start",
]
