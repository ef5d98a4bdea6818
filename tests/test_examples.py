"""examples/: each script runs as it is, and uses the public API only."""

import ast
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PUBLIC = {
    "probattn",
    "probattn.inference",
    "probattn.models",
    "probattn.inference.lightning",
}


quiet = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
"""Other libraries' trainers call what their dependencies deprecate."""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run an example in an empty folder: what it defines, and what it prints."""

    def start(name):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name])
        (path,) = (each for each in EXAMPLES if each.stem == name)
        return runpy.run_path(str(path), run_name="__main__"), capsys.readouterr().out

    return start


def test_train_digits(run):
    found, printed = run("train_digits")
    assert found["results"]["accuracy"] > 0.75  # 0.1 is chance
    assert printed.count("samples disagree") == 5


def test_custom_prior(run):
    found, _ = run("custom_prior")
    assert len(found["results"]) == 4
    assert all(values["accuracy"] > 0.8 for values in found["results"].values())


def test_pyro_svi_loop(run):
    found, _ = run("pyro_svi_loop")
    assert found["rmse"] < 0.9  # 1 is the labels' standard deviation
    assert 0.6 < found["coverage"] < 1


def test_replace_attention_in_torchvision_vit(run):
    found, _ = run("replace_attention_in_torchvision_vit")
    assert found["difference"] < 1e-4
    assert found["results"]["accuracy"] > found["before"] - 0.05


@quiet
def test_finetune_text_classifier(run):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found, _ = run("finetune_text_classifier")
    assert found["results"]["eval_accuracy"] > 0.7  # 0.5 is chance
    trainer = found["trainer"]
    trainer.train_dataset = [row | {"token_type_ids": [1] * len(row["input_ids"])} for row in found["test"]]
    with pytest.raises(ValueError, match="token_type_ids"):
        trainer.train()


@quiet
def test_lightning_training(run):
    pytest.importorskip("lightning.pytorch")
    found, _ = run("lightning_training")
    assert found["results"]["accuracy"] > 0.5  # 0.1 is chance


def test_conformal_prediction_sets(run):
    found, _ = run("conformal_prediction_sets")
    assert 0.85 < found["values"]["coverage"] <= 1


def test_regression_intervals(run):
    found, _ = run("regression_intervals")
    assert found["results"]["rmse"] < 70  # 77 is the labels' standard deviation
    assert 0.8 < found["values"]["coverage"] <= 1


def test_export_and_serve(run):
    found, _ = run("export_and_serve")
    assert len(found["answers"]["probs"]) == 3
    assert all(sum(probs) == pytest.approx(1, abs=1e-4) for probs in found["answers"]["probs"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_the_public_api(path):
    source = path.read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imports if node.module.split(".")[0] == "probattn"} <= PUBLIC
    assert f'run("{path.stem}")' in Path(__file__).read_text(encoding="utf-8")
