"""Networks that do not fit into memory are refused before anything is allocated."""

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.images import image_datasets as datasets
from probattn.experiments.runs import build


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", limit=20)


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name.startswith("digits/")])
def test_the_memory_named_is_that_of_the_weights(name, digits, monkeypatch):
    settings = presets.preset(name).with_changes(["network.dim=32"])
    network = build.build_model(settings, digits).network
    exact = sum(each.nbytes for each in (*network.parameters(), *network.buffers()))
    state = torch.get_rng_state()
    for copies in (1, 4):
        monkeypatch.setattr(build, "total_memory", lambda device, copies=copies: copies * exact)
        build.check_memory(settings, digits, copies=copies)
        monkeypatch.setattr(build, "total_memory", lambda device, copies=copies: copies * exact - 1)
        with pytest.raises(SettingsError, match=r"GiB of memory.*reduce network\.dim"):
            build.check_memory(settings, digits, copies=copies)
    assert torch.equal(torch.get_rng_state(), state)


def test_terabytes_are_named_and_not_allocated(digits):
    settings = presets.preset("digits/softmax").with_changes(["network.dim=10000000"])
    with pytest.raises(SettingsError, match=r"would take [\d,]{9,} GiB of memory, and this machine has [\d,]+ GiB"):
        build.check_memory(settings, digits, copies=4)
