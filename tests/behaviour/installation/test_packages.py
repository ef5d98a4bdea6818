"""Packages import only downwards, the wheel holds every module, private parts are few, dependencies are locked."""

import ast
import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyro.poutine
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyro.nn import PyroModule

ROOT = Path(__file__).parents[3]
UPWARDS = {
    "probattn": ("models", "inference", "experiments"),
    "models": ("inference", "experiments"),
    "inference": ("models", "experiments"),
    "experiments": (),
}
"""Folders of the packages, and the packages that each must not import."""
NEEDS_EXTRA = "probattn.inference.lightning"
PROTOCOL = {"_pyro_sample", "_pyro_post_sample"}  # of Pyro's effect handlers


def sources():
    """Path of each module by its import name, with its folder of the root."""
    for folder in UPWARDS:
        package = "probattn" if folder == "probattn" else f"probattn.{folder}"
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), folder, path


def nodes(path):
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imported(path):
    """Absolute names that a file imports, in functions and for type checkers included."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write the absolute name in imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_packages_import_only_downwards():
    uses = [
        f"{module} imports {target}"
        for module, folder, path in sources()
        for target in imported(path)
        if target.startswith(tuple(f"probattn.{package}" for package in UPWARDS[folder]))
    ]
    assert uses == []


def test_few_places_use_private_parts_of_pyro_and_pytorch():
    instances = (
        PyroModule(),
        pyro.poutine.Trace(),
        torch.nn.MultiheadAttention(2, 1),
        torch.distributions.Normal(0.0, 1.0),
    )
    instances += (pyro.infer.Trace_ELBO(), pyro.get_param_store(), torch.ones(1), torch.optim.SGD([torch.ones(1)]))
    names = {name for item in instances for name in dir(item) if re.match("_[a-z]", name)} - PROTOCOL

    def used(node):
        if isinstance(node, ast.ImportFrom):
            written = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):  # torch._C alone is no use
            written = [node.attr, ast.unparse(node)]
        elif isinstance(node, ast.ClassDef):  # what it overrides
            written = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            written += [target.id for item in node.body if isinstance(item, ast.Assign) for target in item.targets]
        else:
            written = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        private = r"(torch|pyro)(\.\w+)*\._[a-zA-Z][\w.]*"
        return [name.rpartition(".")[2] for name in written if name in names or re.fullmatch(private, name)]

    uses = {(module, name) for module, _, path in sources() for node in nodes(path) for name in used(node)}
    assert len(uses) <= 5, "\n".join(f"{module} uses {name}" for module, name in sorted(uses))


def test_every_module_of_the_wheel_imports(tmp_path):
    copy, out, site = (tmp_path / name for name in ("source", "wheel", "site"))
    for folder in UPWARDS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run(build, capture_output=True, check=True)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (info,) = site.glob("*.dist-info")
    assert "probattn = probattn.experiments.cli.main:main" in (info / "entry_points.txt").read_text(encoding="utf-8")
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "experiments/reporting/templates").iterdir()}
    assert all((site / "probattn" / name).is_file() for name in {"py.typed", *templates})
    names = sorted({module for module, *_ in sources()} - {NEEDS_EXTRA})
    code = f"""
import importlib, json, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
sys.path.insert(0, {str(site)!r})
print(json.dumps([importlib.import_module(name).__file__ for name in {names!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert [file for file in json.loads(done.stdout.splitlines()[-1]) if not Path(file).is_relative_to(site)] == []


def test_the_lock_file_has_each_dependency_at_an_allowed_version_with_hashes_and_no_address():
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert "://" not in text
    pattern = r"([\w.-]+)==(\S+)(?: ;.*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    locked = [(name, version) for name, version, _ in re.findall(pattern, text)]
    assert len(locked) == sum(line[0].isalnum() for line in text.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, listed):
        versions = [version for name, version in locked if name == canonicalize_name(requirement.name)]
        assert versions or requirement.name == "probattn", requirement
        allowed = [requirement.specifier.contains(version, prereleases=True) for version in versions]
        assert all(allowed), f"{requirement}: run `make lock`"
