"""Inference: training by SVI, prediction, uncertainty methods, metrics, decisions, diagnostics,
checkpoints, export.

Sub-packages from the lowest level on: ``io``; ``objective``; ``prediction``; ``metrics``,
``methods``, ``export`` and ``posterior``; ``decisions``, ``diagnostics`` and ``training``. Each
imports lower levels only.
"""

from probattn.inference import imports as _imports

with _imports.without_side_effects():
    import scipy.special  # noqa: F401

from probattn.inference import metrics as metrics
from probattn.inference.batches import select_fields as select_fields
from probattn.inference.batches import unpack_batch as unpack_batch
from probattn.inference.decisions import conformal as conformal
from probattn.inference.decisions.abstention import RiskThreshold as RiskThreshold
from probattn.inference.diagnostics.arviz_export import to_datatree as to_datatree
from probattn.inference.diagnostics.attention import attention_spectra as attention_spectra
from probattn.inference.diagnostics.attention import token_similarity as token_similarity
from probattn.inference.diagnostics.convergence import SiteConvergence as SiteConvergence
from probattn.inference.diagnostics.convergence import convergence as convergence
from probattn.inference.diagnostics.convergence import posterior_summary as posterior_summary
from probattn.inference.diagnostics.posterior_draws import posterior_draws as posterior_draws
from probattn.inference.diagnostics.predictive_check import (
    posterior_predictive_check as posterior_predictive_check,
)
from probattn.inference.diagnostics.psis import psis_khat as psis_khat
from probattn.inference.diagnostics.sbc import (
    simulation_based_calibration as simulation_based_calibration,
)
from probattn.inference.export.posterior_network import mean_network as mean_network
from probattn.inference.export.posterior_network import predictor_network as predictor_network
from probattn.inference.export.torch_export import export as export
from probattn.inference.io.checkpoint import CheckpointError as CheckpointError
from probattn.inference.io.checkpoint import load as load
from probattn.inference.io.checkpoint import save as save
from probattn.inference.io.pretrained import load_pretrained as load_pretrained
from probattn.inference.io.pretrained import save_pretrained as save_pretrained
from probattn.inference.io.pretrained import upload_pretrained as upload_pretrained
from probattn.inference.io.safetensors_io import load_safetensors as load_safetensors
from probattn.inference.io.safetensors_io import save_safetensors as save_safetensors
from probattn.inference.io.warm_start import warm_start as warm_start
from probattn.inference.methods.ensemble import Ensemble as Ensemble
from probattn.inference.methods.gp_readout import GPReadout as GPReadout
from probattn.inference.methods.gp_readout import with_gp_readout as with_gp_readout
from probattn.inference.methods.laplace import Laplace as Laplace
from probattn.inference.methods.mc_dropout import MCDropout as MCDropout
from probattn.inference.methods.sv_dkl import SVDKL as SVDKL
from probattn.inference.methods.temperature import TemperatureScaling as TemperatureScaling
from probattn.inference.non_finite import NonFiniteError as NonFiniteError
from probattn.inference.objective.elbo import ELBOLoss as ELBOLoss
from probattn.inference.objective.guide_checks import materialise as materialise
from probattn.inference.posterior.branches import Branches as Branches
from probattn.inference.posterior.refit_guide import GuideRefit as GuideRefit
from probattn.inference.posterior.refit_guide import refit_guide as refit_guide
from probattn.inference.posterior.sgld import sgld as sgld
from probattn.inference.prediction.predict import predict as predict
from probattn.inference.prediction.predictor import FewExamplesWarning as FewExamplesWarning
from probattn.inference.prediction.predictor import NotFittedError as NotFittedError
from probattn.inference.prediction.predictor import PosteriorPredictive as PosteriorPredictive
from probattn.inference.prediction.predictor import Predictor as Predictor
from probattn.inference.prediction.result import Prediction as Prediction
from probattn.inference.training.callbacks import Callback as Callback
from probattn.inference.training.fit import History as History
from probattn.inference.training.fit import fit as fit
from probattn.inference.training.options import TrainOptions as TrainOptions
