"""The step without host synchronisation equals the eager step, with the same errors at the end of an epoch."""

import warnings

import pytest
import torch
from elbos import TraceMeanField_ELBO
from synchronisations import Synchronisations
from tape import Stream

from probattn import (
    CGPAttention,
    JitterWarning,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.functional import errors, jitter
from probattn.functional.errors import NumericalError
from probattn.inference import NonFiniteError, TrainOptions, fit
from probattn.inference.distributed.collectives import World
from probattn.inference.training import cuda_graph, trainer
from probattn.inference.training.cuda_graph import CUDAGraphStep, GraphCache
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.optimizers import make_optimizers
from probattn.inference.training.step import Outcome, Step
from probattn.models import Classifier, ViT

LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEPSVGPAttention.partial(rank=2),
    "kep-svgp-concat": KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4),
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-joint": SGPAttention.partial(inducing=3, draws="joint"),
    "cgp": CGPAttention,
    "sparse-cgp": SparseCGPAttention.partial(inducing=3),
    "sparse-cgp-prior": SparseCGPAttention.partial(inducing=3, canonical_guide="prior"),
    "cgp-collapsed": CGPAttention.partial(collapsed=True),
    "sparse-cgp-collapsed": SparseCGPAttention.partial(inducing=3, collapsed=True),
}
EACH_LAYER = pytest.mark.parametrize("layer", LAYERS)


def build(layer="kep-svgp", *, size=10, dtype=torch.float64):
    torch.manual_seed(0)
    network = ViT(
        image_size=4,
        patch_size=2,
        channels=1,
        classes=3,
        dim=8,
        depth=2,
        heads=2,
        mlp_dim=8,
        dropout=0.1,
        attention=LAYERS[layer],
    )
    model = Classifier(network, num_data=size).to(dtype)
    images, labels = torch.randn(size, 1, 4, 4, dtype=dtype), torch.arange(size) % 3
    batches = [(images[i : i + 4], labels[i : i + 4]) for i in range(0, size, 4)]
    return model, guides.for_model(model), batches


def short(**options):
    options = {"epochs": 3, "lr": 0.01, "log_every": 1, "num_samples": 2} | options
    return {"options": TrainOptions(**options), "progress": False}


def weights(*modules):
    return {f"{i}.{name}": value for i, module in enumerate(modules) for name, value in module.state_dict().items()}


def steps_of(layer, **options):
    """Return the eager step, the step without synchronisation, and a batch."""
    model, guide, batches = build(layer)
    elbo = TraceMeanField_ELBO()
    objective = Objective(elbo(model, guide), elbo, options=TrainOptions(**options), num_data=model.num_data)
    few = TrainOptions(lr=0.01)
    optimizers = make_optimizers(model, guide, options=few, num_data=model.num_data, steps_per_epoch=3)
    parts = {"model": model, "guide": guide}
    eager = Step(objective, optimizers, backward=torch.Tensor.backward, clip_norm=1.0, parts=parts)
    return eager, CUDAGraphStep(eager, like=next(model.parameters())), batches[0]


@EACH_LAYER
def test_a_graph_step_does_not_synchronise_with_the_device(layer):
    eager, graph_step, batch = steps_of(layer, kl_anneal_epochs=1)
    with Synchronisations() as waiting:
        graph_step([batch], StepCoefficients(0.5, 0.5, 0.5), (0.5,))
    assert waiting.seen == []
    with Synchronisations() as waiting:
        eager([batch], StepCoefficients())
    assert waiting.seen != []


RUNS = {
    "defaults": {},
    "schedules": {"clip_norm": 0.5, "kl_anneal_epochs": 2, "alpha_start": 0.2, "warmup_epochs": 1, "num_particles": 2},
    "guide rate": {"guide_lr": 0.05, "weight_decay": 0.1},
    "natural": {"guide_optimizer": "ngd", "kl_weight": 0.5, "clip_norm": 0.5},
    "trace": {"elbo": "trace", "samples_per": "batch", "log_every": 2},
}


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        pytest.param(
            layer, name, marks=() if name == "schedules" or layer in ("kep-svgp", "sgpa") else pytest.mark.slow
        )
        for layer in LAYERS
        for name in RUNS
    ],
)
def test_a_captured_run_is_the_run_that_is_not(layer, options, tmp_path):
    """Up to the learning rate in single precision, and the jitter that captured matrices always get."""
    runs = []
    for capture in (False, True):
        model, guide, batches = build(layer)
        folder = tmp_path / str(capture)
        history = fit(model, guide, batches, batches, out=folder, **short(capture=capture, **RUNS[options]))
        runs.append((weights(model, guide), history))
    (one, waited), (other, deferred) = runs
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-5, msg=name)
    assert len(waited.steps) == len(deferred.steps) > 0
    for first, second in zip(waited.steps + waited.epochs, deferred.steps + deferred.epochs, strict=True):
        assert list(first) == list(second)
        values = [{k: v for k, v in each.items() if k not in ("kind", "seconds")} for each in (first, second)]
        assert values[1] == pytest.approx(values[0], rel=1e-3, abs=1e-4)


def test_a_captured_run_that_was_stopped_resumes_exactly(tmp_path):
    model, guide, batches = build()
    fit(model, guide, batches, **short(capture=True))
    whole = weights(model, guide)

    class Stop(Exception):  # noqa: N818
        pass

    def stopping():
        for number in range(3):
            yield batches[number]
        raise Stop

    class Batches(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return stopping() if self.passes == 3 else super().__iter__()

    model, guide, _ = build()
    with pytest.raises(Stop):
        fit(model, guide, Batches(batches), out=tmp_path, **short(capture=True))
    model, guide, _ = build()
    fit(model, guide, batches, out=tmp_path, resume=True, **short(capture=True))
    for name, value in whole.items():
        assert torch.equal(weights(model, guide)[name], value), name


@pytest.mark.parametrize("what", ["inputs", "weights"])
def test_what_fails_in_a_captured_epoch_is_named_as_if_it_had_not_been_captured(what, tmp_path):
    class Batches(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            broken = [(x * float("nan"), y) if i == 1 else (x, y) for i, (x, y) in enumerate(list.__iter__(self))]
            return iter(broken) if self.passes > 2 and what == "inputs" else list.__iter__(self)

    messages = []
    for capture in (False, True):
        model, guide, batches = build()
        options = {"lr": 1e300, "min_lr": 1e300} if what == "weights" else {}
        with pytest.raises(NonFiniteError) as error:
            fit(model, guide, Batches(batches), out=tmp_path / str(capture), **short(capture=capture, **options))
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert ("epoch 2, batch 1" if what == "inputs" else "epoch 1, batch 1") in messages[1]


def test_an_epoch_that_needs_a_larger_jitter_is_repeated_eagerly(monkeypatch):
    """A matrix for which the smallest jitter is too small, in one step of one epoch."""

    def trained(capture):
        model, guide, batches = build("sgpa")
        layer, calls = model.network.blocks[1].attention, [0]
        original = type(layer).forward

        def forward(self, x, mask=None):
            if self is layer and self.training:
                calls[0] += 1
                if 4 <= calls[0] <= 8:  # in the second epoch of three batches, whichever step runs it
                    low = torch.ones(2, 2, dtype=x.dtype)
                    jitter.cholesky(low - 1e-7 * torch.eye(2, dtype=x.dtype), "a matrix")
            return original(self, x, mask)

        monkeypatch.setattr(type(layer), "forward", forward)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(model, guide, batches, **short(capture=capture, epochs=2))
        monkeypatch.undo()
        return calls[0], [each for each in caught if each.category is JitterWarning]

    calls, _ = trained(False)
    assert calls == 6
    calls, caught = trained(True)
    assert calls == 9  # the second epoch twice
    assert len(caught) >= 1


def test_deferred_checks_record_what_would_be_raised():
    matrix = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    with errors.deferred() as failures:
        assert failures.flag is None
        factor = jitter.cholesky(matrix, "a matrix")
        errors.check_finite(factor, "it")
        assert not failures.flag
    torch.testing.assert_close(factor, matrix, rtol=0, atol=1e-7)
    broken = matrix.clone()
    broken[1] *= -1
    for fail in (
        lambda: jitter.cholesky(broken, "a matrix"),
        lambda: errors.check_finite(broken / 0, "it"),
        lambda: errors.refuse(torch.tensor([False, True]), lambda rows: ValueError(str(rows))),
    ):
        with errors.deferred() as failures:
            fail()
            errors.check_finite(matrix, "it")
        assert failures.flag
    with pytest.raises(NumericalError):
        jitter.cholesky(broken, "a matrix")
    with pytest.raises(ValueError, match=r"\[1\]"):
        errors.refuse(torch.tensor([False, True]), lambda rows: ValueError(str(rows)))


class FakeGraph:
    """Fake CUDA graph: recorded once, then computed again from the same inputs."""

    replays = 0

    def replay(self):
        type(self).replays += 1
        again = double(self.inputs)
        self.outcome.loss.copy_(again.loss)


def double(batches):
    double.inputs = batches
    return Outcome(2 * batches[0][0].sum(), {})


class FakeCapture:
    def __init__(self, graph, *, pool, stream):
        self.graph = graph

    def __enter__(self):
        return self.graph

    def __exit__(self, *error):
        self.graph.inputs = double.inputs


def test_each_shape_is_captured_after_three_calls_and_then_replayed_on_its_own_inputs(monkeypatch):
    for name, fake in {
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: stream,
        "CUDAGraph": FakeGraph,
        "graph": FakeCapture,
        "graph_pool_handle": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    FakeGraph.replays = 0
    graphs = GraphCache(max_graphs=2)
    original = graphs._capture

    def captured_with_outcome(function, batches):
        inputs, graph, outcome = original(function, batches)
        graph.outcome = outcome
        return inputs, graph, outcome

    monkeypatch.setattr(graphs, "_capture", captured_with_outcome)
    for number in range(6):
        for size in (4, 3):
            batch = (torch.full((size,), float(number)),)
            assert graphs(double, (batch,)).loss == 2 * size * number
        assert FakeGraph.replays == 2 * max(0, number - 2)
    assert len(graphs.graphs) == 2
    for number in range(5):  # a third shape runs without a graph
        assert graphs(double, ((torch.full((2,), float(number)),),)).loss == 4 * number
    assert len(graphs.graphs) == 2


@pytest.mark.parametrize(("accelerator", "gpu"), [("cuda", False), ("gpu", False), ("auto", True)])
def test_steps_of_several_gpus_are_refused_before_anything_starts(monkeypatch, tmp_path, accelerator, gpu):
    """No process is connected, no batch is loaded, no file is written."""
    monkeypatch.setattr(cuda_graph, "world", lambda: World(1, 2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(trainer, "make_fabric", lambda *_: pytest.fail("the processes were connected"))
    model, guide, batches = build()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was run"))
    words = r"torchrun started 2 processes: set capture=False .*, or train in one process without torchrun"
    with pytest.raises(ValueError, match=words):
        fit(model, guide, batches, batches, out=tmp_path / "run", **short(capture=True, accelerator=accelerator))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("processes", "accelerator", "gpu"), [(2, "cpu", True), (2, "auto", False), (1, "cuda", True)])
def test_one_gpu_or_several_cpus_may_be_captured(monkeypatch, processes, accelerator, gpu):
    monkeypatch.setattr(cuda_graph, "world", lambda: World(0, processes))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    cuda_graph.check_single_gpu(accelerator)
