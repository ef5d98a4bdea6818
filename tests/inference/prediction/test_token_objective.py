"""ELBO and training with a class per token: padding never counts."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from token_models import F64, KEP, LAYERS, SENTENCES, SOFTMAX, Tagger, batch, build, sentences

from probattn import draws, guides
from probattn.inference import TrainOptions, fit, metrics
from probattn.models import Supervised
from probattn.models.likelihoods import TokenCategorical

ELBOS = pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO])


def elbo_and_gradients(elbo, model, guide, given, per_example):
    torch.manual_seed(2)
    model.zero_grad()
    guide.zero_grad()
    with draws("example" if per_example else 1):
        loss = elbo()(model, guide)(*given)
    loss.backward()
    gradients = [p.grad.clone() for p in (*model.parameters(), *guide.parameters()) if p.grad is not None]
    return loss.detach(), gradients


@LAYERS
@ELBOS
@pytest.mark.parametrize("per_example", [True, False])
def test_more_padding_changes_neither_the_objective_nor_its_gradient(layer, elbo, per_example):
    model, guide = build(layer)
    # The word at padding is one of the sentences': its embedding may get no gradient from there.
    variants = [batch(SENTENCES), batch(SENTENCES, more=4, word=3, label=-100)]
    found = [elbo_and_gradients(elbo, model, guide, each, per_example) for each in variants]
    torch.testing.assert_close(found[1][0], found[0][0])
    assert len(found[0][1]) == len(list(model.parameters())) + len(list(guide.parameters()))
    places = next(i for i, (name, _) in enumerate(model.named_parameters()) if "places" in name)
    assert (found[1][1][places][7:] == 0).all()
    for gradient, other in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(gradient, other)


@LAYERS
def test_the_elbo_of_a_batch_is_that_of_its_sentences_one_at_a_time(layer):
    """−ELBO = N/B Σ_b [−Σ_t log p(tag) − log factors] + KL(q ‖ p), at one draw of u."""
    model, guide = build(layer, num_data=50)
    elbo = TraceMeanField_ELBO()
    loss = elbo(model, guide)(*batch(SENTENCES, more=2, label=-100))
    data = {name: node["value"] for name, node in elbo.traces[1].nodes.items() if name.endswith(".u")}
    by_hand = torch.zeros((), dtype=F64)
    for words, tags in SENTENCES:
        trace = poutine.trace(poutine.condition(model.network, data=data)).get_trace(words[None])
        log_probs = trace.nodes["_RETURN"]["value"][0].log_softmax(-1)
        for t, tag in enumerate(tags):
            by_hand = by_hand - 50 / 6 * log_probs[t, tag]
        factors = [node["fn"].log_factor.sum() for name, node in trace.nodes.items() if name.endswith("ksvd")]
        by_hand = by_hand - 50 / 6 * sum(factors)
    if layer is KEP:
        site = "network.attention.u"
        prior, q = model.network.attention.sites()["u"], elbo.traces[1].nodes[site]["fn"]
        by_hand = by_hand + torch.distributions.kl_divergence(q, prior).sum()
        assert len(data) == len(factors) == 1
    torch.testing.assert_close(loss, by_hand)


def loader(given, size):
    """Batches of sentences of similar length, padded to the longest of each."""
    ordered = sorted(given, key=lambda pair: len(pair[0]))
    return [batch(ordered[at : at + size], label=-100) for at in range(0, len(ordered), size)]


@pytest.mark.parametrize(
    ("layer", "monitor"),
    [pytest.param(KEP, "mcc", marks=pytest.mark.slow), (KEP, None), (SOFTMAX, "mcc")],
    ids=["kep-svgp-mcc", "kep-svgp-default", "softmax-mcc"],
)
def test_a_tagger_learns_from_sentences_of_varying_length(layer, monitor):
    torch.manual_seed(0)
    lengths = torch.randint(1, 11, (600,), generator=torch.Generator().manual_seed(3)).tolist()
    train, valid = loader(sentences(lengths), 20), loader(sentences(lengths[:100], seed=9), 20)
    assert len({x.shape[1] for x, _, _ in train}) > 5
    model = Supervised(Tagger(layer, width=32), TokenCategorical(), num_data=len(lengths))
    history = fit(
        model,
        guides.for_model(model),
        train,
        valid,
        options=TrainOptions(epochs=10, lr=5e-3, monitor=monitor, num_samples=3),
        progress=False,
    )
    labels = torch.cat([y[mask] for _, y, mask in valid])
    by_word = (labels != 0).double().mean().item()  # of the best tagger that does not look at the next word
    assert by_word > labels.bincount().max() / len(labels) + 0.25
    best = history.epochs[history.best_epoch - 1]
    assert {score.__name__ for score in metrics.OF_CLASSES} <= {name.removeprefix("valid/") for name in best}
    assert history.best_value == best[f"valid/{monitor or 'nll'}"]
    assert best["valid/accuracy"] > by_word + 0.1
    assert best["valid/mcc"] > 0.7
