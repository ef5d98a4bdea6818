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
    """Return the names of probattn that the code imports, or takes from an imported module, and
    that do not exist."""
    values, missing, nodes = {}, [], list(ast.walk(ast.parse(code)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probattn":
            for alias in node.names:
                with contextlib.suppress(ModuleNotFoundError):  # a module in a package
                    importlib.import_module(f"{node.module}.{alias.name}")
                value = getattr(importlib.import_module(node.module), alias.name, None)
                values[alias.asname or alias.name] = value
                missing += [alias.name] if value is None else []
    used = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    modules = {name: value for name, value in values.items() if isinstance(value, ModuleType)}
    return missing + [
        n.attr for n in used if n.value.id in modules and not hasattr(modules[n.value.id], n.attr)
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_has_no_error_and_the_names_of_probattn_exist(path):
    cells = [
        cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [
        out for out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"
    ] == []
    sources = ["".join(cell["source"]) for cell in cells]
    assert (
        missing_names("\n".join(source for source in sources if not source.startswith("%%"))) == []
    )
