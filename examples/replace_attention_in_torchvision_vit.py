"""Replace the last attention layer of torchvision's vision transformer, and train only the new
layer and the head.

With pretrained weights: ``torchvision.models.vit_b_16(weights="DEFAULT")`` in place of the network
below.
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import VisionTransformer

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import TrainOptions, fit, metrics, predict
from probattn.models import Classifier, replace_attention

torch.manual_seed(0)
images, labels = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
order = torch.randperm(len(labels))  # the file is grouped, apparently by writer: shuffle
images = (images[order].float().reshape(-1, 1, 8, 8) / 16).expand(-1, 3, -1, -1)
labels = labels[order]
train_set = TensorDataset(images[:1200], labels[:1200])
train, test = DataLoader(train_set, batch_size=64, shuffle=True), (images[1200:], labels[1200:])

# A network of somebody else, trained in plain PyTorch.
vit = VisionTransformer(8, 2, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10)
optimiser = torch.optim.Adam(vit.parameters(), lr=3e-3)
for _ in range(6):
    for x, y in train:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(vit(x), y).backward()
        optimiser.step()
vit.eval()

# With softmax attention the converted network computes what it did before.
same = replace_attention(vit, attention=SoftmaxAttention).eval()
difference = (same(test[0][:8]) - vit(test[0][:8])).abs().max().item()
print(
    "largest difference of a logit after replacing attention by softmax attention: "
    f"{difference:.1e}"
)

# KEP-SVGP around the trained attention: u = 0 is the old network, the Gaussian process models what
# it does not know.
kep_svgp = KEPSVGPAttention.partial(rank=4, mean="softmax")
network = replace_attention(vit, attention=kep_svgp, layers="last", freeze_rest=True)
model = Classifier(network, num_data=len(train_set))
guide = guides.for_model(model)
fit(model, guide, train, options=TrainOptions(epochs=3, lr=1e-3), progress=False)

prediction = predict(model, guide, [test], num_samples=10)
with torch.no_grad():
    before = (vit(test[0]).argmax(-1) == test[1]).float().mean().item()
results = metrics.evaluate(prediction)
print(
    f"accuracy {before:.1%} before, {results['accuracy']:.1%} after; NLL {results['nll']:.3f} nats"
)
