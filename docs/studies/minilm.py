"""CoLA and IMDB by a pretrained MiniLM whose lower three blocks are frozen, on a new split for each
seed, with other attention in its last block, beside a bag of words.

The states after the frozen blocks are computed once. The epoch and the temperature of each network
are chosen on validation data. Unknown inputs are test texts with their words in random order, and
texts of the other corpus. ``DATA`` holds ``cola_public`` and ``aclImdb``, ``ENCODER`` is a folder
or a name of the Hugging Face hub, such as ``sentence-transformers/all-MiniLM-L6-v2``. A second call
continues::

    python -m docs.studies.minilm cola DATA ENCODER --out experiments/results/minilm-cola.csv
"""

import argparse
import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers import AutoModel, AutoTokenizer
from transformers.trainer_pt_utils import LengthGroupedSampler

from docs.studies.kept_results import KeptResults, with_scaling
from probattn import KEPSVGPAttention, families, guides
from probattn.experiments.data.text.corpora import read
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.evaluation.baselines import fit_baseline
from probattn.inference import PosteriorPredictive, TrainOptions, fit, with_gp_readout
from probattn.inference.metrics import nll
from probattn.models import Classifier, PretrainedClassifier

FROZEN = 3
"""Blocks that are not trained."""
UNKNOWN = 500
"""Texts of each kind of unknown inputs."""
LONGEST = 30
"""Words of the beginning of a review, at most."""
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


def cola(data: Path) -> Texts:
    """Return the in-domain sentences of CoLA."""
    train, dev, _ = read("cola", data)
    return Texts(train.texts + dev.texts, torch.cat([train.labels, dev.labels]))


def imdb(data: Path) -> Texts:
    """Return the reviews of IMDB."""
    return read("imdb", data)[0]


def beginnings(data: Path) -> Texts:
    """Return the beginnings of some reviews, :data:`LONGEST` words at most."""
    chosen = some(imdb(data))
    texts = [" ".join(text.split()[:LONGEST]) for text in chosen.texts]
    return Texts(tuple(texts), chosen.labels)


def paragraphs(data: Path) -> Texts:
    """Return texts of CoLA's sentences, each with as many words as some review."""
    chosen = some(imdb(data))
    sentences = cola(data)
    texts = []
    for review in chosen.texts:
        order = torch.randperm(len(sentences))
        words = " ".join(sentences.select(order).texts).split()
        texts.append(" ".join(words[: len(review.split())]))
    return Texts(tuple(texts), chosen.labels)


def some(texts: Texts) -> Texts:
    """Return :data:`UNKNOWN` of the texts, in random order."""
    return texts.select(torch.randperm(len(texts))[:UNKNOWN])


@dataclass(frozen=True)
class Task:
    """A corpus, its division, and settings of training.

    Args:
        read: returns the corpus in a folder.
        sizes: numbers of texts of the training, validation and test part.
        other: returns the unknown inputs, which are of the other corpus.
        other_name: of their set.
        tokens: of a text, at most; of a longer one its last.
        epochs: of training, of which the best is kept.
        batch: texts of a step.
        num_samples: draws of the inducing variables in a prediction.
        bfloat16: whether the blocks run under autocast to bfloat16; the head has float32.
        attention_dropout: rate of the attention that is not replaced.
        grouped: whether a batch has texts of similar length, which need less padding.
    """

    read: Callable[[Path], Texts]
    sizes: tuple[int, int, int]
    other: Callable[[Path], Texts]
    other_name: str
    tokens: int
    epochs: int
    batch: int
    num_samples: int
    bfloat16: bool
    attention_dropout: float
    grouped: bool


TASKS = {
    "cola": Task(
        read=cola,
        sizes=(6_578, 1_000, 1_500),
        other=beginnings,
        other_name="ood/reviews",
        tokens=64,
        epochs=4,
        batch=32,
        num_samples=10,
        bfloat16=False,
        attention_dropout=0.1,
        grouped=False,
    ),
    "imdb": Task(
        read=imdb,
        sizes=(5_000, 1_000, 10_000),
        other=paragraphs,
        other_name="ood/cola",
        tokens=256,
        epochs=2,
        batch=16,
        num_samples=5,
        bfloat16=True,
        attention_dropout=0.0,
        grouped=True,
    ),
}


class States(nn.Module):
    """The embeddings of an encoder that takes the states after its frozen blocks."""

    def forward(self, inputs_embeds: Tensor, **others: object) -> Tensor:
        """Return the states."""
        return inputs_embeds


class UnderAutocast(nn.Module):
    """Blocks of an encoder under autocast to bfloat16."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, *inputs: object, **options: object) -> object:
        """Return what the blocks return."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.blocks(*inputs, **options)


class FrozenBlocks:
    """Encoder whose lower blocks are computed once, and upper blocks are trained."""

    def __init__(self, encoder: str, task: Task) -> None:
        self.task = task
        self.tokenizer = AutoTokenizer.from_pretrained(encoder, truncation_side="left")
        dropout = {"attention_probs_dropout_prob": task.attention_dropout}
        whole = AutoModel.from_pretrained(encoder, add_pooling_layer=False, **dropout).eval()
        self.upper = copy.deepcopy(whole)
        self.upper.embeddings = States()
        self.upper.encoder.layer = self.upper.encoder.layer[FROZEN:]
        self.upper.main_input_name = "inputs_embeds"
        self.lower = whole
        self.lower.encoder.layer = whole.encoder.layer[:FROZEN]
        if task.bfloat16:
            self.upper.encoder = UnderAutocast(self.upper.encoder)
            self.lower.encoder = UnderAutocast(self.lower.encoder)
        self._states: dict[str, Tensor] = {}

    @torch.no_grad()
    def states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the states ``(tokens, width)`` of each text after the frozen blocks, float16;
        those of a text are computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._states]
        new.sort(key=len)
        for start in range(0, len(new), 100):
            few = new[start : start + 100]
            batch = self.tokenizer(
                few,
                padding=True,
                truncation=True,
                max_length=self.task.tokens,
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
    """One division of the texts of a task.

    Args:
        encoder: computes the states.
        texts: the corpus.
        other: the unknown inputs of the other corpus.
        seed: of the division.
    """

    def __init__(self, encoder: FrozenBlocks, texts: Texts, other: Texts, *, seed: int) -> None:
        self.encoder = encoder
        self.task = task = encoder.task
        generator = torch.Generator().manual_seed(seed)
        parts = texts.split(*task.sizes, generator=generator)
        self.sets = dict(zip(("train", "valid", "test"), parts, strict=True))
        few = self.sets["test"].select(torch.arange(UNKNOWN))
        self.sets["ood/shuffled"] = shuffled(few, seed=seed)
        self.sets[task.other_name] = other
        if task.grouped:
            self.sets = {name: in_order_of_length(part) for name, part in self.sets.items()}

    def examples(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """Return the states and the label of each text of a set."""
        part = self.sets[name]
        return list(zip(self.encoder.states(part.texts), part.labels, strict=True))

    def batches(self, name: str) -> DataLoader:
        """Return batches of a set in its order."""
        return DataLoader(self.examples(name), batch_size=250, collate_fn=padded)

    def training_batches(self) -> DataLoader:
        """Return batches of the training set in random order."""
        examples = self.examples("train")
        sampler: Sampler[int] = RandomSampler(examples)
        if self.task.grouped:
            lengths = [len(states) for states, _ in examples]
            sampler = LengthGroupedSampler(self.task.batch, lengths=lengths)
        return DataLoader(examples, batch_size=self.task.batch, sampler=sampler, collate_fn=padded)


def in_order_of_length(texts: Texts) -> Texts:
    """Return the texts, short ones first."""
    lengths = torch.tensor([*map(len, texts.texts)])
    return texts.select(lengths.argsort(stable=True))


def shuffled(part: Texts, *, seed: int) -> Texts:
    """Return the texts with their words in random order."""
    order = random.Random(seed)
    texts = []
    for text in part.texts:
        words = text.split()
        order.shuffle(words)
        texts.append(" ".join(words))
    return Texts(tuple(texts), part.labels)


def train(layer: str, split: Split, *, seed: int) -> PosteriorPredictive:
    """Train a network and return its posterior predictive."""
    torch.manual_seed(seed)
    attention, last, scale = LAYERS[layer]
    network = PretrainedClassifier(split.encoder.upper, classes=2, attention=attention, last=last)
    model = Classifier(network, num_data=len(split.sets["train"]))
    family = partial(families.Full, init_scale=scale) if last else "full"
    guide = guides.for_model(model, family)
    options = TrainOptions(
        epochs=split.task.epochs,
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
    batches, valid = split.training_batches(), split.batches("valid")
    fit(model, guide, batches, valid, options=options, progress=False)
    return PosteriorPredictive(model, guide, num_samples=split.task.num_samples)


def add_network(results: KeptResults, name: str, layer: str, split: Split, *, seed: int) -> None:
    """Train a network, and add its predictions to the results; of softmax attention those by GPs on
    its features, too."""
    predictor = train(layer, split, seed=seed)
    loaders = {part: split.batches(part) for part in split.sets if part != "train"}
    torch.manual_seed(seed)
    plain = {part: predictor.predict(loader) for part, loader in loaders.items()}
    methods = with_scaling(plain)
    valid = methods["temperature"]["valid"]
    print(f"{name}, seed {seed}: validation NLL {nll(valid.probs, valid.labels):.4f}", flush=True)
    if layer == "softmax":
        readout = with_gp_readout(predictor, split.batches("train"), loaders["valid"])
        methods["anchored"] = {part: readout.predict(batch) for part, batch in loaders.items()}
    results.add(name, seed, methods, split.sets["test"].keys)


def add_baseline(results: KeptResults, name: str, split: Split, *, seed: int) -> None:
    """Add the predictions by a bag of words."""
    sets = dict(split.sets)
    dataset = TextDataset(
        name=name,
        classes=("0", "1"),
        train=sets.pop("train"),
        valid=sets["valid"],
        test=sets["test"],
        kind=WordTokenizer,
        make=WordTokenizer,
    )
    predict = fit_baseline("tf-idf", dataset)
    words = {part: predict(texts) for part, texts in sets.items()}
    results.add(name, seed, {"temperature": words}, sets["test"].keys)


def by_length(split: Split) -> dict[str, float]:
    """Return the AUROC of the number of words as a detector of each kind of unknown inputs."""
    lengths = {
        name: [len(text.split()) for text in part.texts] for name, part in split.sets.items()
    }
    found = {}
    for name in ("ood/shuffled", split.task.other_name):
        is_unknown = [False] * len(lengths["test"]) + [True] * len(lengths[name])
        found[name] = float(roc_auc_score(is_unknown, lengths["test"] + lengths[name]))
    return found


def main() -> None:
    """Train what the results lack, and write them after each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=[*LAYERS])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    texts = task.read(arguments.data)
    torch.manual_seed(0)
    other = task.other(arguments.data)
    encoder = FrozenBlocks(arguments.encoder, task)
    results = KeptResults(arguments.out)
    for seed in arguments.seeds:
        split = Split(encoder, texts, other, seed=seed)
        print(f"seed {seed}, AUROC of the number of words", by_length(split))
        name = f"minilm-{arguments.task}/bag of words"
        if (name, seed) not in results.done:
            add_baseline(results, name, split, seed=seed)
        for layer in arguments.layers:
            name = f"minilm-{arguments.task}/{layer}"
            if (name, seed) not in results.done:
                add_network(results, name, layer, split, seed=seed)


if __name__ == "__main__":
    main()
