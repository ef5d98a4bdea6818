"""Cost of choosing the epoch and fitting temperature and decisions on one part.

A small network is trained on digits and keeps its logits after each epoch. In each division of the
other examples, one half of the calibration examples (or all of them) chooses the epoch and the
temperature, and the other half (or the same) fits sets and abstention; the rest tests them.

    python docs/studies/shared_calibration.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from probattn.inference import Logits, RiskThreshold, TemperatureScaling, conformal

EPOCHS = 30
TRAIN = 500
CALIBRATION = 300
DIVISIONS = 400
LEVEL = 0.9
RISK = 0.05


def epoch_logits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits ``(epochs, n, 10)`` of the examples that are not trained on, and their
    labels."""
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = pixels.float() / 16
    train, rest = torch.randperm(len(images)).split([TRAIN, len(images) - TRAIN])
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.003)
    logits = []
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(TRAIN)].split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
        logits.append(network(images[rest]).detach())
    return torch.stack(logits), labels[rest]


def main() -> None:
    """Print mean coverage and the share of divisions with a larger risk, both with standard
    errors."""
    torch.manual_seed(0)
    logits, labels = epoch_logits()
    results: dict[str, list[list[float]]] = {"one part": [], "two parts": []}
    for _ in range(DIVISIONS):
        chosen, test = torch.randperm(len(labels)).split([CALIBRATION, len(labels) - CALIBRATION])
        halves = chosen.split(CALIBRATION // 2)
        for name, (first, second) in (("one part", (chosen, chosen)), ("two parts", halves)):
            losses = [nn.functional.cross_entropy(epoch[first], labels[first]) for epoch in logits]
            best = logits[int(torch.stack(losses).argmin())]
            scaled = TemperatureScaling(Logits(nn.Identity())).fit([(best[first], labels[first])])
            held_out = [(best[second], labels[second])]
            sets = conformal.LAC(scaled, alpha=1 - LEVEL).fit(held_out)
            threshold = RiskThreshold(scaled, target=RISK).fit(held_out)
            answers = scaled.predict([(best[test], labels[test])])
            coverage = sets.evaluate(answers.probs, answers.labels)["coverage"]
            abstention = threshold.evaluate(answers.probs, answers.labels)
            results[name].append([coverage, abstention["coverage"], abstention["risk"] > RISK])
    for name, rows in results.items():
        values = torch.tensor(rows, dtype=torch.float64)
        errors = values.std(0) / DIVISIONS**0.5
        titles = ("coverage of sets", "answered", "risk above the target")
        for title, mean, error in zip(titles, values.mean(0), errors, strict=True):
            print(f"{name}: {title} {100 * mean:.2f} % ± {100 * error:.2f}")


if __name__ == "__main__":
    main()
