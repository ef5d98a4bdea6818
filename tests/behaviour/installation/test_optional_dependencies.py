"""Without the extras: all modules of the library import, a model trains and predicts, missing
libraries are named."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"all", "test", "dev", "docs"})
IMPORT_NAMES = {"laplace-torch": "laplace", "pyyaml": "yaml"}
# One call that needs each extra.
CALLS = {
    "arviz": "from probattn.inference import psis_khat; psis_khat(None, None, [])",
    "lightning": "import probattn.inference.lightning",
    "cli": "import probattn.experiments",
}
COMMAND = "import sys; sys.argv[0] = 'bin/probattn'; import probattn.experiments.cli.main"
CODE = """
import contextlib, importlib.machinery, io, json

find = importlib.machinery.PathFinder.find_spec

def find_others(name, *rest):
    return None if name.partition(".")[0] in {hidden!r} else find(name, *rest)

importlib.machinery.PathFinder.find_spec = staticmethod(find_others)
for name in {modules!r}:
    importlib.import_module(name)

import torch
from probattn import KEPSVGPAttention, guides, inference
from probattn.models import Classifier, ViT
x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
network = ViT(image_size=4, patch_size=2, channels=1, classes=2, dim=4, depth=1, heads=2, mlp_dim=4,
              attention=KEPSVGPAttention.partial(rank=2))
model = Classifier(network, num_data=8)
guide = guides.for_model(model)
with contextlib.redirect_stderr(io.StringIO()) as progress:
    options = inference.TrainOptions(epochs=2)
    inference.fit(model, guide, [(x, y)], [(x, y)], options=options, out="run")
shape = list(inference.predict(model, guide, x, num_samples=2).probs.shape)

messages = {{}}
for extra, call in {calls!r}.items():
    try:
        exec(call, dict(globals()))
    except BaseException as error:
        messages[extra] = [type(error).__name__, str(error)]
print(json.dumps([shape, progress.getvalue(), messages]))
"""


def libraries(*extras):
    """Import names of the libraries of extras."""
    lines = [
        Requirement(line).name
        for extra in extras
        for line in PROJECT["optional-dependencies"][extra]
    ]
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in lines} - {"probattn"}


def test_without_extras_all_modules_import_a_model_trains_and_missing_extras_are_named(
    fresh_python, modules
):
    # `probattn.experiments` needs the extra `cli`.
    names = [name for folder in ("probattn", "models", "inference") for name in modules[folder]]
    names.remove("probattn.inference.lightning")
    hidden = sorted(libraries(*EXTRAS))
    assert {"typer", "rich", "tokenizers", "transformers", "arviz_base"} <= set(hidden)
    shape, progress, messages = fresh_python(
        CODE.format(hidden=hidden, modules=names, calls=CALLS | {"command": COMMAND}),
        warnings="ignore",
    )
    assert shape == [8, 2]
    assert re.fullmatch(r"(epoch [12]/2: .*valid/nll [\d.]+.*\n){2}", progress)
    for extra in CALLS:
        kind, message = messages[extra]
        assert (kind, f"pip install 'probattn[{extra}]'" in message) == (
            "MissingExtraError",
            True,
        ), message
    # Python prints the message of this error alone, and ends with status 1.
    kind, message = messages["command"]
    assert (kind, "pip install 'probattn[cli]'" in message, "\n" in message) == (
        "SystemExit",
        True,
        False,
    ), message
