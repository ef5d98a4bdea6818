"""``--layer``: every layer for every kind of network, of the same length of training."""

import pytest

from probattn.experiments.config.layers import KNOWN as LAYERS
from probattn.experiments.config.presets import PRESETS, with_layer
from probattn.experiments.config.validation import SettingsError


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["vit/folder", "text/csv", "tabular/csv", "digits/sgpa", "finetune/cola"])
def test_a_layer_is_chosen_for_the_same_data_network_and_epochs(name, layer):
    before = PRESETS[name]
    found = with_layer(before, layer)
    assert found.layer.name == layer
    assert (found.data, found.network, found.epochs) == (before.data, before.network, before.epochs)
    if layer == "softmax":
        assert found.warm_start is None
        assert found.train.guide_lr is None


@pytest.mark.parametrize("layer", LAYERS)
def test_a_table_may_have_a_single_column_of_features(layer):
    for settings in (PRESETS["tabular/csv"], with_layer(PRESETS["tabular/csv"], layer)):
        settings.layer.factory(1)(settings.network.dim, settings.network.heads)


def test_layers_have_the_training_of_the_presets_on_digits():
    for layer in (each for each in LAYERS if f"digits/{each}" in PRESETS):
        chosen, preset = with_layer(PRESETS["digits/softmax"], layer), PRESETS[f"digits/{layer}"]
        for key in ("guide_lr", "alpha_start", "alpha_end", "epochs"):
            assert getattr(chosen.train, key) == getattr(preset.train, key), (layer, key)
        assert chosen.warm_start == preset.warm_start


def test_few_epochs_leave_some_for_the_layer_itself():
    found = with_layer(PRESETS["vit/folder"].with_total_epochs(2), "cgp")
    assert found.epochs == 2
    assert found.train.warmup_epochs < found.train.epochs


def test_an_unknown_layer_is_named():
    with pytest.raises(SettingsError, match="kep-svgp"):
        with_layer(PRESETS["vit/folder"], "kep-svg")
