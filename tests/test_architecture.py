"""The house stands as ARCHITECTURE.md draws it: who may import whom, what the wheel holds, what importing loads."""

import ast
import graphlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch import nn

import probattn
from probattn import guides, inference, models

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "probattn": "probattn",
    "models": "probattn.models",
    "inference": "probattn.inference",
    "experiments": "probattn.experiments",
}
COMPAT = {"probattn.pyro_compat", "probattn.torch_compat", "probattn.thread_values"}
STATEMENTS = COMPAT | {"probattn.param_effects", "probattn.handlers", "probattn.sites"}
LAYERS = STATEMENTS | {"probattn.functional", "probattn.priors", "probattn.distributions", "probattn.attention"}
CORE = LAYERS | {"probattn"}
ALLOWED = {
    "probattn.functional": {"probattn.functional"},
    "probattn.priors": STATEMENTS | {"probattn.functional", "probattn.distributions", "probattn.priors"},
    "probattn.distributions": {"probattn.torch_compat", "probattn.functional", "probattn.distributions"},
    "probattn.pyro_compat": set(),
    "probattn.torch_compat": set(),
    "probattn.thread_values": set(),
    "probattn.handlers": COMPAT | {"probattn.handlers"},
    "probattn.param_effects": COMPAT | {"probattn.handlers"},
    "probattn.sites": COMPAT | {"probattn.param_effects", "probattn.handlers"},
    "probattn.attention": LAYERS,
    "probattn": CORE,
    "probattn.models": CORE | {"probattn.models"},
    "probattn.inference": CORE | {"probattn.inference"},
    "probattn.experiments": CORE | {"probattn.models", "probattn.inference", "probattn.experiments"},
}
ROOMS = {
    "probattn.inference": (
        {"io"},
        {"distributed"},
        {"prediction"},
        {"metrics", "methods", "export", "posterior"},
        {"decisions", "diagnostics", "training"},
        {"integrations"},
    ),
    "probattn.experiments": (
        {"data"},
        {"config"},
        {"runs"},
        {"evaluation", "bench"},
        {"plots", "sharing"},
        {"reporting"},
        {"studies"},
        {"cli"},
    ),
}
"""Rooms of a package by floor; a room imports itself, files beside the rooms, and rooms of lower floors."""
OPTIONAL = {"probattn.inference.integrations.lightning"}
"""Modules that need an extra, and say so when it is missing."""
PURE = "probattn.functional"
HANDLER_METHODS = {"_pyro_sample", "_pyro_post_sample", "_pyro_param", "_pyro_post_param"}
"""Private by name, but Pyro's protocol for effect handlers."""
SKIPPED = {"build", "dist", "runs", "data"}
"""Folders of the root that hold no sources."""


def sources(root):
    """Path of each module by its import name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def room(module):
    """The room of the house that a module of ours lies in."""
    return max((name for name in ALLOWED if f"{module}.".startswith(f"{name}.")), key=len)


def imported(module, path, known):
    """Absolute names that a module imports anywhere in its source, functions and type checking included."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield base if base.partition(".")[0] == "probattn" and full not in known else full
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value
        elif isinstance(node, ast.Attribute) and ast.unparse(node).count(".") == 2:
            yield ast.unparse(node)


def violations(root):
    """Each forbidden import as ``module → target``."""
    known = sources(root)
    for module, path in known.items():
        for target in imported(module, path, known):
            ours = target.partition(".")[0] == "probattn"
            if ours and room(target) not in ALLOWED[room(module)]:
                yield f"{module} → {target}"
            impure = target.startswith("pyro.") or target == "pyro" or re.match(r"torch\.nn(?!\.functional)\b", target)
            if room(module) == PURE and impure:
                yield f"{module} → {target}"


def files_imported(root):
    """Files of ours that each file imports; what a package's ``__init__`` re-exports counts as that package."""
    known = sources(root)
    for module, path in known.items():
        targets = set()
        for target in imported(module, path, known):
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != module:
                targets.add(target)
        yield module, targets


def wrong_floors(root):
    """Each import between the rooms of a package that does not go to a lower floor, as ``module → target``."""
    for module, targets in files_imported(root):
        for package, floors in ROOMS.items():
            level = {room: number for number, rooms in enumerate(floors) for room in rooms}
            inside = [name.removeprefix(f"{package}.").partition(".")[0] for name in (module, *sorted(targets))]
            for own, (room, target) in ((inside[0], pair) for pair in zip(inside[1:], sorted(targets), strict=True)):
                if not module.startswith(f"{package}.") or not target.startswith(f"{package}.") or room == own:
                    continue
                if own not in level:
                    wrong = room in level and own not in ("__init__", "__main__")
                else:
                    wrong = room in level and level[room] >= level[own]
                if wrong:
                    yield f"{module} → {target}"


def private_names():
    """Private attributes of the classes of Pyro and PyTorch that ours extend or hold."""
    extended = (PyroModule(), dist.MaskedDistribution(dist.Normal(0.0, 1.0), True), pyro.infer.TraceMeanField_ELBO())
    held = (
        pyro.get_param_store(),
        Messenger(),
        pyro.poutine.Trace(),
        nn.Parameter(),
        torch.optim.SGD([nn.Parameter()]),
    )
    names = {name for each in (*extended, *held, pyro.infer.Trace_ELBO()) for name in dir(each)}
    return {name for name in names if re.match(r"_[a-z]", name)} - HANDLER_METHODS


def private_uses(module, path, names):
    """Private names of Pyro and PyTorch in one file, as ``module → name``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        used = []
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            used = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            used = [ast.unparse(node)] if ast.unparse(node).startswith(("torch.", "pyro.")) else []
            used += [node.attr] if node.attr in names else []
        elif isinstance(node, ast.ClassDef):
            used = [method.name for method in node.body if isinstance(method, ast.FunctionDef)]
        elif isinstance(node, ast.Constant) and node.value in names:
            used = [node.value]
        for name in used:
            if name in names or re.fullmatch(r"(torch|pyro)(\.\w+)*\._[A-Za-z][\w.]*", name):
                yield f"{module} → {name}"


def test_private_names_of_pyro_and_pytorch_are_in_the_two_files_for_them():
    names, known = private_names(), sources(ROOT)
    assert {"_pyro_name", "_pyro_context", "_parameters", "_params", "_get_traces", "_mask", "_batch_shape"} <= names
    found = [use for module, path in known.items() if module not in COMPAT for use in private_uses(module, path, names)]
    assert found == [], "put these behind a function of probattn/pyro_compat.py or probattn/torch_compat.py"


@pytest.mark.parametrize(
    "code",
    [
        "from pyro.poutine.runtime import _PYRO_STACK",
        "from torch.nn.modules.dropout import _DropoutNd",
        "from torch.utils._pytree import tree_map",
        "import torch._dynamo",
        "import torch\ntorch._dynamo.reset()",
        "import pyro\nstack = pyro.poutine.runtime._PYRO_STACK",
        "def path(module):\n    return module._pyro_name",
        "def path(module):\n    return getattr(module, '_pyro_name', None)",
        "class ELBO:\n    def _get_trace(self):\n        pass",
    ],
)
def test_a_private_name_is_found(tmp_path, code):
    path = tmp_path / "planted.py"
    path.write_text(code, encoding="utf-8")
    assert list(private_uses("planted", path, private_names()))


def test_handler_methods_and_our_own_private_names_are_no_use(tmp_path):
    path = tmp_path / "planted.py"
    path.write_text("class Handler:\n    def _pyro_sample(self, msg):\n        self._seen = msg", encoding="utf-8")
    assert list(private_uses("planted", path, private_names())) == []


def test_rooms_import_lower_floors_alone():
    assert list(wrong_floors(ROOT)) == []
    for package, floors in ROOMS.items():
        folder = ROOT / package.removeprefix("probattn.")
        rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert rooms == set().union(*floors), f"give each room of {package} its floor"


def test_no_cycle_of_files():
    graph = {module: targets - {"probattn", *FOLDERS.values()} for module, targets in files_imported(ROOT)}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_imports_go_in_the_allowed_directions():
    assert len(sources(ROOT)) > 30
    assert list(violations(ROOT)) == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("probattn/guides.py", "from probattn.models import ViT"),
        ("probattn/guides.py", "import probattn.inference.elbo"),
        ("probattn/guides.py", "from . import models"),
        ("probattn/guides.py", "from .inference import fit"),
        ("probattn/guides.py", "def late():\n    from probattn.experiments import runs"),
        ("probattn/guides.py", "import importlib\nimportlib.import_module('probattn.models')"),
        ("probattn/__init__.py", "from probattn import models"),
        ("probattn/priors.py", "from probattn.attention.base import Layer"),
        ("probattn/attention/base.py", "from probattn import guides"),
        ("probattn/attention/base.py", "from probattn import SoftmaxAttention"),
        ("probattn/attention/base.py", "from ..guides import for_model"),
        ("probattn/functional/ksvd.py", "from probattn import priors"),
        ("probattn/functional/ksvd.py", "import pyro"),
        ("probattn/functional/ksvd.py", "import pyro.distributions as dist"),
        ("probattn/functional/ksvd.py", "from torch import nn"),
        ("probattn/functional/ksvd.py", "from torch.nn import Module"),
        ("probattn/functional/ksvd.py", "import torch\nlinear = torch.nn.Linear(2, 2)"),
        ("models/vit.py", "from probattn.inference import fit"),
        ("models/vit.py", "from ..experiments import runs"),
        ("inference/trainer.py", "from probattn.models import Classifier"),
        ("inference/trainer.py", "from probattn import models"),
        ("inference/trainer.py", "import probattn.experiments"),
        ("inference/deep/down.py", "from probattn.models.vit import ViT"),
    ],
)
def test_the_walker_catches_a_planted_import(tmp_path, path, code):
    plant(tmp_path, path, code)
    assert len(set(violations(tmp_path))) == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("probattn/functional/ksvd.py", "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor"),
        ("probattn/functional/ksvd.py", "import torch\nhalf = torch.nn.functional.relu"),
        ("probattn/functional/ksvd.py", "from probattn.functional import ksvd\nfrom . import ksvd"),
        (
            "probattn/attention/base.py",
            "from probattn import priors\nfrom probattn.functional import ksvd\nimport pyro",
        ),
        ("probattn/guides.py", "from probattn.attention.base import ProbabilisticAttention"),
        ("models/vit.py", "from probattn import SoftmaxAttention, guides\nfrom probattn.models import vit"),
        ("inference/trainer.py", "from probattn.inference import trainer\nimport lightning_fabric"),
        (
            "experiments/runs.py",
            "from probattn.models import vit\nfrom probattn.inference import trainer\nimport probattn",
        ),
    ],
)
def test_the_walker_lets_allowed_imports_pass(tmp_path, path, code):
    plant(tmp_path, path, code)
    assert list(violations(tmp_path)) == []


def plant(root, path, code):
    """The skeleton of the house in a folder, with one module of the given source."""
    skeleton = ["guides.py", "priors.py", "attention/base.py", "functional/ksvd.py"]
    skeleton = [f"probattn/{name}" for name in skeleton] + [
        "models/vit.py",
        "inference/trainer.py",
        "experiments/runs.py",
    ]
    for name in [*skeleton, *(f"{folder}/__init__.py" for folder in FOLDERS), path]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(code if name == path else "", encoding="utf-8")


def test_importing_probattn_is_light_and_changes_no_setting_of_pyro(tmp_path):
    code = """
import json, sys
import pyro
before = pyro.settings.get()
import probattn
heavy = ("lightning", "lightning_fabric", "torchvision", "torchmetrics", "matplotlib", "sklearn", "typer")
loaded = [name for name in heavy if name in sys.modules]
rooms = [name for name in ("models", "inference", "experiments") if f"probattn.{name}" in sys.modules]
import probattn.models, probattn.inference
print(json.dumps([loaded, rooms, before == pyro.settings.get(), "probattn.experiments" in sys.modules]))
"""
    assert run_python(code, tmp_path) == [[], [], True, False]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the sources, unpacked into a folder; needs no network."""
    copy, out, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "site"))
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)],
        capture_output=True,
        text=True,
        cwd=out,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    zipfile.ZipFile(path).extractall(site)
    return site


def test_wheel_holds_every_source_and_the_type_marker(wheel):
    expected = {
        (Path(*FOLDERS[folder].split(".")) / path.relative_to(ROOT / folder)).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.parent.name == "templates"
    }
    held = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    code = {name for name in held if ".dist-info/" not in name}
    assert code == expected | {"probattn/py.typed", "probattn_command.py"}, "list new subpackages in pyproject.toml"
    (info,) = wheel.glob("*.dist-info")
    assert "probattn = probattn_command:main" in (info / "entry_points.txt").read_text(encoding="utf-8")
    assert (info / "licenses" / "LICENSE").is_file()


def test_every_module_of_the_wheel_imports(wheel, tmp_path):
    code = f"""
import importlib, json, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
sys.path.insert(0, {str(wheel)!r})
origins = {{name: importlib.import_module(name).__file__ for name in {sorted(sources(ROOT).keys() - OPTIONAL)!r}}}
print(json.dumps(origins))
"""
    origins = run_python(code, tmp_path)
    assert len(origins) == len(sources(ROOT)) - len(OPTIONAL)
    assert [name for name, origin in origins.items() if not Path(origin).is_relative_to(wheel)] == []


def test_dependencies_have_lower_bounds_and_no_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    for requirement in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        pattern = r"probattn\[[a-z,]+\]|[a-zA-Z0-9_-]+(\[[a-z]+\])?>=[0-9.]+(,<[0-9.]+)?"
        assert re.fullmatch(pattern, requirement), requirement


@pytest.mark.parametrize("path", sorted((ROOT / "probattn" / "attention").glob("*.py")), ids=lambda path: path.name)
def test_layer_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150


def test_no_file_names_a_path_of_one_machine():
    roots = "|".join(["home", "Users", "root", "work", "opt", "mnt", "scratch"])
    pattern = re.compile(rf"(?<![\w.~$}}/-])(?:/(?:{roots})/\w|[A-Z]:\\\w)")
    found = []
    for folder, names, files in os.walk(ROOT):
        skipped = SKIPPED if Path(folder) == ROOT else {"__pycache__", "_build"}  # the site, as built here
        names[:] = [name for name in names if name not in skipped and (name == ".ci" or not name.startswith("."))]
        names[:] = [name for name in names if not name.endswith(".egg-info")]
        for file in set(files) - {".git"}:  # of a worktree
            content = (Path(folder) / file).read_bytes()
            text = "" if b"\0" in content else content.decode("utf-8", errors="ignore")  # no images
            found += [f"{Path(folder, file).relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def run_python(code, folder):
    """Return the JSON that a fresh Python prints, without this session's warnings filter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PASSED_ON = {"save", "save_safetensors"}
"""Functions with keyword arguments of any name: options of another class, and values to save."""


def test_signatures_of_public_functions_are_complete():
    found = []
    for package in (probattn, guides, models, inference):
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if not inspect.isfunction(value):
                continue
            signature = inspect.signature(value)
            for parameter in signature.parameters.values():
                if parameter.annotation is parameter.empty:
                    found.append(f"{name}: {parameter.name} has no type")
                if parameter.kind is parameter.VAR_KEYWORD and name not in PASSED_ON:
                    found.append(f"{name}: name the options in **{parameter.name}")
            if signature.return_annotation is signature.empty:
                found.append(f"{name} returns no type")
    assert found == []
