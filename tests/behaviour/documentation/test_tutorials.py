"""docs/tutorials: no notebook has an error among its outputs, and what it uses of probattn exists.

`make tutorials` executes them; here they are only read, in a second.
"""

import ast
import contextlib
import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

TUTORIALS = sorted((Path(__file__).parents[3] / "docs" / "tutorials").glob("*.ipynb"))


def missing_names(code):
    """Return the names of probattn that the code imports, or takes from an imported module, and that do not exist."""
    modules, missing, tree = {}, [], ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probattn":
            module = importlib.import_module(node.module)
            for alias in node.names:
                with contextlib.suppress(ModuleNotFoundError):  # a module in a package
                    importlib.import_module(f"{node.module}.{alias.name}")
                modules[alias.asname or alias.name] = getattr(module, alias.name, None)
                missing += [] if hasattr(module, alias.name) else [alias.name]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if isinstance(module, ModuleType) and not hasattr(module, node.attr):
                missing.append(f"{module.__name__}.{node.attr}")
    return missing


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_has_no_error_and_the_names_of_probattn_exist(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [out for out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"] == []
    sources = ["".join(cell["source"]) for cell in cells]
    assert missing_names("\n".join(source for source in sources if not source.startswith("%%"))) == []
