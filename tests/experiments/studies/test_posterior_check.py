"""Check of a posterior on digits, from training to figures, with few draws."""

import warnings
from xml.etree import ElementTree

import pytest
import torch

from probattn.experiments.studies import posterior_check
from probattn.inference.posterior.nuts import ConvergenceWarning

FEW = {"num_samples": 12, "warmup_steps": 8, "simulations": 2, "steps": 10}


@pytest.fixture
def check(monkeypatch):
    def run(layer, **options):
        _, network = posterior_check.SIZES[layer]
        monkeypatch.setitem(posterior_check.SIZES, layer, (6, network))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of so few draws
            return posterior_check.posterior_check(layer, **{**FEW, **options})

    return run


def test_kep_svgp(check, tmp_path):
    found = check("kep-svgp")
    assert {each.guide for each in found.comparison.sites} == {"full", "diagonal", "lowrank", "delta", "joint"}
    assert set(found.khat) == {"full", "diagonal", "lowrank", "joint"}
    assert set(found.sbc) == {"full", "joint"}
    assert all(each.ranks.shape == (2, 18) for each in found.sbc.values())
    assert found.chains.draws["network.blocks.0.attention.u"].shape == (24, 2, 3, 3)
    found.save(tmp_path)
    assert (tmp_path / "check.txt").read_text() == f"{found}\n"
    assert "calibration of joint" in str(found)
    names = {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {
        "against-nuts", "calibration-full", "calibration-joint", *(f"khat-{name}" for name in found.khat)
    }  # fmt: skip
    for path in tmp_path.glob("*.svg"):
        ElementTree.parse(path)


@pytest.mark.slow
def test_cgp_has_local_sites_only_and_the_seed_fixes_everything(check):
    found, again = (check("cgp", seed=1) for _ in range(2))
    assert [(each.guide, each.site) for each in found.comparison.sites] == [("full", "network.blocks.0.attention.z_q")]
    assert set(found.khat) == {"full"}
    assert found.sbc == {}
    assert str(found) == str(again)
    assert all(torch.equal(draws, again.chains.draws[name]) for name, draws in found.chains.draws.items())
