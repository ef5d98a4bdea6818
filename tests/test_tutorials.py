"""docs/tutorials: each notebook is valid and has its outputs, and what it uses of probattn exists.

`make tutorials` executes them; here they are only read, in a second.
"""

import ast
import contextlib
import importlib
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
SHOWS = re.compile(r"^(?:print\(|figure, |for .*:\n +print\(|%%bash)", re.MULTILINE)
"""Code that prints or draws whenever it runs."""


@pytest.fixture(params=TUTORIALS, ids=lambda path: path.stem)
def notebook(request):
    return json.loads(request.param.read_text(encoding="utf-8"))


def cells(notebook, kind):
    """Return source and outputs of each cell of a kind."""
    chosen = [cell for cell in notebook["cells"] if cell["cell_type"] == kind]
    return [("".join(cell["source"]), cell.get("outputs", [])) for cell in chosen]


def missing_names(code):
    """Return the names of probattn that the code imports, or takes from an imported module, and that do not exist."""
    modules, missing, tree = {}, [], ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probattn":
            module = importlib.import_module(node.module)
            for alias in node.names:
                with contextlib.suppress(ModuleNotFoundError):  # a module in a package
                    importlib.import_module(f"{node.module}.{alias.name}")
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


def test_a_notebook_is_valid_and_says_nothing_of_the_machine(notebook):
    assert notebook["nbformat"] == 4
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert not re.search(r"/home/|/root/|/tmp/|/work/|site-packages", json.dumps(notebook))


def test_cells_that_print_or_draw_have_outputs_and_none_an_error(notebook):
    for code, outputs in cells(notebook, "code"):
        assert outputs or not SHOWS.search(code), code
        assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"], code


def test_links_of_a_notebook_lead_to_files(notebook):
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", "\n".join(text for text, _ in cells(notebook, "markdown")))
    assert [target for target in targets if "://" not in target and not (FOLDER / target).exists()] == []


def test_the_names_of_probattn_that_a_notebook_uses_exist(notebook):
    code = [code for code, _ in cells(notebook, "code") if not code.startswith("%%")]
    assert missing_names("\n".join(code)) == []


def test_a_name_that_does_not_exist_is_found():
    imports = "from probattn import guides, nothing\nfrom probattn.inference import metrics as m\n"
    code = f"{imports}m.accuracy, m.none, guides.for_all"
    assert missing_names(code) == ["probattn.nothing", "probattn.inference.metrics.none", "probattn.guides.for_all"]
