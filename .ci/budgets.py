"""Check the size of each package, of the tests and of the prose: ``python .ci/budgets.py`` exits 1
above a budget.

Size is counted in tokens of code, which cost the same on one line or on three. Comments,
docstrings, line ends and indentation are free.
"""

import ast
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = {
    "probattn": 35_700,
    "models": 11_000,
    "inference": 49_200,
    "experiments": 70_500,
    "tests": 257_000,
}
"""Folder → most tokens of code. The aim is 47,000 for inference, 66,500 for experiments, 240,000
for the tests."""
WORDS = 32_000
"""Most words of README, ARCHITECTURE, CONTRIBUTING, CHANGELOG, BENCHMARKS, documentation and
results."""
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


def docstring_lines(path: Path) -> set[int]:
    """Return the numbers of the lines of a Python file that belong to docstrings."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def code_tokens(path: Path) -> int:
    """Return the number of tokens of code of a Python file."""
    silent_lines = docstring_lines(path)
    count = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_code = token.type not in SILENT
            if is_code and token.start[0] not in silent_lines:
                count += 1
    return count


def sizes() -> Iterator[tuple[str, int, int]]:
    """Yield what is counted, its size and its budget."""
    for folder, budget in CODE.items():
        yield f"{folder}, tokens", sum(map(code_tokens, (ROOT / folder).rglob("*.py"))), budget
    built = ROOT / "docs" / "_build", ROOT / "docs" / "api" / "generated"
    pages = [
        page
        for page in (ROOT / "docs").rglob("*.md")
        if not any(folder in page.parents for folder in built)
    ]
    pages += [*ROOT.glob("*.md"), ROOT / "experiments" / "results" / "README.md"]
    yield (
        "prose, words",
        sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        WORDS,
    )
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    yield "ARCHITECTURE.md, lines", len(architecture), ARCHITECTURE


def main() -> int:
    """Print sizes and budgets; return 1 if a budget is exceeded."""
    exceeded = False
    for name, size, budget in sizes():
        exceeded |= size > budget
        print(f"{name:24} {size:7} of {budget:7}{'   too many' if size > budget else ''}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
