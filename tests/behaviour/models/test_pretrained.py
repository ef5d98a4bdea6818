"""A classifier on a pretrained encoder: what is replaced, dropout, draws, training."""

import pytest
import torch

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.models import Classifier, PretrainedClassifier

pytest.importorskip("transformers")
from transformers import BertConfig, BertModel  # noqa: E402

KEP = KEPSVGPAttention.partial(rank=3)
MASK = torch.tensor(
    [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool
)
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


@pytest.mark.parametrize("options", [{"pooling": "max"}, {"last": 4}, {"dropout": 1.0}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{[*options][0]}|layers"):
        PretrainedClassifier(bert(), **({"classes": 2, "attention": KEP} | options))
