"""Predict the mean star rating of 16 film reviews, about 3,800 words, with an interval: where
linear cost pays.

The reviews are those of IMDB, whose ratings are in their files' names; ``DATA`` holds ``aclImdb``.
Documents of the training and the validation part are of IMDB's training part, those of the test
part of its test part. Example::

    python docs/studies/long_documents.py DATA --layer anchored --tokens 4096 --epochs 4 \\
        --seed 0 --out runs/anchored-0
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch

from probattn import AnchoredAttention, KEPSVGPAttention, SoftmaxAttention, guides
from probattn.experiments.data.batch_loader import TextLoader
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.runs.build import ScaledHeteroscedastic
from probattn.inference import TrainOptions, fit, metrics, predict
from probattn.inference.metrics import regression
from probattn.models import Supervised, TextTransformer

REVIEWS = 16  # of a document
VALID = 300  # documents


def documents(folder: Path, *, seed: int) -> list[tuple[str, float]]:
    """Return documents of 16 different reviews with their mean rating; how many are positive is
    uniform on 0 to 16."""
    generator = random.Random(seed)
    files = {kind: sorted((folder / kind).glob("*.txt")) for kind in ("neg", "pos")}
    for paths in files.values():
        generator.shuffle(paths)
    made = []
    while all(len(paths) >= REVIEWS for paths in files.values()):
        positive = generator.randint(0, REVIEWS)
        chosen = [files["pos"].pop() for _ in range(positive)] + [
            files["neg"].pop() for _ in range(REVIEWS - positive)
        ]
        generator.shuffle(chosen)
        texts = [path.read_text(encoding="utf-8").replace("<br />", " ") for path in chosen]
        ratings = [int(path.stem.split("_")[1]) for path in chosen]
        made.append(("\n".join(texts), sum(ratings) / REVIEWS))
    return made


def _arguments() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--layer", choices=("softmax", "kep-svgp", "anchored"), default="anchored")
    parser.add_argument("--anchors", type=int, default=16)
    parser.add_argument(
        "--tokens", type=int, default=4096, help="tokens that are read of each document"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--limit", type=int, default=None, help="documents for training; all by default"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Train one layer and write its scores."""
    options = _arguments()

    train, test = (documents(options.data / "aclImdb" / part, seed=0) for part in ("train", "test"))
    valid, train = train[:VALID], train[VALID:][: options.limit]
    tokenizer = WordTokenizer.fit(
        [text for text, _ in train], max_length=options.tokens, max_words=20_000
    )
    generator = torch.Generator().manual_seed(options.seed)
    loaders = []
    for part in (train, valid, test):
        labels = torch.tensor([[rating] for _, rating in part])
        encoded = tokenizer.encode_batch([text for text, _ in part])
        order = {"shuffle": True, "generator": generator} if part is train else {"by_length": True}
        loaders.append(TextLoader(encoded, labels, batch_size=16, **order))

    torch.manual_seed(options.seed)
    attention = {
        "softmax": SoftmaxAttention,
        "kep-svgp": KEPSVGPAttention.partial(rank=10, merge="add"),
        "anchored": AnchoredAttention.partial(anchors=options.anchors, noise=1.0),
    }[options.layer]
    sizes = {
        "dim": 128,
        "depth": 1,
        "heads": 8,
        "mlp_dim": 128,
        "dropout": 0.1,
        "max_length": options.tokens,
    }
    network = TextTransformer(tokenizer.embedding(128), classes=2, attention=attention, **sizes)
    ratings = torch.tensor([rating for _, rating in train])
    likelihood = ScaledHeteroscedastic(mean=ratings.mean().item(), scale=ratings.std().item())
    model = Supervised(network, likelihood, num_data=len(train))
    guide = guides.for_model(model)
    settings = TrainOptions(
        epochs=options.epochs,
        lr=options.lr,
        guide_lr=0.03,
        warmup_epochs=0.5,
        seed=options.seed,
        monitor="crps",
        # Of a validation, which would otherwise take longer than KEP-SVGP's training.
        num_samples=2,
    )
    history = fit(model, guide, *loaders[:2], options=settings, out=options.out, resume=True)
    started = time.perf_counter()
    prediction = predict(model, guide, loaders[2], num_samples=5, seed=0)
    seconds = time.perf_counter() - started
    low, high = regression.interval(prediction, 0.9)
    scores = metrics.evaluate(prediction) | {
        "coverage_90": ((low <= prediction.labels) & (prediction.labels <= high))
        .double()
        .mean()
        .item(),
        "valid_crps": history.best_value,
        "best_epoch": history.best_epoch,
        "seconds_train": sum(epoch["seconds"] for epoch in history.epochs),
        "seconds_predict": seconds,
    }
    chosen = {
        name: getattr(options, name)
        for name in ("layer", "anchors", "tokens", "epochs", "limit", "lr", "seed")
    }
    (options.out / "scores.json").write_text(json.dumps(chosen | scores, indent=2))
    print(json.dumps(chosen | scores, indent=2))


if __name__ == "__main__":
    main()
