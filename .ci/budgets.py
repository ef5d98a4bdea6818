"""Check size and density of the code and of the prose: ``python .ci/budgets.py`` exits 1 above a
limit.

Size is counted in tokens of code, which cost the same on one line or on three. Comments,
docstrings, line ends and indentation are free.
"""

import ast
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = {
    "probattn": 39_200,
    "models": 11_950,
    "inference": 54_700,
    "experiments": 85_800,
    "tests": 274_700,
}
"""Folder → most tokens of code, with 3 % of room for the next change. The aims are 35,500, 11,000,
47,000, 66,500 and 240,000."""
PER_LINE = 9.5
"""Most tokens a line of code, of each package; tests have no limit."""
CROWDED = 15
"""Most lines of 30 tokens or more in 1,000, of each package."""
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


def code_tokens(path: Path) -> Counter[int]:
    """Return the number of tokens of code of a Python file, by line."""
    silent_lines = docstring_lines(path)
    counts: Counter[int] = Counter()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_code = token.type not in SILENT
            if is_code and token.start[0] not in silent_lines:
                counts[token.start[0]] += 1
    return counts


def sizes() -> Iterator[tuple[str, float, float]]:
    """Yield what is counted, its size and its limit."""
    for folder, budget in CODE.items():
        lines: list[int] = []
        for path in (ROOT / folder).rglob("*.py"):
            lines += code_tokens(path).values()
        yield f"{folder}, tokens", sum(lines), budget
        if folder != "tests":
            crowded = sum(count >= 30 for count in lines)
            yield f"{folder}, tokens a line", sum(lines) / len(lines), PER_LINE
            yield f"{folder}, crowded lines", 1000 * crowded / len(lines), CROWDED
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
    """Print sizes and limits; return 1 if a limit is exceeded."""
    exceeded = False
    for name, size, budget in sizes():
        exceeded |= size > budget
        verdict = "   too many" if size > budget else ""
        print(f"{name:28} {size:10,.1f} of {budget:10,.1f}{verdict}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
