"""The documentation site without building it: the API reference is complete, pages are listed, links lead to pages."""

import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

import probattn
from probattn import inference, models

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LISTED = re.compile(r"\.\. currentmodule:: (\S+)\n\n\.\. autosummary::\n(?:   :.*\n)*\n((?:   \S+\n)+)")


@pytest.fixture(scope="module")
def pages():
    """Functions of the extension that rewrites links between pages."""
    return runpy.run_path(str(DOCS / "_extensions" / "repository_pages.py"))


def documented():
    """Names of the API reference, with the object of each."""
    found = {}
    for page in (DOCS / "api").glob("*.md"):
        for module, names in LISTED.findall(page.read_text(encoding="utf-8")):
            for name in names.split():
                *inner, last = name.split(".")
                found[f"{module}.{name}"] = getattr(importlib.import_module(".".join([module, *inner])), last)
    return found


@pytest.mark.parametrize("package", [probattn, models, models.likelihoods, inference, inference.metrics])
def test_every_public_name_is_in_the_api_reference(package):
    known = {id(value) for value in documented().values()}
    public = {name: value for name, value in vars(package).items() if not name.startswith("_")}
    objects = {
        name: value for name, value in public.items() if package.__name__ in str(getattr(value, "__module__", ""))
    }
    callables = {name for name, value in objects.items() if callable(value)}
    assert sorted(name for name in callables if id(objects[name]) not in known) == []


def test_every_name_of_the_api_reference_has_a_docstring():
    assert sorted(name for name, value in documented().items() if not inspect.getdoc(value)) == []


def test_every_page_is_in_a_table_of_contents():
    entries = {"index"}
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for entry in re.findall(r"^(?!:)(\S+)$", block, flags=re.MULTILINE):
                matches = [*page.parent.glob(f"{entry}.md"), *page.parent.glob(f"{entry}.ipynb")]
                found = [match.relative_to(DOCS).with_suffix("").as_posix() for match in matches if match != page]
                assert found, f"{page}: {entry}"
                entries.update(found)
    hidden = {DOCS / "_build", DOCS / "api" / "generated"}
    written = {page for kind in ("*.md", "*.ipynb") for page in DOCS.rglob(kind) if not hidden & set(page.parents)}
    assert {page.relative_to(DOCS).with_suffix("").as_posix() for page in written} == entries


def test_links_between_files_become_links_between_pages(pages):
    rewrite = pages["with_site_links"]
    text = "[r](../experiments/results/README.md#cola) [s](../README.md#two-commands) [t](../tests/) `[u](t)`"
    expected = "[r](project/results.md#cola) s t `[u](t)`"
    assert rewrite(text, file=DOCS / "pyro.md", page="pyro") == expected
    text = "[g](../../docs/glossary.md) ![p](digits/a.svg) [w](https://pyro.ai) [h](#here)"
    expected = "[g](../glossary.md) ![p](../../experiments/results/digits/a.svg) [w](https://pyro.ai) [h](#here)"
    assert rewrite(text, file=ROOT / "experiments" / "results" / "README.md", page="project/results") == expected


def test_files_that_are_pages_exist(pages):
    assert all((ROOT / file).is_file() and (DOCS / f"{page}.md").is_file() for page, file in pages["PAGES"].items())


def test_every_example_has_its_page():
    page = (DOCS / "examples.md").read_text(encoding="utf-8")
    shown = re.findall(r"\{literalinclude\} \.\./examples/(\w+)\.py", page)
    assert sorted(shown) == sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def check_links():
    """Functions of the check of the built site."""
    return runpy.run_path(str(DOCS / "check_links.py"))


def test_links_of_the_built_site_are_checked(check_links, tmp_path, capsys):
    site = tmp_path / "html"
    (site / "api").mkdir(parents=True)
    start = '<p id="top"><a href="api/#a%20b">1</a> <a href="#top">2</a> <a href="https://pyro.ai/x#y">3</a>'
    (site / "index.html").write_text(start, encoding="utf-8")
    (site / "api" / "index.html").write_text('<a name="a b" href="../index.html#top">4</a>', encoding="utf-8")
    assert check_links["main"](site) == 0
    assert (tmp_path / "external-links.txt").read_text(encoding="utf-8") == "https://pyro.ai/x#y\tindex.html\n"
    wrong = '<a href="../index.html#no">1</a> <img src="no.svg"> <a href="../../secret.html">2</a> <a href="#no">3</a>'
    (site / "api" / "index.html").write_text(wrong, encoding="utf-8")
    (tmp_path / "secret.html").touch()
    capsys.readouterr()
    assert check_links["main"](site) == 1
    assert capsys.readouterr().out.splitlines() == [
        "api/index.html: #no leads to no heading or name of that page.",
        "api/index.html: ../../secret.html leads to no file of the site.",
        "api/index.html: ../index.html#no leads to no heading or name of that page.",
        "api/index.html: no.svg leads to no file of the site.",
        "index.html: api/#a%20b leads to no heading or name of that page.",
    ]
