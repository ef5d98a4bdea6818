"""A room imports itself and what is on lower floors, as ``ARCHITECTURE.md`` has them, and the map
is made from the imports."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
rooms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rooms)


def own(package, targets):
    """Places of the package itself among those that a room imports."""
    return {room for where, room in targets if where == package and room in rooms.rooms(package)}


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_each_room_is_on_a_floor(package):
    folders = {name for name, files in rooms.rooms(package).items() if len(files) > 1}
    assert folders <= rooms.floors(package).keys()


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_a_room_imports_lower_floors_alone(package):
    floors, uses = rooms.floors(package), rooms.uses(package)
    upwards = {
        (room, target)
        for room, targets in uses.items()
        for target in own(package, targets)
        if room in floors and target in floors and floors[target] >= floors[room]
    }
    assert upwards == set()


@pytest.mark.parametrize("package", rooms.PACKAGES)
def test_no_room_reaches_itself_by_imports(package):
    """Files without a floor are on the way, too."""
    uses = {room: own(package, targets) for room, targets in rooms.uses(package).items()}
    circles = []
    for room in uses:
        reached, waiting = set(), list(uses[room])
        while waiting:
            target = waiting.pop()
            if target not in reached:
                reached.add(target)
                waiting += uses.get(target, ())
        circles += [room] * (room in reached)
    assert circles == []


def test_the_map_is_made_from_the_imports():
    assert rooms.FIGURE.read_text("utf-8") == rooms.draw()
