"""CoLA by a pretrained MiniLM whose lower three blocks are frozen, on a new split for each seed,
with other attention in its last block, beside a bag of words.

The states after the frozen blocks are computed once. Each network is trained for four epochs; its
epoch and temperature are chosen on validation data. Unknown inputs are test sentences with their
words in random order, and sentences of film reviews. ``DATA`` holds ``cola_public`` and
``aclImdb``, ``ENCODER`` is a folder or a name of the Hugging Face hub, such as
``sentence-transformers/all-MiniLM-L6-v2``. A second call continues::

    python -m docs.studies.minilm DATA ENCODER --seeds 10 --out experiments/results/minilm-cola.csv
"""

import argparse
import copy
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

from docs.studies.kept_results import KeptResults, with_scaling
from probattn import KEPSVGPAttention, families, guides
from probattn.experiments.data.text.corpora import read
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.evaluation.baselines import fit_baseline
from probattn.inference import PosteriorPredictive, TrainOptions, fit, with_gp_readout
from probattn.models import Classifier, PretrainedClassifier

CLASSES = ("unacceptable", "acceptable")
SIZES = {"valid": 1000, "test": 1500}
"""Sentences of these parts; the others are trained on."""
FROZEN = 3
"""Blocks that are not trained."""
UNKNOWN = 500
"""Sentences of each kind of unknown inputs."""
LONGEST = 30
"""Words of a sentence of a review, at most."""
KEP_SVGP = KEPSVGPAttention.partial(rank=5, merge="add", eta=1.0)
LAYERS = {
    "softmax": ("softmax", 0, None),
    "kep-svgp": (KEP_SVGP, 1, 0.1),
    "softmax plus GP": (partial(KEP_SVGP, mean="softmax", amplitude=1.0), 1, 1.0),
}
"""Name → attention, number of layers that it replaces, and initial scale of its guide relative to
the prior."""
LR_SCALE = {
    "network.encoder.*": 0.2,
    "network.head.*|*att*.layer.*": 1.0,
    "*.query*|*.q_*|*.qkv*": 0.2,
}
"""Factors of the learning rate: a fifth for pretrained weights."""


class States(nn.Module):
    """The embeddings of an encoder that takes the states after its frozen blocks."""

    def forward(self, inputs_embeds: Tensor, **others: object) -> Tensor:
        """Return the states."""
        return inputs_embeds


class FrozenBlocks:
    """Encoder whose lower blocks are computed once, and upper blocks are trained."""

    def __init__(self, encoder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(encoder)
        whole = AutoModel.from_pretrained(encoder, add_pooling_layer=False).eval()
        self.upper = copy.deepcopy(whole)
        self.upper.embeddings = States()
        self.upper.encoder.layer = self.upper.encoder.layer[FROZEN:]
        self.upper.main_input_name = "inputs_embeds"
        self.lower = whole
        self.lower.encoder.layer = whole.encoder.layer[:FROZEN]
        self._states: dict[str, Tensor] = {}

    @torch.no_grad()
    def states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the states ``(tokens, width)`` of each text after the frozen blocks, float16;
        those of a text are computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._states]
        for start in range(0, len(new), 100):
            few = new[start : start + 100]
            batch = self.tokenizer(
                few,
                padding=True,
                truncation=True,
                max_length=64,
                return_tensors="pt",
            )
            hidden = self.lower(**batch).last_hidden_state
            lengths = batch["attention_mask"].sum(1).tolist()
            for text, row, length in zip(few, hidden, lengths, strict=True):
                self._states[text] = row[:length].half()
        return [self._states[text] for text in texts]


def padded(examples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states ``(batch, tokens, width)``, the labels and the mask of examples."""
    states, labels = zip(*examples, strict=True)
    lengths = torch.tensor([len(rows) for rows in states])
    hidden = pad_sequence(list(states), batch_first=True).float()
    mask = torch.arange(hidden.shape[1]) < lengths[:, None]
    return hidden, torch.stack(labels), mask


class Split:
    """One division of the sentences; ``sets`` are the parts and the unknown inputs."""

    def __init__(self, encoder: FrozenBlocks, texts: Texts, reviews: Texts, *, seed: int) -> None:
        parts = texts.divide(
            sizes=tuple(SIZES.values()), classes=len(CLASSES), seed=seed, limit=None
        )
        self.sets = dict(zip(("train", *SIZES), parts, strict=True))
        few = self.sets["test"].select(torch.arange(UNKNOWN))
        self.sets["ood/shuffled"] = shuffled(few, seed=seed)
        self.sets["ood/reviews"] = reviews
        self.encoder = encoder

    def batches(self, name: str, *, size: int = 250, shuffle: bool = False) -> DataLoader:
        """Return batches of a set."""
        part = self.sets[name]
        states = self.encoder.states(part.texts)
        examples = list(zip(states, part.labels, strict=True))
        return DataLoader(examples, batch_size=size, shuffle=shuffle, collate_fn=padded)


def shuffled(part: Texts, *, seed: int) -> Texts:
    """Return sentences with their words in random order."""
    order = random.Random(seed)
    texts = []
    for text in part.texts:
        words = text.split()
        order.shuffle(words)
        texts.append(" ".join(words))
    return Texts(tuple(texts), part.labels)


def sentences(reviews: Texts) -> Texts:
    """Return the beginnings of some reviews, :data:`LONGEST` words at most."""
    chosen = reviews.select(torch.randperm(len(reviews))[:UNKNOWN])
    texts = [" ".join(text.split()[:LONGEST]) for text in chosen.texts]
    return Texts(tuple(texts), chosen.labels)


def train(layer: str, split: Split, *, seed: int) -> PosteriorPredictive:
    """Train a network and return its posterior predictive."""
    torch.manual_seed(seed)
    attention, last, scale = LAYERS[layer]
    network = PretrainedClassifier(split.encoder.upper, classes=2, attention=attention, last=last)
    batches = split.batches("train", size=32, shuffle=True)
    model = Classifier(network, num_data=len(split.sets["train"]))
    family = partial(families.Full, init_scale=scale) if last else "full"
    guide = guides.for_model(model, family)
    options = TrainOptions(
        epochs=4,
        lr=1e-3,
        min_lr=0.0,
        schedule="linear",
        warmup_epochs=0.4,
        lr_scale=LR_SCALE,
        weight_decay=0.01,
        clip_norm=1.0,
        monitor="nll",
        guide_lr=0.03 if last else None,
        seed=seed,
    )
    fit(model, guide, batches, split.batches("valid"), options=options, progress=False)
    return PosteriorPredictive(model, guide, num_samples=10)


def add_network(results: KeptResults, layer: str, split: Split, *, seed: int) -> None:
    """Train a network, and add its predictions to the results; of softmax attention those by GPs on
    its features, too."""
    predictor = train(layer, split, seed=seed)
    loaders = {name: split.batches(name) for name in split.sets if name != "train"}
    torch.manual_seed(seed)
    plain = {name: predictor.predict(loader) for name, loader in loaders.items()}
    methods = with_scaling(plain)
    if layer == "softmax":
        readout = with_gp_readout(predictor, split.batches("train"), loaders["valid"])
        methods["anchored"] = {name: readout.predict(batch) for name, batch in loaders.items()}
    results.add(f"minilm-cola/{layer}", seed, methods, split.sets["test"].keys)


def add_baseline(results: KeptResults, split: Split, *, seed: int) -> None:
    """Add the predictions by a bag of words."""
    sets = dict(split.sets)
    dataset = TextDataset(
        name="cola",
        classes=CLASSES,
        train=sets.pop("train"),
        valid=sets["valid"],
        test=sets["test"],
        kind=WordTokenizer,
        make=WordTokenizer,
    )
    predict = fit_baseline("tf-idf", dataset)
    words = {name: predict(part) for name, part in sets.items()}
    results.add("minilm-cola/bag of words", seed, {"temperature": words}, sets["test"].keys)


def by_length(split: Split) -> dict[str, float]:
    """Return the AUROC of the number of words as a detector of each kind of unknown inputs."""
    lengths = {
        name: [len(text.split()) for text in part.texts] for name, part in split.sets.items()
    }
    found = {}
    for name in ("ood/shuffled", "ood/reviews"):
        is_unknown = [False] * len(lengths["test"]) + [True] * len(lengths[name])
        found[name] = float(roc_auc_score(is_unknown, lengths["test"] + lengths[name]))
    return found


def main() -> None:
    """Train what the results lack, and write them after each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    in_domain, dev, _ = read("cola", arguments.data)
    texts = Texts(in_domain.texts + dev.texts, torch.cat([in_domain.labels, dev.labels]))
    torch.manual_seed(0)
    reviews = sentences(read("imdb", arguments.data)[0])
    encoder = FrozenBlocks(arguments.encoder)
    results = KeptResults(arguments.out)
    for seed in range(arguments.seeds):
        split = Split(encoder, texts, reviews, seed=seed)
        print(f"seed {seed}, AUROC of the number of words", by_length(split))
        if ("minilm-cola/bag of words", seed) not in results.done:
            add_baseline(results, split, seed=seed)
        for layer in LAYERS:
            if (f"minilm-cola/{layer}", seed) in results.done:
                continue
            add_network(results, layer, split, seed=seed)
            print(f"seed {seed}, {layer}", flush=True)


if __name__ == "__main__":
    main()
