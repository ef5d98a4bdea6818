"""Give an attention layer another prior and another guide: the library's, and a mixture prior of
your own."""

import pyro.distributions as dist
import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides, priors
from probattn.inference import TrainOptions, fit, metrics, predict
from probattn.models import Classifier, TabularTransformer


def spike_and_slab(scale):
    """Prior of your own: mostly narrow around 0, sometimes wide; a function of the layer's scale
    Λ."""
    weights = torch.tensor([0.8, 0.2]).expand(*scale.shape, 2)
    scales = torch.stack([0.1 * scale, 2 * scale], dim=-1)
    mixture = dist.MixtureSameFamily(
        dist.Categorical(weights), dist.Normal(torch.zeros_like(scales), scales)
    )
    return mixture.to_event(scale.dim())


x, y = load_wine(return_X_y=True)
x, y = torch.tensor(StandardScaler().fit_transform(x)).float(), torch.tensor(y)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train_set, test_set = (TensorDataset(x[part], y[part]) for part in (order[:120], order[120:]))
train, test = (
    DataLoader(train_set, batch_size=30, shuffle=True),
    DataLoader(test_set, batch_size=58),
)

results = {}
for name, prior, family in (
    ("normal prior, full Gaussian guide", "normal", "full"),
    ("Student-t prior, diagonal Gaussian guide", priors.student_t(df=4), "diagonal"),
    ("horseshoe prior, low-rank Gaussian guide", priors.Horseshoe(), "lowrank"),
    ("spike and slab, diagonal Gaussian guide", spike_and_slab, "diagonal"),
):
    torch.manual_seed(0)
    attention = KEPSVGPAttention.partial(rank=4, merge="add", prior=prior)
    network = TabularTransformer(
        [None] * 13, outputs=3, dim=16, depth=1, heads=2, mlp_dim=32, attention=attention
    )
    model = Classifier(network, num_data=len(train_set))
    guide = guides.for_model(model, family)
    fit(model, guide, train, options=TrainOptions(epochs=15, lr=1e-2), progress=False)
    results[name] = metrics.evaluate(predict(model, guide, test, num_samples=20))
    sites = ", ".join(guide.sites).replace("network.blocks.0.attention.", "")
    print(
        f"{name:42} NLL {results[name]['nll']:.3f} nats, accuracy {results[name]['accuracy']:.1%}; "
        f"sites: {sites}"
    )
