"""Train by Lightning's Trainer: its callbacks, early stopping and checkpoints, with the loss and
schedules of fit.

Needs ``pip install 'probattn[lightning]'``.
"""

import logging
import tempfile
import warnings

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import disable_possible_user_warnings
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, metrics, predict
from probattn.inference.lightning import SVIModule
from probattn.models import Classifier, ViT, last

logging.getLogger("lightning.pytorch").setLevel(
    logging.WARNING
)  # no lines about hardware, no advertisements
disable_possible_user_warnings()  # small data in memory need no workers
# Lightning uses a class that newer versions of PyTorch deprecate
# (Lightning-AI/pytorch-lightning#21326).
warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)

torch.manual_seed(0)
images, labels = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
order = torch.randperm(len(labels))  # the file is grouped, apparently by writer: shuffle
images, labels = images[order].float().reshape(-1, 1, 8, 8) / 16, labels[order]
train = DataLoader(TensorDataset(images[:1200], labels[:1200]), batch_size=64, shuffle=True)
valid = DataLoader(TensorDataset(images[1200:1500], labels[1200:1500]), batch_size=300)
test = DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size=300)

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
model = Classifier(network, num_data=1200)
guide = guides.for_model(model)

module = SVIModule(model, guide, options=TrainOptions(lr=4e-3, kl_anneal_epochs=2))
trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    callbacks=[EarlyStopping("valid/nll", patience=3)],
    gradient_clip_val=1.0,
    default_root_dir=tempfile.mkdtemp(),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, train, valid)

results = metrics.evaluate(predict(model, guide, test, num_samples=20))
print(
    f"{trainer.current_epoch} epochs; test accuracy {results['accuracy']:.1%}, NLL "
    f"{results['nll']:.3f} nats"
)
