"""Captured steps compute from their inputs alone: recorded once on a CPU, and computed again on other numbers."""

import gc
import weakref

import pytest
import torch
from attention_layers import LAYERS
from elbos import TraceMeanField_ELBO
from synchronisations import Synchronisations
from tape import Tape, replay_on_cpu

from probattn import guides
from probattn.inference import NonFiniteError, TrainOptions, fit
from probattn.inference.training.cuda_graph import CUDAGraphStep, GraphCache, without_garbage_collection
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.optimizers import make_optimizers
from probattn.inference.training.step import Step
from probattn.inference.training.trainer import Trainer
from probattn.models import Classifier, ViT

IN_EVERY_RUN = ("softmax-dropout", "kep-svgp", "sgpa-joint", "cgp-learned", "sparse-cgp-tokens")


def build(layer="kep-svgp", depth=2):
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    network = ViT(depth=depth, dropout=0.1, attention=LAYERS[layer], **sizes)
    model = Classifier(network, num_data=10).double()
    return model, guides.for_model(model)


def batch(number, size=4):
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(size, 1, 4, 4, generator=generator, dtype=torch.float64)
    return images, torch.randint(3, (size,), generator=generator)


def steps_of(layer, graphs=None):
    model, guide = build(layer)
    elbo = TraceMeanField_ELBO()
    objective = Objective(elbo(model, guide).train(), elbo, options=TrainOptions(), num_data=10)
    options = TrainOptions(lr=0.01, epochs=9)
    optimizers = make_optimizers(model, guide, options=options, num_data=10, steps_per_epoch=3)
    parts = {"model": model, "guide": guide}
    eager = Step(objective, optimizers, backward=torch.Tensor.backward, clip_norm=1.0, parts=parts)
    step = CUDAGraphStep(eager, like=next(model.parameters()))
    step.graphs = graphs
    return step, [*model.parameters(), *guide.parameters()]


@pytest.mark.parametrize(
    "layer", [pytest.param(each, marks=() if each in IN_EVERY_RUN else pytest.mark.slow) for each in LAYERS]
)
def test_replayed_steps_are_the_steps(layer, monkeypatch):
    replay_on_cpu(monkeypatch)
    ends = []
    for graphs in (None, GraphCache()):
        step, parameters = steps_of(layer, graphs)
        losses = []
        for number in range(8):
            coefficients = StepCoefficients(0.1 * number, 0.2 * number, 0.3 * number)
            outcome = step([batch(number, 3 if number % 4 == 3 else 4)], coefficients, (1 / (1 + number),))
            step.optimizers.step_schedulers()
            losses.append([outcome.loss.item(), *(value.item() for value in outcome.terms.values())])
        ends.append((losses, parameters, torch.get_rng_state()))
    (losses, parameters, random), (replayed_losses, replayed, replayed_random) = ends
    assert [len(graphs.graphs), sum(graphs.calls.values())] == [1, 8]
    torch.testing.assert_close(torch.tensor(replayed_losses), torch.tensor(losses), rtol=1e-9, atol=1e-12)
    for again, once in zip(replayed, parameters, strict=True):
        torch.testing.assert_close(again, once, rtol=1e-9, atol=1e-12)
    assert torch.equal(replayed_random, random)


def test_a_batch_with_nan_is_flagged_by_a_replay_and_no_other_batch_is(monkeypatch):
    replay_on_cpu(monkeypatch)
    step, _ = steps_of("kep-svgp", GraphCache())
    for number in range(5):
        step([batch(number)], StepCoefficients())
    assert not step.has_failed()
    images, labels = batch(5)
    images[1] = torch.nan
    step([(images, labels)], StepCoefficients())
    assert step.has_failed()


class Batches(list):
    """Five batches an epoch; from the second epoch on, ``broken`` is the number of the one with NaN."""

    passes, broken = 0, None

    def __init__(self):
        super().__init__(batch(number, 2) for number in range(5))

    def __iter__(self):
        self.passes += 1
        for number, (images, labels) in enumerate(super().__iter__()):
            bad = number == self.broken and self.passes > 2
            yield (images * torch.nan if bad else images), labels


def train(train_batches, **options):
    model, guide = build()
    options = TrainOptions(**{"epochs": 3, "lr": 0.01, "num_samples": 2, "capture": True} | options)
    history = fit(model, guide, train_batches, options=options, progress=False)
    return history, model


def test_an_epoch_of_replays_with_a_nan_batch_is_repeated_eagerly_which_names_the_batch(monkeypatch):
    replay_on_cpu(monkeypatch)
    batches = Batches()
    batches.broken = 3
    with pytest.raises(NonFiniteError, match="epoch 2, batch 3: NaN or Inf in the inputs, rows"):
        train(batches)


def test_steps_are_captured_anew_after_an_epoch_that_was_repeated(monkeypatch):
    caches, failures = [], iter([False, True, False, False])
    replay_on_cpu(monkeypatch, caches=caches)
    has_failed = CUDAGraphStep.has_failed
    monkeypatch.setattr(CUDAGraphStep, "has_failed", lambda self: has_failed(self) or next(failures))
    history, _ = train(Batches(), epochs=4)
    assert [len(cache.graphs) for cache in caches] == [1, 1]
    assert caches[0].stream is caches[1].stream
    assert len(history.epochs) == 4
    monkeypatch.undo()
    once, _ = train(Batches(), epochs=4)
    losses = [[each["train_loss"] for each in run.epochs] for run in (history, once)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_no_graph_outlives_its_run(monkeypatch):
    """A graph that dies in a cycle, whenever garbage is collected, would end another one's capture."""
    replay_on_cpu(monkeypatch)
    alive = []
    created = Tape.__init__
    monkeypatch.setattr(Tape, "__init__", lambda self: (created(self), alive.append(weakref.ref(self)))[0])
    with without_garbage_collection():
        for _ in range(3):
            train(Batches())
            assert [each() for each in alive] == [None] * len(alive)
    assert len(alive) == 3


def accumulator(parameter):
    """The autograd node that adds up the gradient of a parameter: the one that is alive, or a new one."""
    return parameter.view_as(parameter).grad_fn.next_functions[0][0]


@pytest.mark.parametrize("layer", IN_EVERY_RUN)
def test_a_step_leaves_no_autograd_node_behind(layer):
    """Nodes remember the stream of their step, and a capture on another one refuses them."""
    step, parameters = steps_of(layer)
    parameters = [each for each in parameters if each.requires_grad]
    with without_garbage_collection(), step.stream():
        step([batch(0)], StepCoefficients(0.1, 1.0, 1.0))
        for parameter in parameters:
            accumulator(parameter).metadata["seen"] = True
        assert not any("seen" in accumulator(parameter).metadata for parameter in parameters)
        held = accumulator(parameters[0])
        held.metadata["seen"] = True
        assert "seen" in accumulator(parameters[0]).metadata


def test_no_garbage_is_collected_during_a_capture(monkeypatch):
    replay_on_cpu(monkeypatch)
    seen = []
    enter = Tape.__enter__
    monkeypatch.setattr(Tape, "__enter__", lambda self: (seen.append(gc.isenabled()), enter(self))[1])
    train(Batches())
    assert seen == [False]
    assert gc.isenabled()
    with pytest.raises(KeyError), without_garbage_collection():
        raise KeyError
    assert gc.isenabled()


def test_an_epoch_of_captured_steps_never_waits_for_the_device(monkeypatch):
    replay_on_cpu(monkeypatch)
    waiting = Synchronisations()
    train_batches = Trainer._train_batches

    def watched(*args):
        with waiting:
            return train_batches(*args)

    monkeypatch.setattr(Trainer, "_train_batches", watched)
    train(Batches(), log_every=2)
    assert waiting.seen == []
