"""Correlated-GP layers as programs: output and sites against loops over examples, heads and columns in float64."""

import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from probattn import guides, name_layers
from probattn.inference import predict
from probattn.models import Classifier

DIM, HEADS, TOKENS = 6, 2, 5
GUIDES = ["posterior", "prior", "learned"]
COLLAPSED = pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True, False, False, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"heads": 1}, {"heads": 3}], ids=str)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_layer_is_loops_over_examples_and_heads(kind, layer_is_loops, options, mask):
    layer_is_loops(kind, options, randn(3, TOKENS, DIM), mask)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_sites_of_the_program_through_z_o(kind, guide, mask):
    """z_o has its prior and carries its guide; z_k and nu are observed, each with its density given z_o; then z_q."""
    layer, x = kind.make(canonical_guide=guide, collapsed=False, output="draw", alpha=0.7), randn(3, TOKENS, DIM)
    nodes = kind.run(layer, x, mask)
    z_o, posterior = nodes["z_o"]["value"], nodes["z_o"]["infer"]["posterior"]
    z_q = nodes["z_q"]
    assert z_q["infer"]["posterior"] is z_q["fn"]  # so that neither density is computed
    for b, rows, heads in kind.loops(layer, x, mask):
        expected, scale = {"z_o": 0, "nu": 0, "z_k": 0}, 0.7 / (DIM * len(rows))
        for h, head in enumerate(heads):
            drawn = z_o[b, h, rows]
            mean, spread = head.drawn(guide)
            assert_close(posterior.mean[b, h, rows], mean)
            assert_close(posterior.variance[b, h, rows], spread.diagonal().unsqueeze(-1).expand_as(mean))
            expected["z_o"] += MultivariateNormal(torch.zeros_like(drawn.T), head.prior[1]).log_prob(drawn.T).sum()
            expected["z_o"] -= MultivariateNormal(mean.T, spread).log_prob(drawn.T).sum()
            for name, of, seen in (("nu", head.q, head.nu), ("z_k", head.k, head.z_k)):
                mean, spread = head.given([of], [head.o], drawn)
                assert_close(nodes[name]["value"][b, h, rows], seen)
                expected[name] += MultivariateNormal(mean.T, kind.symmetric(spread)).log_prob(seen.T).sum()
            mean, spread = head.given([head.q], [head.o], drawn)
            assert_close(z_q["fn"].mean[b, h, rows], mean)
            assert_close(kind.covariance(z_q["fn"].covariance)[b, h][rows[:, None], rows], spread)
        joined = torch.cat([z_q["value"][b, h, rows] for h in range(HEADS)], dim=-1)
        assert_close(nodes["_RETURN"]["value"][b, rows], layer.out(joined))
        for name in ("nu", "z_k"):
            assert_close(nodes[name]["log_prob"][b], scale * expected[name])
        log_q = scale * posterior.log_prob(z_o)[b]  # padding, drawn as plain noise, counts alike in both
        assert_close(nodes["z_o"]["log_prob"][b] - log_q, scale * expected["z_o"])
        assert_close(
            torch.as_tensor(nodes["z_o"]["infer"]["weight"]).expand(3)[b].double(), torch.tensor(scale).double()
        )


def kinds(kind, layer, x):
    nodes = kind.run(layer, x)
    return {name: "observed" if n["is_observed"] else "latent" for name, n in nodes.items() if n["type"] == "sample"}


def test_names_and_kinds_of_sites(kind):
    x = randn(2, TOKENS, DIM)
    through = {"z_o": "latent", "z_k": "observed", "nu": "observed"}
    assert kinds(kind, kind.make(), x) == {"regulariser": "observed"}
    assert kinds(kind, kind.make(output="draw"), x) == {"regulariser": "observed", "z_q": "latent"}
    assert kinds(kind, kind.make(alpha=0, output="draw"), x) == {"z_q": "latent"}
    assert kinds(kind, kind.make(alpha=0), x) == {}
    assert kinds(kind, kind.make(collapsed=False), x) == through
    assert kinds(kind, kind.make(collapsed=False, output="draw"), x) == through | {"z_q": "latent"}
    assert kinds(kind, kind.make(collapsed=False, alpha=0, output="draw"), x) == {"z_o": "latent", "z_q": "latent"}
    assert kinds(kind, kind.make(collapsed=False, alpha=0), x) == {"z_o": "latent"}
    assert kinds(kind, kind.layer(DIM, HEADS).double(), x) == through | {"z_q": "latent"}
    network = torch.nn.Sequential(torch.nn.Identity(), kind.make(collapsed=False, output="draw"))
    name_layers(network)
    nodes = poutine.trace(network).get_trace(x).nodes
    ours = {name: node for name, node in nodes.items() if node["type"] == "sample"}
    assert list(ours) == ["1.z_o", "1.z_k", "1.nu", "1.z_q"]
    for name, node in ours.items():
        assert node["infer"]["local"]
        assert node["fn"].batch_shape == (2,)
        assert bool(node["infer"].get("regulariser")) == (name != "1.z_q")
        assert bool(node["infer"].get("is_auxiliary")) == node["is_observed"]
    assert kind.make().sites() == kind.make(collapsed=False).sites() == {}


@COLLAPSED
def test_the_regulariser_is_left_out_where_nobody_listens(kind, collapsed):
    layer, x = kind.make(output="draw", collapsed=collapsed), randn(2, TOKENS, DIM)
    with poutine.mask(mask=False):
        nodes = poutine.trace(layer).get_trace(x).nodes
    names = [name for name, node in nodes.items() if node["type"] == "sample"]
    assert names == (["z_q"] if collapsed else ["z_o", "z_q"])


def hand_computed(kind, layer, x, z_o):
    """Output A_q z_o of each example in loops."""
    outputs = []
    for b, _, heads in kind.loops(layer, x):
        means = [head.given([head.q], [head.o], z_o[b, h])[0] for h, head in enumerate(heads)]
        outputs.append(layer.out(torch.cat(means, dim=-1)))
    return torch.stack(outputs)


@pytest.mark.parametrize("intervene", [poutine.condition, poutine.do])
def test_interventions_on_z_o_reach_the_output(kind, intervene):
    layer, x = kind.make(collapsed=False), randn(3, TOKENS, DIM)
    for seed in (1, 2):
        z_o = randn(3, HEADS, TOKENS, DIM // HEADS, seed=seed)
        assert_close(intervene(layer, data={"z_o": z_o})(x), hand_computed(kind, layer, x, z_o))


@pytest.mark.parametrize("intervene", [poutine.condition, poutine.do])
def test_interventions_on_z_o_reach_predictions(kind, intervene):
    """Of the mean output they are the softmax of the head of A_q z_o; a drawn output keeps its noise about it."""
    x, values = randn(3, TOKENS, DIM), [randn(3, HEADS, TOKENS, DIM // HEADS, seed=seed) for seed in (1, 2)]
    for output in ("mean", "draw"):
        layer = kind.make(collapsed=False, output=output)
        model = Classifier(kind.network(layer), num_data=3)
        free = predict(model, guides.for_model(model), x, num_samples=4)
        assert (free.mutual_information > 1e-4).all()
        for z_o in values:
            torch.manual_seed(0)
            with intervene(data={"network.layer.z_o": z_o}):
                found = predict(model, guides.for_model(model), x, num_samples=80, keep_draws=True)
            with torch.no_grad():
                expected = model.network.head(hand_computed(kind, layer, x, z_o)[:, 0]).softmax(-1)
            if output == "mean":
                assert_close(found.probs, expected)
            else:
                assert found.draws.shape == (80, 3, 3)
                assert (found.mutual_information > 1e-4).all()
                assert (found.probs - expected).abs().max() < 0.15  # noise of z_q | z_o, through a softmax
            assert (found.probs - free.probs).abs().max() > 0.02


def test_attention_matrix_maps_values_to_the_mean(kind):
    layer, x = kind.make(alpha=0), randn(3, TOKENS, DIM)
    matrix = layer.attention_matrix(x, MASK)
    value = layer.query_key_value(x)[..., 2 * DIM :].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    assert_close(layer.out((matrix @ value).transpose(1, 2).flatten(-2))[MASK], layer(x, MASK)[MASK])
    pairs = (MASK[:, None, :, None] & MASK[:, None, None, :]).expand_as(matrix)
    assert (matrix[~pairs] == 0).all()
    assert (matrix[pairs] != 0).all()


@COLLAPSED
def test_predict_is_deterministic_with_the_collapsed_mean_and_spread_with_draws(kind, collapsed):
    x = randn(3, TOKENS, DIM)
    for output in ("mean", "draw"):
        model = Classifier(kind.network(kind.make(output=output, collapsed=collapsed)), num_data=3)
        with torch.no_grad():
            logits = model.network.head(kind.make(alpha=0)(x)[:, 0])
        first, second = (predict(model, guides.for_model(model), x, num_samples=4) for _ in range(2))
        assert model.network.layer.is_stochastic() == (output == "draw" or not collapsed)
        if model.network.layer.is_stochastic():
            assert (first.mutual_information > 1e-4).all()
            assert ((second.probs - first.probs).abs() > 1e-6).all()
        else:
            assert_close(first.probs, logits.softmax(-1))
            assert_close(second.probs, first.probs)
            assert (first.mutual_information < 1e-9).all()
