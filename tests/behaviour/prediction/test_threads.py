"""Four threads get what one gets: calls queue behind one lock, and networks with stored samples do
not."""

import multiprocessing
import threading
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from in_threads import BUSY, THREADS, in_threads, most_at_once
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from small_fit import assert_same, build, data, short, untimed, weights
from third_party_networks import modelled, third_party

from probattn import draws, guides
from probattn.draws import at_mean
from probattn.inference import (
    SVDKL,
    Callback,
    ELBOLoss,
    Laplace,
    MCDropout,
    PosteriorPredictive,
    attention_spectra,
    convergence,
    fit,
    materialise,
    mean_network,
    posterior_draws,
    posterior_predictive_check,
    posterior_summary,
    predict,
    predictor_network,
    psis_khat,
    refit_guide,
    sgld,
    simulation_based_calibration,
    to_datatree,
    with_gp_readout,
)
from probattn.weights import alpha, kl_weight

X, Y = data(80).tensors
BATCHES = [(X[:40], Y[:40]), (X[40:], Y[40:])]


def train(model, guide, batches, valid, **options):
    """Return the weights and the records of a run."""
    history = fit(model, guide, batches, valid, **short(**options))
    return weights(model, guide), untimed(history.steps + history.epochs)


def assert_equal(results, expected):
    for (values, records), (expected_values, expected_records) in zip(
        results, expected, strict=True
    ):
        assert_same(values, expected_values)
        assert records == expected_records


def test_threads_predict_what_one_does():
    model, guide, _, _ = build()
    calls = [
        partial(predict, model, guide, BATCHES, num_samples=5, seed=seed) for seed in range(12)
    ]
    expected = [call().probs for call in calls]
    for prediction, probs in zip(in_threads(calls), expected, strict=True):
        assert torch.equal(prediction.probs, probs)


def test_threads_train_what_one_does():
    runs = [
        [partial(train, *build(seed, dropout=0.1), epochs=2, seed=seed) for seed in range(4)]
        for _ in range(2)
    ]
    assert_equal(in_threads(runs[0]), [run() for run in runs[1]])


def losses(seed):
    """Return a run of a loop of one's own, whose point masses leave nothing to chance."""
    model, guide, _, _ = build(seed, guide="delta")
    loss_of = ELBOLoss(model, guide)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=0.01)

    def run():
        records = []
        for batch in BATCHES * 5:
            with draws("example"), kl_weight(0.5), alpha(0.5):
                loss = loss_of(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            records.append(loss.item())
        return weights(model, guide), records

    return run


def test_threads_with_loops_of_their_own_train_what_one_does():
    """Also where handlers are around the loss, which other threads must not see."""
    assert_equal(
        in_threads([losses(seed) for seed in range(8)]), [losses(seed)() for seed in range(8)]
    )


def busy(**options):
    """Return a model and its guide, whose runs take their time (see :func:`in_threads.busy`)."""
    model, guide, _, _ = build(attention=BUSY, dropout=0.1, num_data=80, **options)
    return model, guide


def loop(model, guide):
    with draws("example"):
        ELBOLoss(model, guide)(X, Y).backward()


def predicted_at_mean(model, guide):
    with at_mean():
        predict(model, guide, X, num_samples=1)


def calibration(model, guide):
    options = {"num_simulations": 2, "num_samples": 3}
    return simulation_based_calibration(
        model, X, lambda *_: posterior_draws(model, guide, X, num_samples=3), **options
    )


def predictor(model, guide):
    return PosteriorPredictive(model, guide, num_samples=2)


CALLS = {
    "predict": lambda model, guide: predict(model, guide, BATCHES, num_samples=3, vectorize=False),
    "fit": lambda model, guide: fit(model, guide, BATCHES, BATCHES, **short(epochs=1)),
    "loss": loop,
    "pyro": lambda model, guide: draws(3)(TraceMeanField_ELBO().loss)(model, guide, X, Y),
    "at_mean": predicted_at_mean,
    "materialise": lambda model, guide: materialise(AutoNormal(model), (X, Y)),
    "for_model": lambda model, guide: guides.for_model(model),
    "predictor_network": predictor_network,
    "refit_guide": lambda model, guide: refit_guide(model, guide, BATCHES, epochs=2),
    "sgld": lambda model, guide: sgld(model, BATCHES, num_samples=3, warmup_steps=1),
    "posterior_predictive_check": lambda *pair: posterior_predictive_check(
        *pair, BATCHES, num_replicates=3
    ),
    "posterior_summary": posterior_summary,
    "convergence": lambda model, guide: convergence(model, guide, BATCHES, refit_epochs=1),
    "psis_khat": lambda model, guide: psis_khat(model, guide, (X, Y), num_samples=25),
    "simulation_based_calibration": calibration,
    "attention_spectra": lambda model, guide: attention_spectra(model, guide, BATCHES),
    "to_datatree": lambda model, guide: to_datatree(model, guide, BATCHES, num_samples=3),
    "mc_dropout": lambda *pair: MCDropout(predictor(*pair)).predict(BATCHES),
    "laplace": lambda *pair: Laplace(predictor(*pair)).fit(BATCHES).predict(BATCHES),
    "sv_dkl": lambda *pair: SVDKL(predictor(*pair), epochs=1).fit(BATCHES).predict(BATCHES),
    "with_gp_readout": lambda *pair: with_gp_readout(predictor(*pair), BATCHES, BATCHES, anchors=4),
}


@pytest.mark.filterwarnings("ignore:.*from 80 examples")
@pytest.mark.parametrize("name", CALLS)
def test_one_thread_at_a_time_runs_a_program(name):
    pairs = [busy() for _ in range(THREADS)]
    assert most_at_once([partial(CALLS[name], *pair) for pair in pairs]) == 1


def laplace():
    model, guide, _, _ = build(num_data=80)
    method = Laplace(predictor_network(model, guide, num_samples=3)).fit(BATCHES)
    return [partial(method.predict, X[rows : rows + 4]) for rows in range(0, 80, 4)]


def converted():
    given = third_party("torchvision")
    model = modelled(given)
    network = predictor_network(model, guides.for_model(model), num_samples=3)
    return [partial(network.predict, given.x * scale) for scale in torch.linspace(0.5, 2, 32)]


@pytest.mark.parametrize("calls_of", [laplace, converted])
def test_threads_share_a_method_with_hooks_on_its_network(calls_of):
    calls = calls_of()
    expected = [call().probs for call in calls]
    for prediction, probs in zip(in_threads(calls), expected, strict=True):
        assert torch.equal(prediction.probs, probs)


@contextmanager
def another_predicts():
    """Have another thread in the network of a prediction inside."""
    model, guide, _, _ = build()
    reached, left = threading.Event(), threading.Event()

    def wait(*_):
        reached.set()
        assert left.wait(60)

    model.network.register_forward_pre_hook(wait)
    thread = threading.Thread(target=predict, args=(model, guide, X), kwargs={"num_samples": 7})
    thread.start()
    assert reached.wait(60)
    try:
        yield
    finally:
        left.set()
        thread.join()


def test_networks_with_stored_samples_do_not_wait():
    model, guide, _, _ = build()
    networks = [predictor_network(model, guide, num_samples=3), mean_network(model, guide)]
    expected = [network.predict(BATCHES).probs for network in networks]
    with another_predicts():
        results = in_threads([partial(network.predict, BATCHES) for network in networks * 4])
    for prediction, probs in zip(results, expected * 4, strict=True):
        assert torch.equal(prediction.probs, probs)


def probs_of(model, guide):
    return predict(model, guide, X, num_samples=3, seed=0).probs


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_forked_process_predicts_even_if_another_thread_did(threads, is_alone):
    """As the workers of a loader do, of which one is forked while another thread is in a
    prediction."""
    threads(1)
    pair = build()[:2]
    expected = probs_of(*pair)
    with (
        nullcontext() if is_alone else another_predicts(),
        multiprocessing.get_context("fork").Pool(1) as pool,
    ):
        assert torch.equal(pool.apply_async(probs_of, pair).get(60), expected)


def test_a_callback_and_a_loader_predict_while_fit_trains():
    model, guide, _, valid = build()
    teacher, its_guide, _, _ = build(1)
    seen = []

    class Predicting(Callback):
        def on_train_epoch_end(self, trainer, metrics):
            seen.append(predict(trainer.model, trainer.guide, X, num_samples=3, seed=0))

    class Taught:
        def __len__(self):
            return 2

        def __iter__(self):
            for x, _ in BATCHES:
                yield x, predict(teacher, its_guide, x, num_samples=3, seed=0).predicted

    model.num_data = 80
    fit(model, guide, Taught(), valid, callbacks=[Predicting()], **short(epochs=2))
    assert len(seen) == 2


def test_an_error_lets_other_threads_in():
    model, guide, _, _ = build()

    def fails():
        with pytest.raises(ValueError, match="NaN or Inf in the inputs"):
            predict(model, guide, X * float("nan"), num_samples=3)
        loss = draws(3)
        with pytest.raises(ValueError, match="twice"), loss, loss:
            pass

    expected = probs_of(model, guide)
    results = in_threads([fails, partial(probs_of, model, guide)] * 8)
    assert all(torch.equal(probs, expected) for probs in results[1::2])
