"""Editable installation: found from any folder and by type checkers; added and deleted files."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = re.compile(r"([\w.-]+)==(\S+)(?: ;.*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
FOLDERS = ("probattn", "models", "inference", "experiments")
MYPY_CONFIG = """
[mypy]
follow_imports = skip
[mypy-probattn.inference.training.options]
follow_imports = normal
"""
"""Report modules that cannot be found, but analyse one module only; PyTorch would take a minute."""
TYPED = """
from probattn.experiments.config.presets import PRESETS
from probattn.inference.training.options import TrainOptions
from probattn.models import ViT

reveal_type(TrainOptions().epochs)
"""


def run(*command, folder):
    """Run a command, without the Python settings of this session, and return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    environment = inherited | {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the sources in a folder that is named like the package."""
    clone = tmp_path_factory.mktemp("parent") / "probattn"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    return clone


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Python of a new virtual environment that sees the dependencies installed here, but not probattn."""
    found = {each.name: each for each in importlib.metadata.distributions()}
    missing = ", ".join({"pip", "setuptools", "mypy", "torch"} - set(found))
    if missing:
        pytest.skip(f"needs {missing} (extra test, and pip) in the environment of the tests")
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
    variables = {"base": str(folder), "platbase": str(folder)}
    # .pth files in a folder that is itself added by a .pth file are not read: an editable probattn there is not found.
    dependencies = {str(found[name].locate_file("")) for name in ("pip", "setuptools", "mypy", "torch")}
    link = Path(sysconfig.get_path("purelib", vars=variables)) / "dependencies.pth"
    link.write_text("\n".join(sorted(dependencies)), encoding="utf-8")
    return Path(sysconfig.get_path("scripts", vars=variables)) / Path(sys.executable).name


def install(python, clone):
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(python, "-m", "pip", "install", *options, "--editable", clone, folder=clone.parent)


@pytest.fixture(scope="module")
def installed(python, clone):
    """Python of an environment in which the clone is installed."""
    install(python, clone)
    return python


@pytest.fixture
def folders(clone, tmp_path):
    """Working directories: anywhere, the parent folder of the clone, its root."""
    return [tmp_path, clone.parent, clone]


def test_all_packages_are_found_from_any_folder(installed, clone, folders):
    code = f"""
import importlib.util, json, os, sys
found = []
for folder in {list(map(str, folders))!r}:
    os.chdir(folder)  # Python searches the working directory first
    for name in [name for name in sys.modules if name.partition(".")[0] == "probattn"]:
        del sys.modules[name]
    names = "probattn", "probattn.experiments", "probattn.inference", "probattn.models"
    found.append([importlib.util.find_spec(name).origin for name in names])
print(json.dumps(found))
"""
    found = json.loads(run(installed, "-c", code, folder=clone.parent))
    expected = [clone.resolve() / name / "__init__.py" for name in ("probattn", "experiments", "inference", "models")]
    assert [[Path(file).resolve() for file in files] for files in found] == [expected] * len(folders)


def test_a_type_checker_finds_all_packages_from_any_folder(installed, folders, tmp_path):
    config, code = tmp_path / "mypy.ini", tmp_path / "typed.py"
    config.write_text(MYPY_CONFIG, encoding="utf-8")
    code.write_text(TYPED, encoding="utf-8")
    options = ("--config-file", config, "--cache-dir", tmp_path / "cache")
    for folder in folders:
        assert 'Revealed type is "int"' in run(installed, "-m", "mypy", *options, code, folder=folder)


def test_added_and_deleted_files_follow_an_installation(installed, clone):
    (links,) = clone.glob("build/__editable__.*")
    added, linked = clone / "models" / "added.py", links / "probattn" / "models" / "added.py"
    added.write_text("", encoding="utf-8")
    install(installed, clone)
    assert linked.is_file()
    added.unlink()
    assert not linked.is_file()
    install(installed, clone)
    assert not linked.is_symlink()
    assert "build/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_the_lock_file_has_each_dependency_at_an_allowed_version_with_hashes_and_no_address():
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert "://" not in text
    locked = [(name, version) for name, version, _ in LOCKED.findall(text)]
    assert len(locked) == sum(line[0].isalnum() for line in text.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    for requirement in map(Requirement, (*project["dependencies"], *(each for extra in extras for each in extra))):
        versions = [version for name, version in locked if name == canonicalize_name(requirement.name)]
        assert versions or requirement.name == "probattn", requirement
        allowed = [requirement.specifier.contains(version, prereleases=True) for version in versions]
        assert all(allowed), f"{requirement}: run `make lock`"
