"""The command in a report repeats the run."""

import pytest

from probattn.experiments.config import presets
from probattn.experiments.runs.folder import train_command

KEP, CGP = "digits/kep-svgp", "digits/cgp"


@pytest.mark.parametrize(
    "changes", [["train.lr=0.01", "layer.merge=add"], ["data.limit=none", "train.clip_norm=1.5"], []]
)
def test_the_reports_command_repeats_the_run(changes):
    settings = presets.preset(KEP).with_changes(changes)
    words = train_command(KEP, settings).split()
    assert words[:3] == ["probattn", "train", KEP]
    assert presets.preset(words[2]).with_changes(words[4::2]) == settings
    assert words[3::2] == ["--set"] * len([change for change in changes if change != "data.limit=none"])


@pytest.mark.parametrize("changes", [[], ["warm_start=none"], ["warm_start.epochs=3", "warm_start.kernel=ard"]])
@pytest.mark.parametrize("name", [CGP, "digits/sgpa"])
def test_the_reports_command_repeats_the_warm_start(name, changes):
    changes = changes if name == CGP or changes != ["warm_start=none"] else []
    settings = presets.preset(name).with_changes(changes)
    words = train_command(name, settings).split()
    assert presets.preset(words[2]).with_changes(words[4::2]) == settings
    assert words[3::2] == ["--set"] * len(words[4::2])


@pytest.mark.parametrize("name", presets.PRESETS)
def test_the_changes_between_any_two_presets_make_the_one_of_the_other(name):
    for other in presets.PRESETS.values():
        changes = presets.preset(name).changes_from(other)
        assert other.with_changes(changes) == presets.preset(name), changes


def test_the_command_of_another_layer_names_only_what_was_changed():
    changes = ["layer.name=sparse-cgp", "layer.last=1", "train.alpha_start=0.0"]
    settings = presets.preset("finetune/cola-softmax").with_changes(changes)
    assert train_command("finetune/cola-softmax", settings).split(" --set ")[1:] == changes
