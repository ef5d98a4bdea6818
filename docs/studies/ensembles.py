"""Ensembles of three networks with softmax attention on the splits of *When does it help?*.

The settings are those of the study of the same splits, and the first member is its network. The
temperature is fitted to the ensemble's mean on validation data. A second call continues::

    python -m docs.studies.ensembles digits --seeds 20 --out experiments/results/ensembles.csv

CIFAR-10 takes its data from a folder: ``--data DATA``.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from docs.studies.kept_results import KeptResults, with_scaling
from probattn.experiments.config.presets import preset
from probattn.experiments.runs.load import TrainedRun, open_run
from probattn.experiments.runs.train import train
from probattn.inference import Ensemble, PosteriorPredictive

MEMBERS = 3
OF_IMAGES = ("network.standardise=true", "network.dropout=0.2")


@dataclass(frozen=True)
class Task:
    """Settings of the members of an ensemble.

    Args:
        preset: with softmax attention.
        changes: of its settings.
        epochs: of a member; None takes the preset's.
    """

    preset: str
    changes: tuple[str, ...]
    epochs: int | None = None


TASKS = {
    "digits": Task("digits/softmax", (*OF_IMAGES, "train.lr=0.003")),
    "mnist": Task(
        "digits/softmax",
        (
            *OF_IMAGES,
            "train.lr=0.002",
            "data.name=docs.studies.mnist:load",
            "network.patch_size=4",
        ),
        epochs=30,
    ),
    "cifar10": Task(
        "kep-svgp/cifar10-softmax",
        (
            "network.dim=96",
            "network.depth=3",
            "network.heads=4",
            "network.mlp_dim=192",
            "data.limit=10000",
            "train.warmup_epochs=3",
        ),
        epochs=30,
    ),
}


def trained(
    task: Task, *, split: int, member: int, folder: Path, data: Path | None = None
) -> TrainedRun:
    """Train a member in a folder, or find it there, and open it."""
    seeds = (f"data.seed={split}", f"train.seed={split + 100 * member}")
    settings = preset(task.preset).with_changes([*task.changes, *seeds], epochs=task.epochs)
    settings, root = settings.with_data(data)
    train(settings, folder, name=task.preset, root=root, resume=True, progress=False)
    return open_run(folder, root=root, trust_code=settings.names())


def main() -> None:
    """Train what the results lack, and write them after each ensemble."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--data", type=Path, help="folder of the data sets, for cifar10")
    parser.add_argument("--runs", type=Path, default=Path("runs/ensembles"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = KeptResults(arguments.out)
    name = f"{arguments.task}/softmax, ensemble of {MEMBERS}"
    for split in range(arguments.seeds):
        if (name, split) in results.done:
            continue
        folder = arguments.runs / arguments.task / f"split-{split}"
        runs = []
        for member in range(MEMBERS):
            runs.append(
                trained(
                    TASKS[arguments.task],
                    split=split,
                    member=member,
                    folder=folder / f"member-{member}",
                    data=arguments.data,
                )
            )
        ensemble = Ensemble(PosteriorPredictive(run.model, run.guide) for run in runs)
        first = runs[0]
        parts = {"valid": first.dataset.valid, "test": first.dataset.test}
        mean = {part: ensemble.predict(first.batches(examples)) for part, examples in parts.items()}
        results.add(name, split, with_scaling(mean), first.dataset.test.keys)
        print(f"{name}, split {split}", flush=True)


if __name__ == "__main__":
    main()
