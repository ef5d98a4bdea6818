"""The command in a report repeats the run."""

import pytest

from probattn.experiments.config import presets
from probattn.experiments.runs.folder import train_command


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits/kep-svgp", ["train.lr=0.01", "layer.merge=add"]),
        ("digits/kep-svgp", []),
        ("digits/cgp", ["warm_start=none"]),
        ("digits/sgpa", ["warm_start.epochs=3", "warm_start.kernel=ard"]),
        ("finetune/cola-softmax", ["layer.name=sparse-cgp", "layer.last=1", "train.alpha_start=0.0"]),
    ],
)
def test_the_reports_command_repeats_the_run(name, changes):
    settings = presets.preset(name).with_changes(changes)
    words = train_command(name, settings).split()
    assert words[:3] == ["probattn", "train", name]
    assert presets.preset(name).with_changes(words[4::2]) == settings
    assert words[3::2] == ["--set"] * len(words[4::2])
