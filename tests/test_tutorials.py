"""docs/tutorials: the cells of each notebook compile, and what they use of probattn exists.

The site executes the notebooks when it is built; here only names are resolved, in a second.
"""

import ast
import importlib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("[0-9]*.md"))
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(text):
    """Return the Python code of each cell, without its options and IPython's magics."""
    found = []
    for cell in CELL.findall(text):
        lines = cell.splitlines()
        while lines and (lines[0].startswith(":") or not lines[0].strip()):
            lines.pop(0)
        if lines and not lines[0].startswith("%%"):
            found.append("\n".join(line for line in lines if not line.startswith(("%", "!"))))
    return found


def missing_names(code):
    """Return the names of probattn that the code imports, or takes from an imported module, and that do not exist."""
    modules, missing = {}, []
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probattn":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    missing.append(f"{node.module}.{alias.name}")
                elif isinstance(value := getattr(module, alias.name), type(importlib)):
                    modules[alias.asname or alias.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if not hasattr(module, node.attr):
                missing.append(f"{module.__name__}.{node.attr}")
    return missing


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_cells_of_a_tutorial_compile(path):
    text = path.read_text(encoding="utf-8")
    for number, code in enumerate(cells(text), start=1):
        compile(code, f"{path.name}, cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_names_of_probattn_that_a_tutorial_uses_exist(path):
    assert missing_names("\n".join(cells(path.read_text(encoding="utf-8")))) == []


def test_a_name_that_does_not_exist_is_found():
    imports = "from probattn import guides, nothing\nfrom probattn.inference import metrics as m\n"
    code = f"{imports}m.accuracy, m.none, guides.for_all"
    assert missing_names(code) == ["probattn.nothing", "probattn.inference.metrics.none", "probattn.guides.for_all"]
