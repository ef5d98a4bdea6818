"""Export of a trained run to a program of PyTorch that takes unprocessed data."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.runs.folder import environment
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.experiments.sharing.shared_folder import FILES
from probattn.inference import export, mean_network, predictor_network

# File with the metadata inside a program.
METADATA = "probattn.json"


class Normalised(nn.Module):
    """Network preceded by the normalisation of its images: it takes uint8 images, 0 to 255.

    Args:
        network: called on normalised images.
        mean, std: per channel, of pixels scaled to 0..1.
    """

    def __init__(self, network: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in {"mean": mean, "std": std}.items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the network's outputs for images ``(batch, C, H, W)``."""
        return self.network((images.float() / 255 - self.mean) / self.std)


class Calibrated(nn.Module):
    """Network of classes with calibrated outputs: ``probs``, ``entropy``, and also ``set`` and ``accepted``.

    ``mutual_information`` stays that of the samples; ``energy`` and ``expected_entropy`` are left out.

    Args:
        network: returns ``probs (batch, classes)`` and other outputs by name.
        calibration: of the run.
        by_class: sets that hold each class with the calibration's level.
    """

    def __init__(self, network: nn.Module, calibration: Calibration, *, by_class: bool) -> None:
        super().__init__()
        self.network, self.calibration, self.by_class = network, calibration, by_class

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``set``, bool ``(batch, classes)``, ``accepted``, bool ``(batch,)``, and the other outputs."""
        outputs = self.network(x) if mask is None else self.network(x, mask)
        probs = outputs["probs"]
        logits = probs.clamp(min=torch.finfo(probs.dtype).tiny).log().double() / self.calibration.temperature
        scaled = logits.softmax(-1).to(probs.dtype)
        sets = {"set": self.calibration.sets(scaled, by_class=self.by_class)}
        sets["accepted"] = self.calibration.accepts(scaled)
        if "mutual_information" not in outputs:
            return {"probs": scaled} | sets
        information, entropy = outputs["mutual_information"], torch.special.entr(scaled).sum(-1)
        return {"probs": scaled, "entropy": entropy, "mutual_information": information} | sets


def export_run(
    folder: Path,
    out: Path,
    *,
    mean: bool = False,
    num_samples: int | None = None,
    seed: int = 0,
    calibrated: bool = True,
    by_class: bool = False,
) -> str:
    """Write the best epoch of a run to a program (``.pt2``).

    It takes uint8 images, tokens and mask of texts, or features of tables. It returns probabilities and their
    uncertainty over posterior samples; of a calibrated run the scaled ones with ``set`` and ``accepted``. It holds
    :data:`METADATA` and the preprocessing: ``torch.export.load(out, extra_files={"probattn.json": ""})``.
    Share weights: a program of PyTorch's from elsewhere can run code when it is loaded.

    Args:
        folder: folder of the run, or of a shared one; its data set is not needed.
        out: file to write.
        mean: write one pass at the posterior mean, without uncertainty over samples.
        num_samples: number S of posterior samples in the program; None: that of the calibration or the settings.
        seed: seed of the samples.
        calibrated: use the calibration, if the run has one.
        by_class: sets that hold each class with the calibration's level.

    Returns:
        A sentence that says what was written.

    Raises:
        ValueError: another suffix; both ``num_samples`` and ``mean``.
        SettingsError, CheckpointError, DatasetError: as for :meth:`Pipeline.open`.
    """
    if out.suffix != ".pt2":
        raise ValueError(f"cannot export to {out}: a program has the suffix .pt2, and a folder with weights none")
    if mean and num_samples is not None:
        raise ValueError("the posterior mean is no sample: give --mean or --num-samples")
    pipeline = Pipeline.open(folder)
    run, data = pipeline.run, pipeline.run.dataset
    model, guide = run.model.cpu(), run.guide.cpu()
    torch.manual_seed(seed)
    samples = None if mean else num_samples or pipeline.num_samples
    network = mean_network(model, guide) if mean else predictor_network(model, guide, num_samples=samples)
    calibration = pipeline.calibration if calibrated and data.classes else None
    example, channels = tuple(data.batches(data.test, batch_size=1))[0][::2], pipeline.image_shape
    if channels:
        network, example = Normalised(network, mean=data.mean, std=data.std), (data.test.images[:1],)
        takes = f"uint8 images (batch, {', '.join(map(str, channels))}), 0 to 255"
    elif pipeline.columns:
        takes = f"float32 features (batch, {example[0].shape[1]}), encoded by the columns of preprocessing.json"
    else:
        shape, dtype = ", ".join(map(str, ("batch", "tokens", *example[0].shape[2:]))), str(example[0].dtype)
        takes = f"{dtype[6:]} tokens ({shape}) and bool mask (batch, tokens), True for tokens"
    if calibration is not None:
        network = Calibrated(network, calibration, by_class=by_class)
    about = {"name": run.name, "data": data.name, "classes": data.classes, "takes": takes, "epoch": run.best_epoch}
    about |= {"gives": list(network(*example)), "num_samples": samples, **environment("cpu")}
    files = {name: (run.folder / name).read_text() for name in FILES if (run.folder / name).exists()}
    export(out, network, *example, files={METADATA: json.dumps(about, indent=2), **files})
    return f"{out}: takes {takes}; gives {', '.join(about['gives'])}"
