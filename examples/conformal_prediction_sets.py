"""Predict sets of classes that hold the true one with probability 90 %, and abstain where the error
rate matters."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

from probattn import KEPSVGPAttention, guides
from probattn.inference import PosteriorPredictive, RiskThreshold, TrainOptions, conformal, fit
from probattn.models import Classifier, ViT, last

torch.manual_seed(0)
images, labels = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16 + 0.25 * torch.randn(
    len(labels), 1, 8, 8
)  # noisy: harder digits
train_set, calibration_set, test_set = random_split(TensorDataset(images, labels), [800, 500, 497])
train = DataLoader(train_set, batch_size=64, shuffle=True)
calibration, test = (
    DataLoader(calibration_set, batch_size=500),
    DataLoader(test_set, batch_size=500),
)

attention = last(1, KEPSVGPAttention.partial(rank=4, tokens=16), of=2)
network = ViT(
    image_size=8,
    patch_size=2,
    channels=1,
    classes=10,
    dim=32,
    depth=2,
    heads=4,
    mlp_dim=64,
    attention=attention,
)
model = Classifier(network, num_data=len(train_set))
guide = guides.for_model(model)
fit(model, guide, train, options=TrainOptions(epochs=10, lr=4e-3), progress=False)

predictor = PosteriorPredictive(model, guide, num_samples=20)
prediction = predictor.predict(test)

sets = conformal.LAC(predictor, alpha=0.1).fit(
    calibration
)  # calibrated on data that nothing was fitted to
values = sets.evaluate(prediction.probs, prediction.labels)
print(", ".join(f"{name} {value:.3f}" for name, value in values.items()))
for label, members in zip(
    prediction.labels[:6].tolist(), sets.sets(prediction.probs[:6]), strict=True
):
    print(f"  digit {label}: set {members.nonzero().flatten().tolist()}")

rule = RiskThreshold(predictor, target=0.1).fit(
    calibration
)  # answer only where at most 10 % of answers are wrong
accepted = rule.accepts(prediction.probs)
wrong = (prediction.predicted != prediction.labels).float()
share = accepted.float().mean()
print(
    f"error rate {wrong.mean():.1%} on all test images, {wrong[accepted].mean():.1%} on the "
    f"{share:.0%} accepted"
)
