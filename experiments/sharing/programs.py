"""Export of a trained run to a program of PyTorch that takes unprocessed data."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from probattn.experiments.data.dataset import PREPROCESSING
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.evaluation.calibration import CALIBRATION, Calibration
from probattn.experiments.runs.folder import environment
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import Prediction, export, mean_network, predictor_network
from probattn.inference.io.outputs import check_outputs

# File with the metadata inside a program.
METADATA = "probattn.json"


class Calibrated(nn.Module):
    """Network of classes with calibrated outputs: ``probs``, ``entropy``, and also ``set`` and
    ``accepted``.

    ``mutual_information`` stays that of the samples; ``energy`` and ``expected_entropy`` are left
    out.

    Args:
        network: returns ``probs (batch, classes)`` and other outputs by name.
        calibration: of the run.
        sets: kind of the conformal sets: ``plain``, ``by-class``, ``aps`` or ``raps``.
    """

    def __init__(self, network: nn.Module, calibration: Calibration, *, sets: str) -> None:
        super().__init__()
        self.network = network
        self.calibration = calibration
        self.sets = sets

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``set``, bool ``(batch, classes)``, ``accepted``, bool ``(batch,)``, and the other
        outputs."""
        outputs = self.network(x) if mask is None else self.network(x, mask)
        scaled = self.calibration.apply(Prediction(probs=outputs["probs"]))
        probs = scaled.require("probs")
        answers = {"probs": probs, "entropy": scaled.entropy}
        if "mutual_information" in outputs:
            answers["mutual_information"] = outputs["mutual_information"]
        answers["set"] = self.calibration.sets(probs, kind=self.sets)
        answers["accepted"] = self.calibration.accepts(probs)
        return answers


def export_program(
    pipeline: Pipeline, out: Path, *, num_samples: int | None = None, sets: str = "plain"
) -> dict[str, Any]:
    """Write the best epoch of a run to a program (``.pt2``).

    It takes uint8 images, tokens and mask of texts, or features of tables. It returns probabilities
    and their uncertainty over posterior samples; of a calibrated run the scaled ones with ``set``
    and ``accepted``. It holds :data:`METADATA` and the preprocessing:
    ``torch.export.load(out, extra_files={"probattn.json": ""})``. Share weights: a program of
    PyTorch's from elsewhere can run code when it is loaded.

    Args:
        pipeline: of the run, or of a shared folder.
        out: file to write.
        num_samples: number S of posterior samples of seed 0 in the program; None: that of the
            calibration or the settings; 0: one pass at the posterior mean, without uncertainty over
            samples.
        sets: kind of the conformal sets: ``plain``, ``by-class``, ``aps`` or ``raps``.

    Returns:
        The metadata: ``name``, ``data``, ``classes``, ``takes``, ``gives``, ``num_samples`` and
        versions.

    Raises:
        OutputError: ``out`` is a file of something else, or lies in the folder of a run or model.
    """
    run = pipeline.run
    data = run.dataset
    calibration = pipeline.calibration
    (place,) = check_outputs([out], mark=METADATA, inputs=[run.folder])
    model = run.model.cpu()
    guide = run.guide.cpu()
    samples = pipeline.num_samples if num_samples is None else num_samples
    torch.manual_seed(0)
    network: nn.Module = (
        predictor_network(model, guide, num_samples=samples)
        if samples
        else mean_network(model, guide)
    )
    example = tuple(data.batches(data.test, batch_size=1))[0][::2]
    if isinstance(data, ImageDataset):
        example = (data.test.images[:1],)
        network = nn.Sequential(
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std), network
        )
    sizes = ("batch", "tokens") if len(example) > 1 else ("batch",)
    shapes = [", ".join(map(str, (*sizes, *x.shape[len(sizes) :]))) for x in example]
    takes = ", ".join(
        f"{str(x.dtype)[6:]} ({shape})" for x, shape in zip(example, shapes, strict=True)
    )
    if calibration is not None and calibration.refine is not None:
        raise ValueError(
            "a program gives all inputs the same samples: evaluate the run without --refine first"
        )
    if calibration is not None and data.classes:
        network = Calibrated(network, calibration, sets=sets)
    about: dict[str, Any] = {
        "name": run.name,
        "data": data.name,
        "classes": data.classes,
        "epoch": run.best_epoch,
        "takes": takes,
        "gives": list(network(*example)),
        "num_samples": samples,
        **environment("cpu"),
    }
    files = {PREPROCESSING: (run.folder / PREPROCESSING).read_text()}
    if calibration is not None:
        files[CALIBRATION] = calibration.to_json().decode()
    place.parent.mkdir(parents=True, exist_ok=True)
    export(place, network, *example, files={METADATA: json.dumps(about, indent=2), **files})
    return about
