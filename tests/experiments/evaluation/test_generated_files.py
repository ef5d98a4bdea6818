"""Generated tables and figures do not outlive the results that they show, and no other file is removed."""

import json

import pytest

from probattn.experiments.evaluation.generated_files import RECORD, record, remove_outdated

NEW, OLD = {"posterior": "new"}, {"posterior": "old"}


@pytest.fixture
def folder(tmp_path):
    """Folder with two generated files and one of the user."""
    folder = tmp_path / "run"
    (folder / "tables").mkdir(parents=True)
    for name in ("report.html", "tables/ood.md", "tables/mine.md"):
        (folder / name).write_text(name)
    record(folder, [folder / "report.html", folder / "tables" / "ood.md"], OLD)
    return folder


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_files_of_the_same_results_stay(folder):
    remove_outdated(folder, OLD)
    assert names(folder) == {"report.html", "tables/ood.md", "tables/mine.md", RECORD}


def test_files_of_other_results_are_removed_and_those_of_the_user_stay(folder):
    remove_outdated(folder, NEW)
    assert names(folder) == {"tables/mine.md"}
    remove_outdated(folder, NEW)  # nothing is left


def test_files_that_were_not_generated_again_are_removed(folder):
    record(folder, [folder / "report.html"], OLD)
    assert names(folder) == {"report.html", "tables/mine.md", RECORD}


@pytest.mark.parametrize("name", ["../outside", "/outside", "link/outside"])
def test_a_record_removes_nothing_outside_of_its_folder(folder, name):
    outside = folder.parent / "outside"
    outside.write_text("")
    (folder / "link").symlink_to(folder.parent)
    (folder / RECORD).write_text(json.dumps({"sources": OLD, "files": [name, str(outside)]}))
    remove_outdated(folder, NEW)
    assert outside.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": 1}', "null"])
def test_a_damaged_record_removes_nothing(folder, text):
    (folder / RECORD).write_text(text)
    before = names(folder) - {RECORD}
    remove_outdated(folder, NEW)
    assert names(folder) - {RECORD} == before
