"""Which of several outputs of a network are the logits."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Classifier, replace_attention

X, Y = torch.randn(4, 5, 8), torch.tensor([0, 1, 1, 0])
Named = namedtuple("Named", ("features", "logits"))


class Network(nn.Module):
    """Returns features of 16 dimensions and 2 logits in a form that a test says."""

    def __init__(self, form):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.features, self.head, self.form = nn.Linear(8, 16), nn.Linear(16, 2), form

    def forward(self, x):
        features = self.features(self.block(x).mean(1))
        return self.form(features, self.head(features))


@pytest.mark.parametrize(
    "form",
    [
        lambda features, logits: logits,
        lambda features, logits: (logits,),
        lambda features, logits: (logits, None),
        lambda features, logits: {"scores": logits},
        lambda features, logits: {"features": features, "logits": logits},
        Named,
    ],
)
def test_logits_and_the_only_tensor_are_the_output(form):
    network = Network(form)
    expected = Network(lambda features, logits: logits)
    expected.load_state_dict(network.state_dict())
    converted = replace_attention(network, attention=SoftmaxAttention)
    torch.testing.assert_close(converted(X), expected(X))
    model = Classifier(replace_attention(network, attention=KEPSVGPAttention.partial(rank=2)), num_data=4)
    guide = guides.for_model(model)
    fit(model, guide, [(X, Y)], options=TrainOptions(epochs=1), progress=False)
    assert model.network.wrapped.head.weight.grad.abs().sum() > 0
    assert predict(model, guide, [(X, Y)], num_samples=3).probs.shape == (4, 2)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (lambda features, logits: (features, logits), "tuple"),
        (lambda features, logits: [features, [logits]], "list"),
        (lambda features, logits: {"features": features, "scores": logits}, "dict"),
        (lambda features, logits: None, "None"),
    ],
)
def test_several_outputs_without_that_name_are_refused(form, kind):
    converted = replace_attention(Network(form), attention=KEPSVGPAttention.partial(rank=2))
    with pytest.raises(TypeError, match=rf"returned a {kind}.*returns the logits"):
        converted(X)
    with pytest.raises(TypeError, match=kind):
        predict(model := Classifier(converted, num_data=4), guides.for_model(model), [(X, Y)], num_samples=3)


def test_distilled_training_of_timm_is_refused_and_its_mean_is_the_output():
    timm = pytest.importorskip("timm")
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 16, "patch_size": 4, "num_classes": 3}
    network, x = timm.create_model("deit_tiny_distilled_patch16_224", **sizes), torch.randn(4, 3, 16, 16)
    for training in (True, False):
        converted = replace_attention(network.train(training), attention=SoftmaxAttention, layers="all")
        torch.testing.assert_close(converted(x), network(x), atol=1e-5, rtol=0)
    network.train().set_distilled_training(True)
    converted = replace_attention(network, attention=SoftmaxAttention)
    with pytest.raises(TypeError, match="tuple with 2 tensors"):
        converted(x)
    torch.testing.assert_close(converted.eval()(x), network.eval()(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("which", ["CLIPVision", "Bert"])
def test_encoders_without_a_head_give_their_last_hidden_state(which):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    if which == "Bert":
        network, x = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes)), torch.randint(20, (2, 4))
    else:
        config = transformers.CLIPVisionConfig(image_size=8, patch_size=4, **sizes)
        network, x = transformers.CLIPVisionModel(config), torch.randn(2, 3, 8, 8)
    converted = replace_attention(network.eval(), attention=SoftmaxAttention, layers="all")
    torch.testing.assert_close(converted(x), network(x).last_hidden_state, atol=1e-5, rtol=0)
