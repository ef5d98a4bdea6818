"""The other packages import probattn by names that the API reference lists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import probattn

ROOT = Path(__file__).parents[3]
PACKAGES = ("models", "inference", "experiments")


def listed():
    """Full names in the tables of the API reference, and in its text."""
    names = set()
    for page in (ROOT / "docs/api").glob("*.md"):
        text = page.read_text("utf-8")
        names |= set(re.findall(r"`(probattn\.\w+\.[\w.]+)`", text))
        module = ""
        for line in text.splitlines():
            if line.startswith(".. currentmodule::"):
                module = line.split()[-1]
            elif re.fullmatch(r" {3}[\w.]+", line):
                names.add(f"{module}.{line.strip()}")
    return names


def imported(package):
    """Full names of probattn itself that a package imports, each with a file that does."""
    names = {}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name: path.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}": path.name for alias in node.names}
    others = tuple(f"probattn.{other}" for other in PACKAGES)
    return {
        name: path
        for name, path in names.items()
        if name.startswith("probattn.") and not name.startswith(others)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_other_packages_import_probattn_by_its_public_names(package):
    public = listed() | {f"probattn.{name}" for name in probattn.__all__}
    modules = {name.rpartition(".")[0] for name in public}
    hidden = {
        name: path for name, path in imported(package).items() if name not in public | modules
    }
    assert hidden == {}


def test_every_public_name_of_probattn_exists():
    for name in listed():
        module, _, attribute = name.rpartition(".")
        if not name.startswith(tuple(f"probattn.{package}" for package in PACKAGES)):
            assert hasattr(importlib.import_module(module), attribute), name


def test_type_checkers_may_take_every_public_name_from_its_package():
    """Of a typed package they take what ``__all__`` lists, and what its modules define."""
    for name in listed():
        module, _, attribute = name.rpartition(".")
        source = importlib.import_module(module)
        if hasattr(source, "__path__") and hasattr(source, attribute):
            assert attribute in source.__all__, name
