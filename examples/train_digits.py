"""Train a vision transformer with KEP-SVGP attention on handwritten digits, and list its most
uncertain predictions."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, fit, metrics, predict
from probattn.models import Classifier, ViT, last

torch.manual_seed(0)
images, labels = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
order = torch.randperm(len(labels))  # the file is grouped, apparently by writer: shuffle
images, labels = images[order].float().reshape(-1, 1, 8, 8) / 16, labels[order]
train = DataLoader(TensorDataset(images[:1100], labels[:1100]), batch_size=64, shuffle=True)
valid = DataLoader(TensorDataset(images[1100:1400], labels[1100:1400]), batch_size=300)
test = DataLoader(TensorDataset(images[1400:], labels[1400:]), batch_size=400)

network = ViT(
    image_size=8,
    patch_size=2,
    channels=1,
    classes=10,
    dim=32,
    depth=2,
    heads=4,
    mlp_dim=64,
    attention=last(
        1, KEPSVGPAttention.partial(rank=4, tokens=16), of=2
    ),  # the first block has softmax attention
)
model = Classifier(network, num_data=1100)
guide = guides.for_model(model)
history = fit(model, guide, train, valid, options=TrainOptions(epochs=12, lr=4e-3), progress=False)
print(f"best epoch {history.best_epoch}: validation NLL {history.best_value:.3f} nats")

prediction = predict(model, guide, test, num_samples=20)
results = metrics.evaluate(prediction)
print(", ".join(f"{name} {results[name]:.3f}" for name in ("accuracy", "nll", "ece", "aurc")))

print("\nmost uncertain test digits (entropy and mutual information in nats)")
for i in prediction.entropy.argsort(descending=True)[:5].tolist():
    print(
        f"number {order[1400 + i]}: is {prediction.labels[i]}, predicted "
        f"{prediction.predicted[i]}, "
        f"entropy {prediction.entropy[i]:.2f}, samples disagree "
        f"{prediction.mutual_information[i]:.3f}"
    )
