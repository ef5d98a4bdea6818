"""Ensembles of three networks with softmax attention on the splits of *When does it help?*.

The settings are those of the study of the same splits, and the first member is its network. The
temperature is fitted to the ensemble's mean on validation data. A second call continues::

    python -m docs.studies.ensembles digits --seeds 20 --out experiments/results/ensembles.csv
"""

import argparse
from pathlib import Path

from docs.studies.kept_results import KeptResults, with_scaling
from probattn.experiments.config.presets import preset
from probattn.experiments.runs.load import open_run
from probattn.experiments.runs.train import train
from probattn.inference import PosteriorPredictive, Prediction
from probattn.inference.methods.ensemble import mix

MNIST = "data.name=docs.studies.mnist:load"
CHANGES = {
    "digits": ["train.lr=0.003"],
    "mnist": [MNIST, "network.patch_size=4", "train.lr=0.002"],
}
"""Task → its settings."""
EPOCHS = {"digits": None, "mnist": 30}
"""Task → epochs; None takes the preset's."""
COMMON = ["network.standardise=true", "network.dropout=0.2"]
MEMBERS = 3


def predictions(task: str, *, split: int, member: int, runs: Path) -> dict[str, Prediction]:
    """Train a member, or find it, and return its predictions of ``valid`` and ``test``."""
    numbers = [f"data.seed={split}", f"train.seed={split + 100 * member}"]
    changes = [*CHANGES[task], *COMMON, *numbers]
    settings = preset("digits/softmax").with_changes(changes, epochs=EPOCHS[task])
    folder = runs / task / f"split-{split}" / f"member-{member}"
    names = settings.names()
    train(settings, folder, name="digits/softmax", resume=True, progress=False)
    run = open_run(folder, trust_code=names)
    predictor = PosteriorPredictive(run.model, run.guide, num_samples=1)
    parts = {"valid": run.dataset.valid, "test": run.dataset.test}
    return {name: predictor.predict(run.batches(part)) for name, part in parts.items()}


def main() -> None:
    """Train what the results lack, and write them after each ensemble."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=CHANGES)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--runs", type=Path, default=Path("runs/ensembles"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = KeptResults(arguments.out)
    for split in range(arguments.seeds):
        run = f"{arguments.task}/softmax, ensemble of {MEMBERS}"
        if (run, split) in results.done:
            continue
        members = []
        for member in range(MEMBERS):
            options = {"split": split, "member": member, "runs": arguments.runs}
            members.append(predictions(arguments.task, **options))
        mean = {name: mix([one[name] for one in members]) for name in members[0]}
        first = arguments.runs / arguments.task / f"split-{split}" / "member-0"
        keys = open_run(first, trust_code=True).dataset.test.keys
        results.add(run, split, with_scaling(mean), keys)
        print(f"{arguments.task}, split {split}", flush=True)


if __name__ == "__main__":
    main()
