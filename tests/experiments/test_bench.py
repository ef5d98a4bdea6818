"""The benchmarks measure what they say, on sizes so small that no speed is tested."""

import json
import time

import pytest
import torch

from probattn import KEPSVGPAttention
from probattn.experiments import bench

LAYERS = {"dim": 8, "heads": 2, "rank": 2, "batch": 3, "tokens": 4, "long": 6, "longer": 8}
NETWORK = {"dim": 8, "depth": 2, "heads": 2, "rank": 2, "batch": 3}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def check(result, groups):
    """Rows come in groups, each relative to its first case."""
    assert json.loads(json.dumps(result)) == result
    assert result["repeats"] == 2
    assert set(result["environment"]) == {"probattn", "torch", "hardware"}
    rows = iter(result["rows"])
    for cases in groups:
        group = [next(rows) for _ in cases]
        assert [row["case"] for row in group] == cases
        assert {row["baseline"] for row in group} == {cases[0]}
        assert group[0]["ratio"] == 1
        for row in group:
            assert row["ms"] > 0
            assert row["ratio"] == pytest.approx(row["ms"] / group[0]["ms"])
    assert next(rows, None) is None


def test_layers():
    result = bench.layers(repeats=2, **LAYERS)
    short = ["softmax, batch 3, N 4", "KEP-SVGP concat, batch 3, N 4", "KEP-SVGP add, batch 3, N 4"]
    one = ["softmax, batch 1, N 6", "KEP-SVGP add, batch 1, N 6"]
    growth = ["KEP-SVGP add, batch 1, N 6 (alone)", "KEP-SVGP add, batch 1, N 8"]
    check(result, [short, one, growth])
    assert "dim 8, 2 heads" in result["title"]


def test_gaussian_process_layers():
    sizes = {"dim": 8, "heads": 2, "inducing": 2, "batch": 3, "tokens": 4, "long": 256, "longer": 1024}
    result = bench.gaussian_process_layers(repeats=2, **sizes)
    names = [row["case"] for row in result["rows"]]
    assert names[0] == "softmax"
    for part in (
        "kernel",
        "SGPA, 2 inducing, marginal",
        "sparse CGP, 2 inducing, draw, exact R",
        "CGP, draw, R by draws",
    ):
        assert any(part in name for name in names)
    growth = ["sparse CGP, batch 1, N 256", "sparse CGP, batch 1, N 1024"]
    check(result, [names[:-2], growth])
    assert list(result["kept"]) == growth
    assert 3.5 < result["kept"][growth[1]] / result["kept"][growth[0]] < 4.5


def test_prediction():
    result = bench.prediction(repeats=2, **NETWORK)
    predicting = ["deterministic forward, softmax ViT", "ten-draw prediction, KEP-SVGP in the last layer"]
    training = ["training step, softmax ViT, plain torch", "training step, KEP-SVGP in the last layer, SVI"]
    check(result, [predicting, training])
    assert "2-layer ViT, dim 8, 2 heads, batch 3" in result["title"]


def test_the_sizes_of_the_issue_are_the_defaults(monkeypatch):
    built = []
    monkeypatch.setattr(
        bench, "layer_step", lambda factory, dim, heads, **size: built.append((dim, heads, *size.values())) or (int)
    )
    rows = [row["case"] for row in bench.layers(repeats=1)["rows"]]
    assert built == 3 * [(384, 12, 128, 64)] + 3 * [(384, 12, 1, 4096)] + [(384, 12, 1, 16384)]
    assert "KEP-SVGP concat, batch 128, N 64" in rows
    assert "KEP-SVGP add, batch 1, N 16384" in rows


def test_cases_take_turns_and_medians_are_taken(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    seconds = {"a": iter([9, 9, 1, 2, 30]), "b": iter([9, 9, 4, 4, 4])}

    def step(name):
        order.append(name)
        clock[0] += next(seconds[name])

    medians = bench._time({"a": lambda: step("a"), "b": lambda: step("b")}, 3)
    assert order == ["a", "b"] * 5  # two rounds of warming up
    assert medians == {"a": 2000, "b": 4000}


def test_a_layer_step_is_forward_and_backward_of_the_whole_objective(monkeypatch):
    layers = []

    def factory(dim, heads):
        layers.append(KEPSVGPAttention(dim, heads, rank=2, merge="add", eta=1.0))
        return layers[-1]

    step = bench.layer_step(factory, 8, 2, batch=3, tokens=4)
    gradients = []
    for _ in range(2):
        step()
        gradients.append({name: p.grad.clone() for name, p in layers[0].named_parameters()})
    assert all(grad.abs().max() > 0 for grad in gradients[0].values())
    sizes = [sum(grad.square().sum() for grad in each.values()) for each in gradients]
    assert sizes[1] < 2 * sizes[0]  # gradients of a step do not add up over steps


def test_training_steps_change_every_weight():
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    for model, step in trained(x, y):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        step()
        assert [name for name, p in model.named_parameters() if torch.equal(before[name], p)] == []


def trained(x, y):
    """Each kind of training step and what it trains."""
    from probattn import guides
    from probattn.models import Classifier, ViT, last

    shape = {"image_size": 32, "patch_size": 8, "classes": 10, "dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}
    plain = ViT(**shape)
    yield plain, bench.plain_training_step(plain, x, y)
    kep_svgp = KEPSVGPAttention.partial(rank=2, merge="add")
    model = Classifier(ViT(attention=last(1, kep_svgp, of=1), **shape), num_data=100)
    guide = guides.for_model(model)
    step = bench.svi_training_step(model, guide, x, y)
    yield model, step
    yield guide, step
