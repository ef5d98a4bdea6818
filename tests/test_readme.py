"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pyro
import pytest

from probattn import guides

README = Path(__file__).parents[1] / "README.md"


def test_readme_code_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 10
    assert 0 < len([line for line in blocks[5].split("class", 1)[1].splitlines() if line.strip()]) <= 40
    (converting,) = (block for block in blocks if "replace_attention" in block)
    assert len([line for line in converting.splitlines() if line.strip()]) <= 20
    namespace = {}
    with pyro.get_param_store().scope():
        for block in blocks:
            exec(block, namespace)
    assert namespace["history"].epochs[-1]["valid/accuracy"] > 0.6
    assert len(namespace["gp_history"].epochs) == 5
    assert namespace["own_history"].epochs[-1]["valid/accuracy"] > 0.6
    assert {name for name, _ in guides.latent_sites(namespace["own"])} == {
        f"network.blocks.{block}.attention.log_sharpness" for block in range(2)
    }
    assert namespace["converted_history"].epochs[-1]["valid/accuracy"] > 0.6
    assert namespace["sets"].evaluate(namespace["known"].probs, namespace["known"].labels)["coverage"] > 0.8
    assert (tmp_path / "network.pt2").is_file()
    difference = namespace["answer"]["probs"] - namespace["network"](namespace["images"])["probs"]
    assert difference.abs().max() < 1e-5
    words = capsys.readouterr().out
    for each in ("auroc", "aupr_out", "256 examples, 200 replicates", "risk ≤ 20 %", "'coverage'"):
        assert each in words


@pytest.mark.parametrize("path", ["ARCHITECTURE.md", "LICENSE", "CITATION.cff", "Makefile", ".ci/run"])
def test_files_that_the_readme_names_exist(path):
    assert (README.parent / path).is_file()
