"""Packages import only downwards, the wheel holds every module, private parts are few, dependencies
are locked."""

import ast
import itertools
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
# Folders of the packages, and the packages that each must not import.
UPWARDS = {
    "models": ("inference", "experiments"),
    "inference": ("models", "experiments"),
    "experiments": (),
}
UPWARDS["probattn"] = tuple(UPWARDS)
PROTOCOL = {"_pyro_sample", "_pyro_post_sample"}  # of Pyro's effect handlers


def nodes(path):
    return ast.walk(ast.parse(path.read_text("utf-8")))


def imported(path):
    """Absolute names that a file imports, in functions and for type checkers included."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write the absolute name in imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_packages_import_only_downwards(modules):
    for folder, upwards in UPWARDS.items():
        forbidden = tuple(f"probattn.{package}" for package in upwards)
        uses = (
            (module, target)
            for module, path in modules[folder].items()
            for target in imported(path)
        )
        assert [(module, target) for module, target in uses if target.startswith(forbidden)] == []


def test_few_places_use_private_parts_of_pyro_and_pytorch(modules):
    instances = (
        PyroModule(),
        pyro.poutine.Trace(),
        torch.nn.MultiheadAttention(2, 1),
        pyro.infer.Trace_ELBO(),
    )
    instances += (
        pyro.get_param_store(),
        torch.distributions.Normal(0.0, 1.0),
        torch.optim.SGD([torch.ones(1)]),
    )
    names = {
        name for item in instances for name in dir(item) if re.match("_[a-z]", name)
    } - PROTOCOL
    uses = set()
    for module, path in itertools.chain(*(paths.items() for paths in modules.values())):
        for node in nodes(path):
            match node:
                case ast.ImportFrom():
                    written = [f"{node.module}.{alias.name}" for alias in node.names]
                case ast.Attribute() if re.match("_[a-z]", node.attr):  # torch._C alone is no use
                    written = [node.attr, ast.unparse(node)]
                case ast.ClassDef():  # what it overrides
                    written = [getattr(item, "name", "") for item in node.body]
                case _:
                    continue
            private = r"(torch|pyro)(\.\w+)*\._[a-zA-Z][\w.]*"
            uses |= {
                (module, name) for name in written if name in names or re.fullmatch(private, name)
            }
    assert len({(module, name.rpartition(".")[2]) for module, name in uses}) <= 5, sorted(uses)


def test_the_wheel_holds_every_module(tmp_path):
    copy, out = tmp_path / "source", tmp_path / "wheel"
    for folder in UPWARDS:
        shutil.copytree(
            ROOT / folder,
            copy / folder,
            ignore=shutil.ignore_patterns("__pycache__", "results", "*.sh"),
        )
    paths = [path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()]
    expected = {"probattn/" + path.removeprefix("probattn/") for path in paths}
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(out),
        str(copy),
    ]
    subprocess.run(build, capture_output=True, check=True)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (points,) = (
            wheel.read(name).decode()
            for name in wheel.namelist()
            if name.endswith("entry_points.txt")
        )
    assert "probattn = probattn.experiments.cli.main:main" in points
    assert names == expected


def test_the_lock_file_has_each_dependency_at_an_allowed_version_with_hashes_and_no_address():
    text = (ROOT / "requirements-dev.txt").read_text("utf-8")
    assert "://" not in text
    pattern = r"([\w.-]+)==(\S+)(?: ;.*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    locked = [(name, version) for name, version, _ in re.findall(pattern, text)]
    assert len(locked) == sum(line[0].isalnum() for line in text.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *itertools.chain(*project["optional-dependencies"].values()),
    ]
    for item in map(Requirement, listed):
        allowed = [
            item.specifier.contains(version)
            for name, version in locked
            if name == canonicalize_name(item.name)
        ]
        assert item.name == "probattn" or (allowed and all(allowed)), f"{item}: run `make lock`"
