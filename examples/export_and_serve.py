"""Export a trained classifier as a program that needs only PyTorch, and answer HTTP requests with
it."""

import json
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, conformal, export, fit, predictor_network
from probattn.models import Classifier, ViT

torch.manual_seed(0)
images, labels = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
order = torch.randperm(len(labels))  # the file is grouped, apparently by writer: shuffle
images, labels = images[order].float().reshape(-1, 1, 8, 8) / 16, labels[order]
train = DataLoader(TensorDataset(images[:1200], labels[:1200]), batch_size=64, shuffle=True)
valid = DataLoader(TensorDataset(images[1200:], labels[1200:]), batch_size=597)

attention = KEPSVGPAttention.partial(rank=4, tokens=16)
network = ViT(
    image_size=8,
    patch_size=2,
    channels=1,
    classes=10,
    dim=32,
    depth=1,
    heads=4,
    mlp_dim=64,
    attention=attention,
)
model = Classifier(network, num_data=1200)
guide = guides.for_model(model)
fit(model, guide, train, options=TrainOptions(epochs=15, lr=4e-3), progress=False)

averaged = predictor_network(model, guide, num_samples=10)  # over ten fixed posterior samples
deployed = conformal.LAC(averaged, alpha=0.1).fit(valid)
path = Path(tempfile.mkdtemp(), "digits.pt2")
export(path, deployed, images[:1])
program = torch.export.load(path).module()  # from here on only PyTorch is needed


class Handler(BaseHTTPRequestHandler):
    """Answer a POST request {"images": …} with probabilities and prediction sets."""

    def do_POST(self):  # noqa: N802 - the name that http.server calls
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = program(torch.tensor(request["images"]))
        body = {"probs": answer["probs"].tolist(), "set": answer["set"].tolist()}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


with HTTPServer(("127.0.0.1", 0), Handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    body = json.dumps({"images": images[1200:1203].tolist()}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}", body) as reply:
        answers = json.load(reply)
    server.shutdown()

for label, probs, members in zip(
    labels[1200:1203].tolist(), answers["probs"], answers["set"], strict=True
):
    digits = [digit for digit, inside in enumerate(members) if inside]
    print(
        f"digit {label}: most probable {probs.index(max(probs))} ({max(probs):.0%}), set {digits}"
    )
