"""Pyro's handlers belong to the process: threads wait for each other, and nothing stays behind after an error."""

import threading

import pyro
import pyro.distributions as dist
import pytest
import torch
from fitted_methods import features_of, mc_dropout
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from pyro.poutine.messenger import Messenger
from thread_cases import Thread, WatchedLock, second_inside_first
from torch import nn
from torch.utils.data import DataLoader, Dataset

from probattn import CGPAttention, KEPSVGPAttention, guides
from probattn.handlers import draws, exclusive, threads
from probattn.inference import Trace_ELBO, TraceMeanField_ELBO, TrainOptions, fit, fit_guide, nuts, predict, sgld
from probattn.inference.diagnostics.posterior_draws import posterior_draws
from probattn.inference.diagnostics.replicates import replicate
from probattn.models import Classifier, ViT, likelihoods
from probattn.models.supervised import Supervised
from probattn.pyro_compat import HANDLER_STACK

LAYERS = {
    "kep-svgp": KEPSVGPAttention.partial(rank=2, multiple=2),
    "cgp": CGPAttention.partial(noise=0.3, alpha=1.0, regulariser_norm="example"),
}
SIZES = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}


def build(layer="kep-svgp", **options):
    network = ViT(**SIZES, attention=LAYERS[layer], **options)
    model = Classifier(network, num_data=5)
    return model, guides.for_model(model)


def batch(number=5):
    return torch.randn(number, 1, 4, 4), torch.randint(3, (number,))


@pytest.fixture
def lock(monkeypatch):
    watched = WatchedLock()
    monkeypatch.setattr(threads, "_LOCK", watched)
    return watched


def loss(model, guide, x, y):
    with draws("example"):
        return TraceMeanField_ELBO()(model, guide)(x, y)


USES = {
    "predict": lambda model, guide, x, y: predict(model, guide, x, num_samples=3).probs,
    "prior": lambda model, guide, x, y: predict(model, None, x, num_samples=3).probs,
    "elbo": loss,
    "shared draw": lambda model, guide, x, y: TraceMeanField_ELBO()(model, guide)(x, y),
    "fit_guide": lambda model, guide, x, y: fit_guide(model, guide, (x, y), steps=2),
    "posterior draws": lambda model, guide, x, y: list(posterior_draws(model, guide, x, num_samples=3).values())[0],
    "replicates": lambda model, guide, x, y: replicate(model, guide, [(x, y)], num_samples=3).replicated_labels,
    "features": lambda model, guide, x, y: features_of(model, guide, x, num_samples=3).values,
    "dropout": lambda model, guide, x, y: mc_dropout(model, guide, num_samples=3).predict(x).probs,
    "sgld": lambda model, guide, x, y: sgld(model, [(x, y)], num_samples=1, warmup_steps=1).samples[SITE],
    "nuts": lambda model, guide, x, y: nuts(model, (x, y), num_samples=4, warmup_steps=1).draws[SITE],
}
SITE = "network.blocks.0.attention.u"


def state(*modules):
    """All of the process's state that a call may change, and that of modules."""
    flags = [part.training for module in modules for part in module.modules()]
    flags += [parameter.requires_grad for module in modules for parameter in module.parameters()]
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for each in modules for part in each.modules()]
    active = [part._pyro_context.active for each in modules for part in each.modules() if isinstance(part, PyroModule)]
    plates = list(pyro.poutine.runtime._DIM_ALLOCATOR._stack)
    setting, grad = pyro.settings.get("module_local_params"), torch.is_grad_enabled()
    return list(HANDLER_STACK), plates, setting, grad, flags, hooks, active, set(pyro.get_param_store())


def is_free(lock):
    def take():
        taken = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    thread = Thread(take)
    thread.start()
    return thread.result()


@pytest.mark.filterwarnings("ignore::probattn.inference.posterior.nuts.ConvergenceWarning")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        *[(first, "predict") for first in USES],
        *[
            pytest.param(first, second, marks=pytest.mark.slow)
            for first in USES
            for second in ("elbo", "fit_guide", "dropout")
        ],
    ],
)
def test_two_threads_with_one_model_compute_what_they_do_one_after_the_other(lock, first, second):
    model, guide = build(dropout=0.2)
    x, y = batch()
    before, weights = state(model, guide), {name: each.clone() for name, each in guide.state_dict().items()}
    calls = [lambda: USES[first](model, guide, x, y), lambda: USES[second](model, guide, x, y)]
    torch.manual_seed(3)
    expected = [call() for call in calls]
    guide.load_state_dict(weights)
    torch.manual_seed(3)
    found = second_inside_first(model.network, *calls, lock)
    if first in ("predict", "prior", "posterior draws", "features"):  # all of its draws come before its network runs
        assert all(map(torch.equal, found, expected))
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert all(each.isfinite().all() for each in found)
    assert state(model, guide) == before
    assert is_free(lock)


def test_a_thread_that_trains_and_one_that_predicts_one_model_wait_for_each_other(lock):
    model, guide = build()
    data = torch.utils.data.TensorDataset(*batch())
    train = DataLoader(data, batch_size=5)
    x, _ = batch()
    before = [part.training for part in model.modules()]
    history, prediction = second_inside_first(
        model.network,
        lambda: fit(model, guide, train, options=TrainOptions(epochs=2), progress=False),
        lambda: predict(model, guide, x),
        lock,
    )
    assert len(history.epochs) == 2
    assert prediction.probs.isfinite().all()
    assert [part.training for part in model.modules()] == before
    assert not HANDLER_STACK
    assert is_free(lock)


@pytest.mark.filterwarnings("ignore::probattn.inference.posterior.nuts.ConvergenceWarning")
@pytest.mark.parametrize(
    ("use", "layer", "error"),
    [
        ("predict", "kep-svgp", RuntimeError),
        ("predict", "cgp", KeyboardInterrupt),
        ("prior", "kep-svgp", KeyboardInterrupt),
        ("prior", "cgp", RuntimeError),
        ("elbo", "kep-svgp", KeyboardInterrupt),
        ("elbo", "cgp", RuntimeError),
        ("fit_guide", "kep-svgp", KeyboardInterrupt),
        ("replicates", "kep-svgp", RuntimeError),
        ("replicates", "cgp", KeyboardInterrupt),
        ("nuts", "kep-svgp", KeyboardInterrupt),
    ],
)
def test_an_error_at_any_sample_site_leaves_nothing_behind(use, layer, error):
    model, guide = (each.double() for each in build(layer))
    x, y = batch()
    _raise_everywhere(lambda: USES[use](model, guide, x.double(), y), error, (model, guide), _RaiseAtSite)


@pytest.mark.parametrize("use", ["predict", "prior", "elbo", "shared draw", "fit_guide", "replicates", "dropout"])
def test_an_interrupt_while_any_handler_is_entered_leaves_nothing_behind(monkeypatch, use):
    model, guide = build(dropout=0.2)
    x, y = batch()

    class Entered:
        """Raises in the middle of entering a handler, when it is on Pyro's stack already."""

        def __init__(self, number, error):
            self.number, self.error, self.count = number, error, 0
            self.enter = Messenger.__enter__

        def __enter__(self):
            def enter(handler):
                result = self.enter(handler)
                self.count += 1
                if self.count == self.number:
                    raise self.error("at a handler")
                return result

            monkeypatch.setattr(Messenger, "__enter__", enter)
            return self

        def __exit__(self, *error):
            monkeypatch.setattr(Messenger, "__enter__", self.enter)

    _raise_everywhere(lambda: USES[use](model, guide, x, y), KeyboardInterrupt, (model, guide), Entered)


class _RaiseAtSite(Messenger):
    """Raises at the n-th statement of the program, a sample site or a parameter."""

    def __init__(self, number, error):
        super().__init__()
        self.number, self.error, self.count = number, error, 0

    def _process_message(self, msg):
        if msg["type"] in ("sample", "param"):
            self.count += 1
            if self.count == self.number:
                raise self.error(f"at {msg['name']}")


def _raise_everywhere(call, error, modules, kind, most=40):
    """Run a call with an error at its first statement, its second, …, and compare the state before and after."""
    torch.manual_seed(5)
    with kind(0, error) as counting:
        call()
    before = state(*modules)
    assert counting.count > 2
    numbers = range(1, counting.count + 1, max(1, counting.count // most))
    for number in numbers:
        with pytest.raises(error, match="at "), kind(number, error):
            call()
        assert state(*modules) == before, number
        assert is_free(threads._LOCK)


def test_a_handler_of_a_thread_is_not_seen_by_another(lock):
    model, guide = build()
    x, y = batch()
    expected = loss(model, guide, x, y).detach()
    with draws("example"):
        other = Thread(lambda: predict(model, guide, x, num_samples=2).draws is None)
        other.start()
        assert lock.has_to_wait.wait(120)
        assert TraceMeanField_ELBO()(model, guide)(x, y).shape == expected.shape
        assert len(HANDLER_STACK) == 1
    assert other.result()


def test_a_hook_in_the_backward_pass_may_predict():
    model, guide = build()
    x, y = batch()
    seen = []
    handle = model.network.head.weight.register_hook(
        lambda gradient: seen.append(predict(model, guide, x, num_samples=2).probs.shape)
    )
    with exclusive():
        loss(model, guide, x, y).backward()
    handle.remove()
    assert seen == [(5, 3)]


class Predicting(Dataset):
    """Examples whose inputs are predictions, made in a worker process."""

    def __init__(self, model, guide):
        self.model, self.guide = model, guide

    def __len__(self):
        return 2

    def __getitem__(self, index):
        x = torch.ones(1, 1, 4, 4)
        return x[0] + predict(self.model, self.guide, x, num_samples=2).probs.sum()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_worker_processes_that_start_while_a_thread_predicts_are_not_locked_out():
    model, guide = build()
    data = Predicting(model, guide)
    loader = DataLoader(data, num_workers=1, multiprocessing_context="fork", timeout=100)
    assert predict(model, guide, loader, num_samples=2).probs.shape == (2, 3)  # forks inside predict
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with draws(7), draws("example"):
            inside.set()
            assert leave.wait(120)

    holder = Thread(hold)
    holder.start()
    assert inside.wait(120)
    try:
        assert len(list(loader)) == 2  # forks while the other thread holds the lock, and its handlers are active
    finally:
        leave.set()
    holder.result()


def test_models_with_statements_of_their_own_wait_as_well(lock):
    class Linear(PyroModule):
        def __init__(self):
            super().__init__()
            self.linear = PyroModule[nn.Linear](4, 3)
            self.linear.weight = PyroSample(dist.Normal(0, 1).expand([3, 4]).to_event(2))

        def forward(self, x):
            return self.linear(x)

    model = Supervised(Linear(), likelihoods.Categorical(), num_data=5)
    guide, x = AutoNormal(model), torch.randn(5, 4)
    guides.materialise(guide, (x, torch.zeros(5, dtype=torch.long)))

    def call():
        return predict(model, guide, x, num_samples=2).probs

    torch.manual_seed(1)
    expected = [call(), call()]
    torch.manual_seed(1)
    found = second_inside_first(model.network, call, call, lock)
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert not HANDLER_STACK


def test_losses_under_svi_are_unchanged(lock):
    model, guide = build()
    x, y = batch()
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    assert svi.step(x, y) > 0
    assert is_free(lock)
