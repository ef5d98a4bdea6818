"""Check of a posterior on digits, with few draws."""

from probattn.experiments.studies import posterior_check


def test_each_guide_is_compared_with_nuts(monkeypatch):
    monkeypatch.setattr(posterior_check, "NUMBER", 6)
    monkeypatch.setattr(posterior_check, "STEPS", 2)
    monkeypatch.setattr(posterior_check, "DRAWS", 50)
    said = []
    table = posterior_check.posterior_check(num_samples=12, warmup_steps=8, simulations=2, epochs=5, say=said.append)
    assert [*table.index] == ["full", "diagonal", "lowrank", "delta", "joint"]
    assert table[["mean_error", "std_ratio", "predictive"]].notna().all(axis=None)
    assert table.loc["delta", "std_ratio"] == 0
    assert [*table.index[table["khat"].isna()]] == ["delta"]
    assert [*table.index[table["calibration_p"].notna()]] == ["full", "joint"]
    assert any("divergent" in line for line in said)
