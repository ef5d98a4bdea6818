"""The map of the rooms, from the imports: ``python docs/rooms.py`` writes ``figures/rooms.svg``.

A room is a sub-package. ``ARCHITECTURE.md`` says on which floor it is, and
``tests/behaviour/installation/test_floors.py`` that it imports lower floors alone.
"""

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "rooms.svg"
PACKAGES = {
    "probattn": "#cfe2f3",
    "models": "#d9ead3",
    "inference": "#fff2cc",
    "experiments": "#f4cccc",
}
"""Packages from the lowest on, with their colours."""
WIDTH, FLOOR, GAP = 240, 52, 44


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of this library that a file imports, by their paths below ``probattn``;
    those inside functions and for type checkers alone, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.partition(".")[0] == "probattn":
                yield name.partition(".")[2]


def place(module: str) -> tuple[str, str]:
    """Return package and room of a module ``inference.io.hub``; the room is the file for those
    outside rooms."""
    first, _, rest = module.partition(".")
    if first in PACKAGES:
        return first, rest.partition(".")[0]
    return "probattn", first


def rooms(package: str) -> dict[str, list[Path]]:
    """Return the files of each room of a package, and of each file outside rooms, by name."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        inside = path.relative_to(ROOT / package)
        if inside.name != "__init__.py" or len(inside.parts) > 1:
            found.setdefault(inside.with_suffix("").parts[0], []).append(path)
    return found


def uses(package: str) -> dict[str, set[tuple[str, str]]]:
    """Return the places that each room of a package imports, other than itself."""
    return {
        room: {place(name) for path in files for name in imports(path)} - {(package, room)}
        for room, files in rooms(package).items()
    }


def floors(package: str) -> dict[str, int]:
    """Return the floor of each room of a package, as its table in ``ARCHITECTURE.md`` says."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition(f"## `{package}/`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", section, re.MULTILINE)
    return {
        room.removesuffix("/").removesuffix(".py"): int(floor)
        for floor, names in rows
        for room in re.findall(r"`([\w./]+)`", names)
    }


def _box(x: float, y: float, width: float, height: float, *, fill: str, title: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="#3a4a5a"><title>{escape(title)}</title></rect>'
    )


def _text(x: float, y: float, text: str, size: int = 13) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" fill="#1a2430">'
        f"{escape(text)}</text>"
    )


def draw() -> str:
    """Return the map as SVG: packages from left to right, floors from below."""
    tables = {package: floors(package) for package in PACKAGES}
    height = FLOOR * max(max(table.values()) for table in tables.values()) + 60
    parts = []
    for column, (package, colour) in enumerate(PACKAGES.items()):
        left = 10 + column * (WIDTH + GAP)
        parts.append(_box(left, 40, WIDTH, height, fill="#ffffff", title=package))
        parts.append(_text(left + WIDTH / 2, height + 26, package, 17))
        imported = uses(package)
        for floor in sorted(set(tables[package].values())):
            names = [room for room, at in tables[package].items() if at == floor]
            rows = [names[start : start + 2] for start in range(0, len(names), 2)]
            for row, pair in enumerate(rows):
                for index, room in enumerate(pair):
                    width = (WIDTH - 24) / len(pair)
                    tall = (FLOOR - 8) / len(rows)
                    x = left + 12 + index * width
                    y = height - floor * FLOOR + row * tall + 4
                    targets = sorted(".".join(filter(None, to)) for to in imported.get(room, ()))
                    title = f"{room} imports {', '.join(targets) or 'nothing of ours'}"
                    parts.append(_box(x, y, width - 4, tall - 4, fill=colour, title=title))
                    parts.append(_text(x + width / 2 - 2, y + tall / 2 + 2, room, 11))
        below = {to for targets in imported.values() for to, _ in targets} - {package}
        for index, target in enumerate(sorted(below, key=list(PACKAGES).index)):
            end = 10 + list(PACKAGES).index(target) * (WIDTH + GAP) + WIDTH / 2
            start = left + 40 + 30 * index
            lift = 34 - 9 * (column - 1)
            parts.append(
                f'<path d="M{start:g} 40V{lift:g}H{end + 12 * column:g}V40" fill="none" '
                'stroke="#555" marker-end="url(#a)"/>'
            )
    total = len(PACKAGES) * (WIDTH + GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height + 60}" '
        'font-family="Helvetica, Arial, sans-serif" role="img" '
        'aria-label="Map of the packages and rooms, made from the imports">\n'
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#555"/>'
        "</marker></defs>\n"
        f'<rect width="{total}" height="{height + 60}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
