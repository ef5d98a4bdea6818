"""A user's program: `make types` checks with mypy in strict mode that the types of public names
arrive there."""

from typing import assert_type

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import probattn
from probattn import KEPSVGPAttention, guides
from probattn.inference import Prediction, TrainOptions, fit, metrics, predict, psis_khat
from probattn.models import Classifier, ViT, last

assert_type(probattn.__version__, str)
data = TensorDataset(torch.randn(8, 1, 8, 8), torch.zeros(8, dtype=torch.long))
train = DataLoader(data, batch_size=4)
images, labels = data.tensors
layer = KEPSVGPAttention(8, 2, rank=2)
assert_type(layer.forward(torch.randn(1, 4, 8)), Tensor)  # of a call, PyTorch says Any
KEPSVGPAttention.partial(rank="two")  # type: ignore[arg-type]
KEPSVGPAttention.partial(ranks=2)  # type: ignore[call-arg]
network = ViT(
    image_size=8,
    patch_size=4,
    channels=1,
    classes=2,
    dim=8,
    depth=2,
    heads=2,
    mlp_dim=8,
    attention=last(1, KEPSVGPAttention.partial(rank=2), of=2),
)
model = Classifier(network, num_data=8)
guide = guides.for_model(model, family="full")
history = fit(model, guide, train, train, options=TrainOptions(epochs=1))
assert_type(history.best_epoch, int)
prediction = predict(model, guide, images, num_samples=2)
assert_type(prediction, Prediction)
assert_type(prediction.entropy, Tensor)
assert_type(metrics.accuracy(torch.ones(8, 2) / 2, labels), float)
assert_type(psis_khat(model, guide, (images, labels)).ess, float)
