"""CoLA by three fine-tuned MiniLM with softmax attention, and cascades: the other members of an
ensemble, or the other samples of a posterior, for the sentences with the least confidence alone.

Divisions, settings and arguments are those of :mod:`docs.studies.minilm`, and the first member is
its network. A second call continues::

    python -m docs.studies.minilm_cascades DATA ENCODER --out experiments/results/minilm-cola.csv
"""

import argparse
import itertools
from pathlib import Path

import torch

from docs.studies.kept_results import KeptResults, with_scaling
from docs.studies.minilm import TASKS, FrozenBlocks, Split, train
from probattn.inference import Ensemble, PosteriorPredictive, Predictor

TASK = TASKS["cola"]
MEMBERS = 3
SHARE = 0.3
"""Share of the sentences that all members or samples predict."""


def ensembles(split: Split, seed: int) -> tuple[Predictor, Predictor]:
    """Train the members, and return their ensemble and its cascade."""
    members = [train("softmax", split, seed=seed + 100 * member) for member in range(MEMBERS)]
    return Ensemble(members), Ensemble(members, refine=SHARE)


def posteriors(split: Split, seed: int) -> tuple[Predictor, Predictor]:
    """Train softmax plus GP, and return its posterior predictive and its cascade."""
    whole = train("softmax plus GP", split, seed=seed)
    samples = whole.num_samples
    cascade = PosteriorPredictive(whole.model, whole.guide, num_samples=samples, refine=SHARE)
    return whole, cascade


RUNS = {f"softmax, ensemble of {MEMBERS}": ensembles, "softmax plus GP": posteriors}
"""Name of a run → what trains it."""


def add(results: KeptResults, run: str, predictor: Predictor, split: Split, seed: int) -> None:
    """Add the predictions to the results, unless they have them."""
    if (run, seed) in results.done:
        return
    torch.manual_seed(seed)
    plain = {part: predictor.predict(split.batches(part)) for part in split.sets if part != "train"}
    results.add(run, seed, with_scaling(plain), split.sets["test"].keys)
    print(f"{run}, seed {seed}", flush=True)


def main() -> None:
    """Train what the results lack, and write them after each network or ensemble."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    texts = TASK.read(arguments.data)
    torch.manual_seed(0)
    other = TASK.other(arguments.data)
    encoder = FrozenBlocks(arguments.encoder, TASK)
    results = KeptResults(arguments.out)
    for (name, trained), seed in itertools.product(RUNS.items(), arguments.seeds):
        run = f"minilm-cola/{name}"
        refined = f"{run}, refine={SHARE}"
        if (refined, seed) in results.done:
            continue
        split = Split(encoder, texts, other, seed=seed)
        whole, cascade = trained(split, seed)
        add(results, run, whole, split, seed)
        add(results, refined, cascade, split, seed)


if __name__ == "__main__":
    main()
