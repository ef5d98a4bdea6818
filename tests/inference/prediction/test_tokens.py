"""A class per token, end to end: sentences of varying length, padding that never counts, metrics over real tokens."""

import math

import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.nn import PyroModule
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides
from probattn.handlers import at_mean
from probattn.inference import Prediction, Trace_ELBO, TraceMeanField_ELBO, fit, metrics, predict, temperature_scaled
from probattn.inference.metrics import ood
from probattn.inference.prediction import predict as prediction
from probattn.models import Supervised
from probattn.models.likelihoods import TokenCategorical

F64 = torch.float64
WORDS, TAGS = 6, 3
KEP, SOFTMAX = KEPSVGPAttention.partial(rank=4, merge="add"), SoftmaxAttention
LAYERS = pytest.mark.parametrize("layer", [KEP, SOFTMAX], ids=["kep-svgp", "softmax"])
ELBOS = pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO])
FIELDS = ("probs", "expected_entropy", "energy", "entropy", "mutual_information")


class Tagger(PyroModule):
    """Embeds words and their places, lets them attend once, and tags each."""

    def __init__(self, layer, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(16, width)
        self.attention, self.norm, self.head = layer(width, 4), nn.LayerNorm(width), nn.Linear(width, TAGS)

    def forward(self, x, mask=None):
        x = self.words(x) + self.places(torch.arange(x.shape[-1]))
        return self.head(self.norm(x + self.attention(x, mask)))


def build(layer, num_data=10):
    torch.manual_seed(0)
    model = Supervised(Tagger(layer), TokenCategorical(), num_data=num_data).double()
    guide = guides.for_model(model)
    with torch.no_grad():  # far from the start, where draws and neighbours hardly matter
        for parameter in model.network.attention.parameters():
            parameter.add_(torch.randn_like(parameter) / 2)
    return model, guide


def sentences(lengths, seed=0):
    """Words and tags of each sentence: the tag is 0 where the next word is the same, else 1 or 2 by the word."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in lengths:
        words = torch.randint(WORDS, (length,), generator=generator)
        follows = torch.rand(length, generator=generator) < 0.3
        for place in range(length - 1):
            if follows[place]:
                words[place + 1] = words[place]
        same = torch.cat([words[1:] == words[:-1], torch.tensor([False])])
        found.append((words, torch.where(same, 0, 1 + words % 2)))
    return found


def batch(given, *, more=0, word=0, label=0):
    """A batch ``(x, y, mask)`` padded to the longest and that many tokens more."""
    longest = max(len(words) for words, _ in given) + more
    x, y = (torch.full((len(given), longest), fill) for fill in (word, label))
    mask = torch.zeros_like(x, dtype=torch.bool)
    for row, (words, tags) in enumerate(given):
        x[row, : len(words)], y[row, : len(words)], mask[row, : len(words)] = words, tags, True
    return x, y, mask


SENTENCES = sentences([5, 2, 7, 1, 4, 4])


def predicted(model, guide, batches, *, num_samples=3, **options):
    torch.manual_seed(1)
    return predict(model, guide, batches, num_samples=num_samples, **options)


def assert_same_tokens(found, expected, **tolerance):
    for field in FIELDS:
        torch.testing.assert_close(getattr(found, field), getattr(expected, field), msg=field, **tolerance)
    assert torch.equal(found.labels, expected.labels)


# --- What a prediction of tokens is


@LAYERS
def test_batches_of_different_lengths_are_what_each_sentence_alone_gives(layer):
    model, guide = build(layer)
    whole = predicted(model, guide, [batch(SENTENCES[:2]), batch(SENTENCES[2:])], keep_draws=True)
    lengths = torch.tensor([len(words) for words, _ in SENTENCES])
    assert torch.equal(whole.mask, torch.arange(7) < lengths.unsqueeze(1))
    assert whole.probs.shape == (6, 7, TAGS)
    for row, (words, tags) in enumerate(SENTENCES):
        alone = predicted(model, guide, [(words[None], tags[None])], keep_draws=True)
        assert alone.mask.all()
        for field in (*FIELDS, "labels"):
            own = getattr(whole, field)[row, : len(words)]
            torch.testing.assert_close(own, getattr(alone, field)[0], msg=field)
        torch.testing.assert_close(whole.draws[:, row, : len(words)], alone.draws[:, 0])
    if layer is KEP:
        assert (whole.mutual_information[whole.mask] > 1e-6).all()


@LAYERS
def test_everything_at_padding_is_zero_and_metrics_refuse_it(layer):
    model, guide = build(layer)
    batches = [batch(SENTENCES[:2], more=1, label=-100), batch(SENTENCES[2:], label=99)]
    whole = predicted(model, guide, batches, keep_draws=True)
    for field in (*FIELDS, "labels"):
        assert (getattr(whole, field)[~whole.mask] == 0).all(), field
    assert (whole.draws[:, ~whole.mask] == 0).all()
    assert whole.log_probs.isfinite().all()
    with pytest.raises(ValueError, match="sums to 0"):
        metrics.evaluate(whole.probs.flatten(0, 1), whole.labels.flatten())


@LAYERS
def test_entropies_and_log_prob_by_hand(layer):
    model, guide = build(layer)
    batches = [batch(SENTENCES[:2], more=2, label=-100), batch(SENTENCES[2:])]
    whole = predicted(model, guide, batches, num_samples=4, keep_draws=True)
    log_prob = whole.log_prob(torch.where(whole.mask, whole.labels, -100))
    for row, (words, tags) in enumerate(SENTENCES):
        joint = 0.0
        for s in range(4):
            joint += math.prod(whole.draws[s, row, t, tag].item() for t, tag in enumerate(tags)) / 4
        assert math.isclose(log_prob[row], math.log(joint), rel_tol=1e-9)
        for t in range(len(words)):
            rows = [whole.draws[s, row, t].tolist() for s in range(4)]
            mean = [sum(column) / 4 for column in zip(*rows, strict=True)]
            entropies = [-sum(p * math.log(p) for p in each) for each in (mean, *rows)]
            assert math.isclose(whole.entropy[row, t], entropies[0], rel_tol=1e-9)
            assert math.isclose(whole.expected_entropy[row, t], sum(entropies[1:]) / 4, rel_tol=1e-9)
            information = entropies[0] - sum(entropies[1:]) / 4
            assert math.isclose(whole.mutual_information[row, t], information, rel_tol=1e-6, abs_tol=1e-12)


def test_a_batch_without_a_mask_has_real_tokens_only():
    model, guide = build(KEP)
    found = predicted(model, guide, [batch(SENTENCES[:4]), batch(SENTENCES[4:])[:2]])
    assert found.mask.sum(1).tolist() == [5, 2, 7, 1, 4, 4]
    assert_same_tokens(found, predicted(model, guide, [batch(SENTENCES)]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_may_be_small_integers(dtype):
    model, guide = build(KEP)
    expected = predicted(model, guide, [batch(SENTENCES)])
    batches = [(x, y.to(dtype), mask) for x, y, mask in (batch(SENTENCES[:2]), batch(SENTENCES[2:], label=99))]
    found = predicted(model, guide, batches)
    assert found.labels.dtype == dtype
    assert torch.equal(found.labels, expected.labels.to(dtype))
    torch.testing.assert_close(found.log_prob(found.labels), expected.log_prob(expected.labels))


def test_a_likelihood_that_counts_fewer_tokens_than_the_mask_says_which():
    """Where only the first of a word's pieces has a tag, say."""
    first = torch.tensor([True, False, True, True, False])

    class FirstPieces(TokenCategorical):
        def forward(self, outputs, mask=None):
            return super().forward(outputs, mask & first)

    model = Supervised(Tagger(KEP), FirstPieces(), num_data=3).double()
    x, y, mask = batch(sentences([5, 2, 4]))
    found = predicted(model, guides.for_model(model), [(x, torch.where(mask & first, y, -100), mask)])
    assert torch.equal(found.mask, mask & first)
    assert len(found.tokens().labels) == 3 + 1 + 3
    assert found.log_prob(found.labels).isfinite().all()


def test_labels_of_another_shape_are_refused():
    model, guide = build(KEP)
    x, y, mask = batch(SENTENCES)
    whole = predicted(model, guide, [batch(SENTENCES[:2]), batch(SENTENCES[2:])])
    for wrong in (y[:, :5], y[:5], y[:, 0]):
        with pytest.raises(ValueError, match=r"labels of shape \(6, 7\)"):
            whole.log_prob(wrong)
    with pytest.raises(ValueError, match=r"labels of shape \(6, 7\), one per token, got \(6, 1\)"):
        predicted(model, guide, [(x, y[:, :1], mask)])


def test_a_label_that_is_no_class_is_refused_at_a_real_token():
    model, guide = build(KEP)
    for label in (-100, TAGS):
        x, y, mask = batch(SENTENCES, label=label)
        assert TraceMeanField_ELBO()(model, guide)(x, y, mask).isfinite()
        y[0, 4] = label
        with pytest.raises(ValueError, match="support"):
            TraceMeanField_ELBO()(model, guide)(x, y, mask)


# --- The real tokens alone


@LAYERS
def test_tokens_are_the_real_ones_in_order(layer):
    model, guide = build(layer)
    whole = predicted(model, guide, [batch(SENTENCES[:2]), batch(SENTENCES[2:])], num_samples=5, keep_draws=True)
    tokens = whole.tokens()
    places = [(row, t) for row, (words, _) in enumerate(SENTENCES) for t in range(len(words))]
    assert tokens.probs.shape == (23, TAGS)
    assert torch.equal(tokens.labels, torch.cat([tags for _, tags in SENTENCES]))
    for at, (row, t) in enumerate(places):
        assert torch.equal(tokens.probs[at], whole.probs[row, t])
        assert torch.equal(tokens.draws[:, at], whole.draws[:, row, t])
        assert tokens.energy[at] == whole.energy[row, t]
        assert tokens.mutual_information[at] == whole.mutual_information[row, t]
    torch.testing.assert_close(tokens.log_prob(tokens.labels), tokens.log_probs[torch.arange(23), tokens.labels])
    assert metrics.nll(tokens.probs, tokens.labels) == pytest.approx(-tokens.log_prob(tokens.labels).mean().item())


def test_tokens_go_where_examples_go():
    model, guide = build(KEP)

    def predictor(data):
        return predicted(model, guide, data).tokens()

    data = [batch(SENTENCES[:3]), batch(SENTENCES[3:])]
    other = predictor([batch(sentences([6, 3], seed=1))])
    assert set(ood.evaluate(predictor(data), other, fitted_on=other)) == set(ood.DETECTORS)
    scaled = temperature_scaled(predictor, data)
    assert (
        metrics.nll(scaled(data).probs, predictor(data).labels)
        <= metrics.evaluate(predictor(data).probs, predictor(data).labels)["nll"]
    )


def test_a_prediction_of_examples_has_no_tokens():
    with pytest.raises(ValueError, match="no mask: use it as it is"):
        Prediction(probs=torch.full((2, 2), 0.5)).tokens()


# --- What must not change a token's distribution


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(len(SENTENCES))),
    cuts=st.sets(st.integers(1, len(SENTENCES) - 1), max_size=3),
    more=st.integers(0, 3),
    word=st.integers(0, WORDS - 1),
    label=st.sampled_from([0, -100, 7]),
    layer=st.sampled_from([KEP, SOFTMAX]),
    mean=st.booleans(),
)
def test_padding_splitting_and_reordering_change_no_token(order, cuts, more, word, label, layer, mean):
    model, guide = build(layer)
    mixed = [SENTENCES[i] for i in order]
    edges = [0, *sorted(cuts), len(mixed)]
    pairs = list(zip(edges, edges[1:], strict=False))
    batches = [
        batch(mixed[a:b], more=more if number == 0 else 0, word=word, label=label)
        for number, (a, b) in enumerate(pairs)
    ]
    whole = [batch(SENTENCES)]
    if mean:
        with at_mean():
            found, expected = (predicted(model, guide, each) for each in (batches, whole))
    else:  # global latents are drawn once for all batches
        found, expected = (predicted(model, guide, each) for each in (batches, whole))
    back = torch.tensor(order).argsort()
    for field in FIELDS:
        rows = getattr(found, field)[back][found.mask[back]]
        torch.testing.assert_close(rows, getattr(expected, field)[expected.mask], msg=field)
    torch.testing.assert_close(found.log_prob(found.labels)[back], expected.log_prob(expected.labels))


def test_at_their_means_tokens_with_latents_of_their_own_do_not_depend_on_padding_either():
    model, guide = build(SGPAttention.partial(inducing=3))
    with at_mean():
        found = predicted(model, guide, [batch(SENTENCES[:2], more=3, word=2), batch(SENTENCES[2:], label=-100)])
        expected = predicted(model, guide, [batch(SENTENCES)])
    assert_same_tokens(found.tokens(), expected.tokens())


@LAYERS
@pytest.mark.parametrize("most", [1, 4, 9])
def test_pieces_of_a_batch_give_the_same(monkeypatch, layer, most):
    model, guide = build(layer)
    batches = [batch(SENTENCES[:4]), batch(SENTENCES[4:], more=1)]
    expected = predicted(model, guide, batches)
    monkeypatch.setattr(prediction, "CPU_EXAMPLE_DRAWS", most)
    found = predicted(model, guide, batches)
    assert_same_tokens(found, expected)
    torch.testing.assert_close(found.log_prob(found.labels), expected.log_prob(expected.labels))


@LAYERS
@pytest.mark.parametrize("num_samples", [1, 3, 4, 7])
def test_as_many_draws_as_tokens_or_examples_are_not_confused_with_them(layer, num_samples):
    """Four sentences of up to seven tokens in three tags."""
    model, guide = build(layer)
    given = SENTENCES[:4]
    found = predicted(model, guide, [batch(given)], num_samples=num_samples, keep_draws=True)
    torch.manual_seed(1)
    with draws(num_samples):
        latents = poutine.trace(guide).get_trace(batch(given)[0])
    for row, (words, tags) in enumerate(given):
        joint, energy = 0.0, torch.zeros(len(words), dtype=F64)
        for s in range(num_samples):
            data = {name: node["value"][s, 0] for name, node in latents.nodes.items() if name.endswith(".u")}
            logits = poutine.condition(model.network, data=data)(words[None])[0].detach()
            probs = logits.softmax(-1)
            energy -= logits.exp().sum(-1).log() / num_samples
            torch.testing.assert_close(found.draws[s, row, : len(words)], probs)
            joint += probs[torch.arange(len(words)), tags].prod().item() / num_samples
        assert math.isclose(found.log_prob(found.labels)[row], math.log(joint), rel_tol=1e-9)
        torch.testing.assert_close(found.energy[row, : len(words)], energy)


# --- The objective


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


# --- Training


def loader(given, size):
    """Batches of sentences of similar length, padded to the longest of each."""
    ordered = sorted(given, key=lambda pair: len(pair[0]))
    return [batch(ordered[at : at + size], label=-100) for at in range(0, len(ordered), size)]


@pytest.mark.parametrize(
    ("layer", "monitor"),
    [(KEP, "mcc"), (KEP, None), (SOFTMAX, "mcc")],
    ids=["kep-svgp-mcc", "kep-svgp-default", "softmax-mcc"],
)
def test_a_tagger_learns_from_sentences_of_varying_length(layer, monitor):
    torch.manual_seed(0)
    lengths = torch.randint(1, 11, (600,), generator=torch.Generator().manual_seed(3)).tolist()
    train, valid = loader(sentences(lengths), 20), loader(sentences(lengths[:100], seed=9), 20)
    assert len({x.shape[1] for x, _, _ in train}) > 5
    model = Supervised(Tagger(layer, width=32), TokenCategorical(), num_data=len(lengths))
    history = fit(
        model, guides.for_model(model), train, valid, epochs=10, lr=5e-3, monitor=monitor, num_samples=3, progress=False
    )
    labels = torch.cat([y[mask] for _, y, mask in valid])
    by_word = (labels != 0).double().mean().item()  # of the best tagger that does not look at the next word
    assert by_word > labels.bincount().max() / len(labels) + 0.25
    best = history.epochs[history.best_epoch - 1]
    assert set(metrics.DISPLAY) <= {name.removeprefix("valid/") for name in best}
    assert history.best_value == best[f"valid/{monitor or 'accuracy'}"]
    assert best["valid/accuracy"] > by_word + 0.1
    assert best["valid/mcc"] > 0.7
