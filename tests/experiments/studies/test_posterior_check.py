"""Check of a posterior on digits, from training to figures, with few draws."""

from xml.etree import ElementTree

from probattn.experiments.studies import posterior_check


def test_kep_svgp(monkeypatch, tmp_path):
    monkeypatch.setattr(posterior_check, "NUMBER", 6)
    monkeypatch.setattr(posterior_check, "STEPS", 2)
    found = posterior_check.posterior_check(num_samples=12, warmup_steps=8, simulations=2, epochs=5)
    assert {each.guide for each in found.comparison.sites} == {"full", "diagonal", "lowrank", "delta", "joint"}
    assert set(found.khat) == {"full", "diagonal", "lowrank", "joint"}
    assert set(found.sbc) == {"full", "joint"}
    assert all(each.ranks.shape == (2, 18) for each in found.sbc.values())
    assert found.draws["network.blocks.0.attention.u"].shape == (12, 2, 3, 3)
    found.save(tmp_path)
    assert (tmp_path / "check.txt").read_text() == f"{found}\n"
    assert "calibration of joint" in str(found)
    names = {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {
        "against-nuts", "calibration-full", "calibration-joint", *(f"khat-{name}" for name in found.khat)
    }  # fmt: skip
    for path in tmp_path.glob("*.svg"):
        ElementTree.parse(path)
