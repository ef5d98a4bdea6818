"""The loss of every layer on fake CUDA tensors, without a GPU: no tensor is on the wrong device."""

import pyro
import pytest
import torch
from attention_layers import ANY_LENGTH, LAYERS
from small_vit import small_vit
from torch._subclasses.fake_tensor import FakeTensorMode

from probattn import guides
from probattn.functional.errors import branch_free
from probattn.inference import TrainOptions
from probattn.inference.training.step import Objective, StepCoefficients
from probattn.models import Classifier, TextTransformer
from probattn.models.embeddings import WordEmbedding

NETWORK = {"classes": 3, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8, "dropout": 0.1}


@pytest.mark.parametrize(
    "layer",
    [
        "softmax-dropout",
        "kep-svgp-residual",
        "kep-svgp-concat",
        "sgpa",
        "cgp",
        "sparse-cgp",
        "anchored-draw",
        "rff-gpa-dual",
        "rff-cgp",
    ],
)
def test_the_loss_of_texts_or_of_images_is_on_the_gpu(layer, monkeypatch):
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True)
    monkeypatch.setattr(
        "probattn.families.has_stddev", lambda prior: True
    )  # read once, when the guide is built
    for module in (
        pyro.infer.trace_elbo,
        pyro.infer.trace_mean_field_elbo,
    ):  # fake tensors have no values
        monkeypatch.setattr(module, "torch_item", lambda value: 0.0)
        monkeypatch.setattr(module, "warn_if_nan", lambda *args: None)
    monkeypatch.setattr(Objective, "_is_valid", lambda *args, **kwargs: True)
    with FakeTensorMode(), branch_free(), pyro.validation_enabled(False):
        with torch.device("cuda"):
            if layer in ANY_LENGTH:
                network = TextTransformer(
                    WordEmbedding(20, 8), max_length=6, attention=LAYERS[layer], **NETWORK
                )
                x, masks = torch.ones(4, 5, dtype=torch.long), (torch.ones(4, 5, dtype=torch.bool),)
            else:
                network = small_vit(LAYERS[layer], depth=2, dropout=0.1)
                x, masks = torch.randn(4, 1, 4, 4), ()
            model, y = Classifier(network, num_data=10), torch.ones(4, dtype=torch.long)
            guide = guides.for_model(model)
        options = TrainOptions(precision="bf16-mixed", vectorize=True)
        objective = Objective(model, guide, options=options, first_batch=lambda: (x, y, *masks))
        loss = objective((x, y, *masks), StepCoefficients(0.5, 0.5, 0.5))
    assert loss.device.type == "cuda"
