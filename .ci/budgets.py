"""Check the size of each package, of the tests and of the prose: ``python .ci/budgets.py`` exits 1 above a budget.

A code line holds a token that is neither a comment nor part of a docstring.
"""

import ast
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = {"probattn": 2750, "models": 950, "inference": 3850, "experiments": 4800, "tests": 16000}
"""Folder → most code lines."""
WORDS = 32000
"""Most words of README, ARCHITECTURE, CONTRIBUTING, CHANGELOG, BENCHMARKS, documentation and results."""
ARCHITECTURE = 150
"""Most lines of ``ARCHITECTURE.md``."""
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(path: Path) -> int:
    """Return the number of code lines of a Python file."""
    with path.open("rb") as file:
        spans = [(t.start[0], t.end[0]) for t in tokenize.tokenize(file.readline) if t.type not in SILENT]
    lines = {line for first, last in spans for line in range(first, last + 1)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def sizes() -> Iterator[tuple[str, int, int]]:
    """Yield what is counted, its size and its budget."""
    for folder, budget in CODE.items():
        yield f"{folder}, code lines", sum(map(code_lines, (ROOT / folder).rglob("*.py"))), budget
    built = ROOT / "docs" / "_build", ROOT / "docs" / "api" / "generated"
    pages = [page for page in (ROOT / "docs").rglob("*.md") if not any(folder in page.parents for folder in built)]
    pages += [*ROOT.glob("*.md"), ROOT / "experiments" / "results" / "README.md"]
    yield "prose, words", sum(len(page.read_text(encoding="utf-8").split()) for page in pages), WORDS
    yield (
        "ARCHITECTURE.md, lines",
        len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()),
        ARCHITECTURE,
    )


def main() -> int:
    """Print sizes and budgets; return 1 if a budget is exceeded."""
    exceeded = False
    for name, size, budget in sizes():
        exceeded |= size > budget
        print(f"{name:24} {size:6} of {budget:6}{'   too many' if size > budget else ''}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
