"""Predict a number with an interval: from the posterior predictive, and calibrated on held-out
data."""

import torch
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, conformal, fit, metrics, predict
from probattn.models import Supervised, TabularTransformer, likelihoods

x, y = (torch.tensor(each).float() for each in load_diabetes(return_X_y=True))
x, y = x / x.std(0), y.unsqueeze(-1)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train_set, calibration_set, test_set = (
    TensorDataset(x[i], y[i]) for i in order.split([240, 100, 102])
)
train = DataLoader(train_set, batch_size=40, shuffle=True)
calibration, test = (
    DataLoader(calibration_set, batch_size=100),
    DataLoader(test_set, batch_size=102),
)

torch.manual_seed(0)
labels = train_set.tensors[1]
network = TabularTransformer(
    [None] * x.shape[1],  # ten columns of numbers; for a column of categories their number
    outputs=1,
    dim=16,
    depth=1,
    heads=2,
    mlp_dim=32,
    attention=KEPSVGPAttention.partial(rank=4, merge="add"),
    units=(labels.mean().item(), labels.std().item()),  # outputs in the units of the labels
)
model = Supervised(network, likelihoods.Gaussian(), num_data=len(train_set))
guide = guides.for_model(model)
fit(model, guide, train, options=TrainOptions(epochs=30, lr=5e-3), progress=False)

prediction = predict(model, guide, test, num_samples=50)
results = metrics.evaluate(prediction)
print(
    f"RMSE {results['rmse']:.1f}, CRPS {results['crps']:.1f}, both in the units of the labels "
    "(disease progression)"
)
low, high = prediction.quantiles([0.05, 0.95])
inside, width = (
    ((low <= prediction.labels) & (prediction.labels <= high)).float().mean(),
    (high - low).mean(),
)
print(
    f"90 % intervals of the posterior predictive hold {inside:.0%} of the test labels, mean width "
    f"{width:.0f}"
)

calibrated = conformal.CQR(alpha=0.1).fit_prediction(
    predict(model, guide, calibration, num_samples=50)
)
values = calibrated.evaluate(prediction, prediction.labels)
print(
    f"after conformal calibration they hold {values['coverage']:.0%}, mean width "
    f"{values['width']:.0f}"
)
