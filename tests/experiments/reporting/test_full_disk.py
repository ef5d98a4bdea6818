"""On a full disk tables, figures and reports fail with an error that names the file, and leave no part of one."""

import ast
from pathlib import Path

from full_disk import check_refused

from probattn import experiments, inference
from probattn.experiments.plots.style import panel_grid
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting import report, table_formats
from probattn.experiments.reporting.table import Grid

WRITING = {"savefig", "write_text", "write_bytes", "to_file", "save_file"}


def test_tables(tmp_path):
    grid = Grid(100 * "title ", ["a"], {f"row {number}": [0.5] for number in range(50)}, 1)
    written = check_refused(lambda: table_formats.save(tmp_path / "a", grid), tmp_path)
    assert written == {"a.md", "a.tex", "a.csv"}


def test_a_figure(tmp_path):
    figure, _ = panel_grid(1, height=1)
    assert check_refused(lambda: save_figure(tmp_path / "a.svg", figure), tmp_path, sizes=(0, 1000)) == {"a.svg"}


def test_a_report(tmp_path, result, monkeypatch):
    monkeypatch.setattr(report, "PANELS", report.PANELS[:1])
    run = result(n=8, classes=2)
    assert check_refused(lambda: report.write(tmp_path / "a.html", [report.section(run)], title="Title"), tmp_path) == {
        "a.html"
    }
    assert check_refused(lambda: report.save_figures(tmp_path / "figures", run), tmp_path / "figures")


def test_no_other_code_writes_files():
    """Files not written by `write_bytes` would be left half-written on a full disk."""
    found = set()
    for package in (experiments, inference):
        root = Path(package.__file__).parent
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                    target = ast.unparse(node.args[0]) if node.args else ""
                    modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
                    opened = name == "open" and any(isinstance(mode, str) and set("wax") & set(mode) for mode in modes)
                    method = isinstance(node.func, ast.Attribute)
                    if opened or (name in WRITING and method and target not in ("image", "file")):
                        found.add(f"{path.relative_to(root)}: {ast.unparse(node)}")
    assert sorted(found) == [
        "io/files.py: draft.write_bytes(content)",
        "training/run_log.py: self._path.open('a', encoding='utf-8')",
    ]
