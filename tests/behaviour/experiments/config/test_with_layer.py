"""``--layer``: every layer for every kind of network, of the same length of training."""

import pytest

from probattn.experiments.config.layers import KNOWN as LAYERS
from probattn.experiments.config.presets import PRESETS, with_layer


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["vit/folder", "text/csv", "tabular/csv", "digits/sgpa", "finetune/cola"])
def test_a_layer_is_chosen_for_the_same_data_network_and_epochs(name, layer):
    before = PRESETS[name]
    settings = with_layer(before, layer)
    assert settings.layer.name == layer
    assert (settings.data, settings.network, settings.epochs) == (before.data, before.network, before.epochs)
    if layer == "softmax":
        assert settings.warm_start is None
        assert settings.train.guide_lr is None


def test_layers_have_the_training_of_the_presets_on_digits():
    for layer in (each for each in LAYERS if f"digits/{each}" in PRESETS):
        chosen, preset = with_layer(PRESETS["digits/softmax"], layer), PRESETS[f"digits/{layer}"]
        for key in ("guide_lr", "alpha_start", "alpha_end", "epochs"):
            assert getattr(chosen.train, key) == getattr(preset.train, key), (layer, key)
        assert chosen.warm_start == preset.warm_start
