"""Without the extras: all modules of the library import, a model trains and predicts, missing libraries are named."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"all", "test", "dev", "docs"})
IMPORT_NAMES = {"laplace-torch": "laplace", "pyyaml": "yaml"}
NEED_AN_EXTRA = {"probattn.inference.lightning"}
"""Modules whose import needs an extra."""
CALLS = {
    "arviz": "from probattn.inference import psis_khat; psis_khat(None, None, [])",
    "lightning": "import probattn.inference.lightning",
    "cli": "import probattn.experiments",
}
"""One call that needs each extra."""
CODE = """
import contextlib, importlib, io, json, sys

class WithoutHidden:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

hidden = set({hidden!r})
sys.meta_path[:] = map(WithoutHidden, sys.meta_path)
for name in {modules!r}:
    importlib.import_module(name)
loaded = [name for name in sys.modules if name.partition(".")[0] in hidden]

import torch
from probattn import KEPSVGPAttention, guides, inference
from probattn.models import Classifier, ViT
x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
network = ViT(image_size=4, patch_size=2, channels=1, classes=2, dim=4, depth=1, heads=2, mlp_dim=4,
              attention=KEPSVGPAttention.partial(rank=2))
model = Classifier(network, num_data=8)
guide = guides.for_model(model)
with contextlib.redirect_stderr(io.StringIO()) as progress:
    inference.fit(model, guide, [(x, y)], [(x, y)], options=inference.TrainOptions(epochs=2), out="run")
shape = list(inference.predict(model, guide, x, num_samples=2).probs.shape)

messages = {{}}
for extra, call in {calls!r}.items():
    try:
        exec(call, dict(globals()))
    except Exception as error:
        messages[extra] = [type(error).__name__, str(error)]
print(json.dumps([loaded, shape, progress.getvalue(), messages]))
"""


def libraries(*extras):
    """Import names of the libraries of extras."""
    names = [
        Requirement(requirement).name for extra in extras for requirement in PROJECT["optional-dependencies"][extra]
    ]
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names} - {"probattn"}


def public_modules():
    """Names of the modules of the library; ``probattn.experiments`` needs the extra ``cli``."""
    packages = {"probattn": "probattn", "models": "probattn.models", "inference": "probattn.inference"}
    for folder, package in packages.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            if name not in NEED_AN_EXTRA:
                yield name


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory):
    """Findings of a fresh Python that cannot import the libraries of the extras."""
    code = CODE.format(hidden=sorted(libraries(*EXTRAS)), modules=list(public_modules()), calls=CALLS)
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment, folder = os.environ | {"OMP_NUM_THREADS": "1"}, tmp_path_factory.mktemp("lean")
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    names = ("loaded", "shape", "progress", "messages")
    return dict(zip(names, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_without_extras_every_module_of_the_library_imports(without_extras):
    assert {"typer", "rich", "tokenizers", "transformers", "arviz_base"} <= libraries(*EXTRAS)
    assert without_extras["loaded"] == []


def test_without_extras_a_model_trains_with_progress_and_predicts(without_extras):
    assert without_extras["shape"] == [8, 2]
    assert re.search(r"epoch 1/2: .*valid/nll=[\d.]+.*epoch 2/2: ", without_extras["progress"], re.DOTALL)


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(without_extras, name):
    kind, message = without_extras["messages"][name]
    assert kind == "MissingExtraError"
    assert f"pip install 'probattn[{name}]'" in message
