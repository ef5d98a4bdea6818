"""A classifier on a pretrained encoder computes what the encoder does, and is a network of this library."""

import pytest
import torch

from probattn import KEPSVGPAttention, SoftmaxAttention, SparseCGPAttention, draws, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Classifier, PretrainedClassifier

pytest.importorskip("transformers")
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel  # noqa: E402

KEP = KEPSVGPAttention.partial(rank=3)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
LENGTHS = (5, 3, 1, 4)


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    return BertModel(BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)).eval()


def roberta():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    return RobertaModel(RobertaConfig(vocab_size=20, max_position_embeddings=9, pad_token_id=1, **sizes)).eval()


@pytest.fixture
def x():
    return torch.randint(2, 20, (4, 5), generator=torch.Generator().manual_seed(1)).where(MASK, 0)


@pytest.mark.parametrize("make", [bert, roberta])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("last", [0, 1, None])
@torch.no_grad()
def test_with_softmax_the_pooled_features_are_those_of_the_encoder_on_each_text_alone(x, make, pooling, last):
    encoder = make().double()
    ours = PretrainedClassifier(encoder, classes=3, pooling=pooling, attention=SoftmaxAttention, last=last)
    ours = ours.double().eval()
    states = [encoder(input_ids=row[None, :n]).last_hidden_state[0] for row, n in zip(x, LENGTHS, strict=True)]
    expected = torch.stack([each[0] if pooling == "cls" else each.mean(0) for each in states])
    torch.testing.assert_close(ours.pooled(x, MASK), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(x, MASK), ours.head(expected), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(x[:1]), ours(x, MASK)[:1], rtol=1e-12, atol=1e-12)


def test_only_the_last_attention_is_another_and_the_encoder_given_is_not_changed(x):
    encoder = bert()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with torch.no_grad():
        expected = encoder(input_ids=x, output_hidden_states=True).hidden_states
    for last in (0, 1):
        classifier = PretrainedClassifier(encoder, classes=2, attention=KEP, last=last)
        assert not encoder.training
        with torch.no_grad():
            classifier.eval()(x)
            wrapped = classifier.encoder.wrapped
            found = [wrapped.embeddings(x)]
            for layer in wrapped.encoder.layer[: 3 - last]:
                found.append(layer(found[-1]))
        torch.testing.assert_close(found, list(expected[: 4 - last]))
        assert len(classifier.encoder.layers()) == last
        kept = {name.removeprefix("encoder.wrapped."): each for name, each in classifier.state_dict().items()}
        shared = [name for name in before if name in kept]
        lost = [name for name in before if name not in kept and not name.startswith("pooler.")]
        assert all(torch.equal(kept[name], before[name]) for name in shared)
        assert all(name.startswith("encoder.layer.2.attention.") for name in lost)
        assert bool(lost) == (last == 1)
    after = encoder.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_dropout_of_the_encoder_and_of_the_head_is_active_in_training_only(x):
    classifier = PretrainedClassifier(bert(), classes=2, dropout=0.0, attention=SoftmaxAttention, last=0)
    model = Classifier(classifier, num_data=4)
    assert model.training
    assert classifier.encoder.wrapped.training
    assert not torch.equal(classifier.pooled(x, MASK), classifier.pooled(x, MASK))
    model.eval()
    assert torch.equal(classifier.pooled(x, MASK), classifier.pooled(x, MASK))
    plain = BertModel(
        BertConfig(**bert().config.to_dict() | {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0})
    )
    classifier = PretrainedClassifier(plain, classes=2, dropout=0.5, attention=SoftmaxAttention, last=0)
    assert torch.equal(classifier.pooled(x, MASK), classifier.pooled(x, MASK))
    assert not torch.equal(classifier(x, MASK), classifier(x, MASK))
    assert torch.equal(classifier.eval()(x, MASK), classifier(x, MASK))


@pytest.mark.parametrize("last", [1, 2])
def test_draws_are_a_dimension_of_their_own_and_padding_changes_nothing(x, last):
    model = Classifier(PretrainedClassifier(bert(), classes=2, attention=KEP, last=last), num_data=4).eval()
    guide = guides.for_model(model)
    padded, mask = torch.cat([x, x.new_full((4, 2), 7)], 1), torch.cat([MASK, MASK.new_zeros(4, 2)], 1)
    labels = torch.tensor([0, 1, 0, 1])
    found = []
    for batch in ((x, labels, MASK), (padded, labels, mask)):
        torch.manual_seed(0)
        found.append(predict(model, guide, [batch], num_samples=6))
    first, second = found
    torch.testing.assert_close(first.probs, second.probs)
    assert first.mutual_information.min() > 0
    with draws(3), torch.no_grad():
        assert model.network(x, MASK).shape == (3, 4, 2)


def test_the_inducing_inputs_are_initialised_from_a_batch_and_nothing_else_changes(x):
    attention = SparseCGPAttention.partial(inducing=3)
    network = PretrainedClassifier(bert(), classes=2, attention=attention, last=1)
    (layer,) = network.encoder.layers()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    network.initialise_inducing(x, MASK)
    changed = [name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])]
    assert changed
    assert all("inducing" in name for name in changed)
    assert network.training


def test_it_is_trained_by_fit(x):
    model = Classifier(PretrainedClassifier(bert(), classes=2, attention=KEP), num_data=4)
    batches = [(x, torch.tensor([0, 1, 0, 1]), MASK)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = TrainOptions(epochs=2, lr=0.01, min_lr=0.01, lr_scale={"network.encoder.*": 0.0})
    fit(model, guides.for_model(model), batches, options=options, progress=False)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"network.head.weight", "network.head.bias"}
    fit(model, guides.for_model(model), batches, options=TrainOptions(epochs=1, lr=0.01), progress=False)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    still = {name for name, _ in model.named_parameters()} - moved
    assert still <= {"network.encoder.wrapped.embeddings.token_type_embeddings.weight"}


def test_invalid_options_are_refused():
    with pytest.raises(ValueError, match="pooling must be one of mean, cls, got 'max'"):
        PretrainedClassifier(bert(), classes=2, pooling="max", attention=KEP)
    with pytest.raises(ValueError, match="out of range: this network has 3 attention layers"):
        PretrainedClassifier(bert(), classes=2, attention=KEP, last=4)
    with pytest.raises(ValueError, match="dropout"):
        PretrainedClassifier(bert(), classes=2, dropout=1.0, attention=KEP)
