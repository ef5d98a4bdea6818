"""A classifier on a pretrained encoder: what is replaced, dropout, draws, training."""

import pytest
import torch

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import predict
from probattn.models import Classifier, PretrainedClassifier

pytest.importorskip("transformers")
from transformers import BertConfig, BertModel  # noqa: E402

KEP = KEPSVGPAttention.partial(rank=3)
MASK = torch.tensor(
    [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool
)
LABELS = torch.tensor([0, 1, 0, 1])
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def bert(**options):
    return BertModel(
        BertConfig(vocab_size=20, max_position_embeddings=8, **SIZES, **options)
    ).eval()


@pytest.fixture
def x():
    return torch.randint(2, 20, (4, 5)).where(MASK, 0)


def test_dropout_of_the_encoder_and_of_the_head_is_active_in_training_only(x):
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for encoder, dropout in ((bert(), 0.0), (bert(**off), 0.5)):
        classifier = PretrainedClassifier(
            encoder, classes=2, dropout=dropout, attention=SoftmaxAttention, last=0
        )
        assert Classifier(classifier, num_data=4).training
        assert torch.equal(classifier.pooled(x, MASK), classifier.pooled(x, MASK)) == bool(dropout)
        assert not torch.equal(classifier(x, MASK), classifier(x, MASK))
        assert torch.equal(classifier.eval()(x, MASK), classifier(x, MASK))


@pytest.mark.parametrize("last", [1, 2])
def test_draws_differ_and_padding_changes_nothing(x, last):
    model = Classifier(
        PretrainedClassifier(bert(), classes=2, attention=KEP, last=last), num_data=4
    ).eval()
    guide, predictions = guides.for_model(model), []
    padded = torch.cat([x, x.new_full((4, 2), 7)], 1)
    mask = torch.cat([MASK, MASK.new_zeros(4, 2)], 1)
    for batch in ((x, LABELS, MASK), (padded, LABELS, mask)):
        torch.manual_seed(0)
        predictions.append(predict(model, guide, [batch], num_samples=6))
    torch.testing.assert_close(predictions[0].probs, predictions[1].probs)
    assert predictions[0].mutual_information.min() > 0


@pytest.mark.parametrize("options", [{"pooling": "max"}, {"last": 4}, {"dropout": 1.0}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{[*options][0]}|layers"):
        PretrainedClassifier(bert(), **({"classes": 2, "attention": KEP} | options))
