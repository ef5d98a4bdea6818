"""Folders of evaluated runs, without training or predicting anything."""

from probattn.experiments.config import presets
from probattn.experiments.data.sealed_files import write_json
from probattn.experiments.evaluation import prediction_store
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.evaluation.provenance import state_of
from probattn.experiments.runs.folder import claim


def run(folder, name, *changes, seed=0, **evaluation):
    """Create the folder of a run of a preset, with the metrics.json of an evaluation if there is one."""
    settings = presets.preset(name).with_changes([f"train.seed={seed}", *changes])
    with claim(folder, settings, name=name, device="cpu", data={}, resume=False):
        if evaluation:
            write_metrics(folder, **evaluation)
    return folder


def write_metrics(folder, *, methods, data=(), versions=(), best_epoch=1, epochs_done=None, **options):
    """Write the metrics.json of an evaluation, by default with 10 samples of seed 0 by a library of version 1.

    ``methods`` are scores by method, ``data`` digests of test sets, ``options`` options of the evaluation.
    """
    chosen = {"by": list(methods)[1:], "shift": False, "corruptions": [], "severities": [], "ood": [], "root": None}
    chosen |= {"num_samples": 10, "seed": 0, **options}
    origin = {
        **({"weights": ""} | state_of(folder)),
        "data": dict.fromkeys(("train", "valid", "test"), "digest") | dict(data),
        "versions": {"probattn": "1"} | dict(versions),
        "num_samples": chosen["num_samples"],
        "seed": chosen["seed"],
    }
    content = {
        "options": chosen,
        "shift_source": "",
        "provenance": {method: {"method": method, **origin} for method in methods},
        "methods": methods,
        "best_epoch": best_epoch,
        "epochs_done": epochs_done,
        "sizes": {"test": 360},
    }
    write_json(folder / "metrics.json", content)


def store(folder, name, prediction):
    """Store a prediction of the posterior predictive of an evaluated run."""
    provenance = read_evaluated_run(folder).provenance["posterior"]
    prediction_store.load_or_predict(folder, [name], provenance, lambda _: prediction)


def scored(accuracy):
    """Return the scores of a method that was evaluated on the test part alone."""
    return {"test": {"accuracy": accuracy}}
