"""Serve a calibrated classifier with FastAPI: `uvicorn serve_with_fastapi:app` in this folder.

Needs `pip install fastapi uvicorn`; run as a script, which asks the server itself, also httpx2."""

import tempfile
from pathlib import Path

import torch
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sklearn.datasets import load_digits
from torch import nn

from probattn.inference import Logits, RiskThreshold, TemperatureScaling, conformal, export

PROGRAM = Path(tempfile.gettempdir()) / "served-digits.pt2"


def train() -> None:
    """Write the program; a server would have it from elsewhere."""
    torch.manual_seed(0)
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = (pixels / 16).float().reshape(-1, 8, 8)
    parts = torch.randperm(len(images)).split([900, 400, 497])
    train, valid, held_out = ([(images[part], labels[part])] for part in parts)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        optimiser.zero_grad()
        inputs, targets = train[0]
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimiser.step()
    scaled = TemperatureScaling(Logits(network)).fit(valid)
    threshold = RiskThreshold(scaled, target=0.05).fit(held_out)
    sets = conformal.LAC(threshold, alpha=0.1).fit(held_out)
    export(PROGRAM, sets, images[:2])


train()
program = torch.export.load(PROGRAM).module()  # once, when the server starts
app = FastAPI()


class Request(BaseModel):
    """Images with values from 0 to 1."""

    images: list[list[list[float]]] = Field(min_length=1, max_length=256)


class Answer(BaseModel):
    """Answer to one image; unless it is accepted, a person answers instead."""

    digit: int
    probability: float
    accepted: bool
    set: list[int]


@app.post("/predict")
def predict(request: Request) -> list[Answer]:
    """Answer images; `def` without `async` runs in a pool of threads, which programs allow."""
    sides = {len(image) for image in request.images}
    sides |= {len(row) for image in request.images for row in image}
    if sides != {8}:
        raise HTTPException(422, "images must be 8 × 8")
    images = torch.tensor(request.images)
    outputs = program(images)
    return [
        Answer(
            digit=int(probs.argmax()),
            probability=float(probs.max()),
            accepted=bool(accepted),
            set=members.nonzero().flatten().tolist(),
        )
        for probs, accepted, members in zip(
            outputs["probs"], outputs["accepted"], outputs["set"], strict=True
        )
    ]


if __name__ == "__main__":
    from fastapi.testclient import TestClient

    client = TestClient(app)
    digits = torch.tensor(load_digits().images[:5] / 16).float()
    reply = client.post("/predict", json={"images": digits.tolist()})
    answers = reply.json()
    refused = client.post("/predict", json={"images": digits[:, :4].tolist()}).status_code
    for answer in answers:
        print(answer)
