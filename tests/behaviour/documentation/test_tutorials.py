"""docs/tutorials: the cells of each notebook compile, and what they use of probattn exists.

The site executes the notebooks when it is built; here only names are resolved, in a second.
"""

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

TUTORIALS = sorted((Path(__file__).parents[3] / "docs" / "tutorials").glob("[0-9]*.md"))
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n|\s*\n)*(.*?)^```$", re.MULTILINE | re.DOTALL)


def missing_names(tree):
    """Return the names of probattn that the code imports, or takes from an imported module, and that do not exist."""
    modules, missing = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probattn":
            module = importlib.import_module(node.module)
            missing += [alias.name for alias in node.names if not hasattr(module, alias.name)]
            modules |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if isinstance(module, ModuleType) and not hasattr(module, node.attr):
                missing.append(f"{module.__name__}.{node.attr}")
    return missing


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_cells_compile_and_the_names_of_probattn_exist(path):
    cells = [cell for cell in CELL.findall(path.read_text(encoding="utf-8")) if not cell.startswith("%%")]
    code = "\n".join(re.sub(r"^[%!].*$", "", cell, flags=re.MULTILINE) for cell in cells)
    tree = compile(code, path.name, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    compile(tree, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert missing_names(tree) == []


def test_a_name_that_does_not_exist_is_found():
    imports = "from probattn import guides, nothing\nfrom probattn.inference import metrics as m\n"
    assert missing_names(ast.parse(f"{imports}m.accuracy, m.none")) == ["nothing", "probattn.inference.metrics.none"]
