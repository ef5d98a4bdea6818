"""Convergence of a run's guide: its start, learning rates and data are those of the training."""

import json
from dataclasses import replace

import pytest
import torch

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation import evaluate, guide_convergence, methods
from probattn.experiments.evaluation.guide_convergence import refitted, run_convergence
from probattn.experiments.runs.load import open_run
from probattn.inference import posterior_summary, predict

SITE = "network.blocks.1.attention.u"


def test_a_guide_of_two_epochs_has_not_converged_and_the_generator_is_left_alone(kep):
    run = open_run(kep)
    state = torch.get_rng_state()
    (site,) = run_convergence(run, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert site.site == SITE
    assert site.state == "not converged"


def test_of_many_batches_the_first_of_each_epoch_refit_the_guide(kep, monkeypatch):
    monkeypatch.setattr(guide_convergence, "REFIT_BATCHES", 1)
    (site,) = run_convergence(open_run(kep), seed=0)
    assert site.gain > 0


def test_evaluate_stores_it_unless_told_not_to(kep):
    result = evaluate.evaluate(kep).result
    content = json.loads((kep / "evaluation.json").read_text(encoding="utf-8"))
    assert content["posterior"][0]["state"] == result.posterior[0].state
    assert evaluate.evaluate(kep, convergence=False).result.posterior[0].gain is None


def test_the_method_refit_predicts_with_a_guide_of_higher_elbo_and_leaves_the_run_as_it_was(kep):
    run = open_run(kep)
    before = {name: value.clone() for name, value in run.guide.state_dict().items()}
    method = methods.fit(run, "refit", num_samples=3, seed=5)
    prediction = methods.predict(method, methods.Forward(run, run.dataset.test, num_samples=3, seed=5))
    for name, value in run.guide.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    torch.manual_seed(5)
    model, guide = refitted(run)
    torch.manual_seed(5)
    expected = predict(model, guide, run.batches(run.dataset.test), num_samples=3)
    torch.testing.assert_close(prediction.probs, expected.probs)
    kl, kl_refitted = (posterior_summary(*each)[0].kl for each in ((run.model, run.guide), (model, guide)))
    assert kl_refitted < kl  # two epochs of Adam leave the initial narrow posterior far above the optimum's KL


def test_refit_has_the_weights_of_the_trainings_objective(kep, monkeypatch):
    run, seen = open_run(kep), {}
    settings = run.settings.with_changes(["train.kl_weight=0.3", "train.local_kl_weight=0.2"])
    monkeypatch.setattr(guide_convergence, "refit_guide", lambda *_, **options: seen.update(options))
    refitted(replace(run, settings=settings))
    assert (seen["kl_weight"], seen["local_kl_weight"]) == (0.3, 0.2)


def test_refit_is_refused_where_there_is_nothing_to_refit(softmax):
    with pytest.raises(SettingsError, match="global latent variables"):
        methods.fit(open_run(softmax), "refit", num_samples=2, seed=0)
