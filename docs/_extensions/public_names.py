"""References of docstrings to objects by the module that defines them lead to the page of their
public name."""

import importlib
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment


def found(name: str) -> Any:
    """Return the object that a dotted name stands for, or None."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:at]))
            for part in parts[at:]:
                value = getattr(value, part)
        except (ImportError, AttributeError):
            continue
        return value
    return None


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Return a link to the documented name of the same object, or its name without a link if it has
    no page."""
    target = node.get("reftarget", "")
    candidates = [target, f"{node.get('py:module')}.{target}"]
    value = next((each for each in map(found, candidates) if each is not None), None)
    if (
        node.get("refdomain") != "py"
        or value is None
        or not any("probattn" in each for each in candidates)
    ):
        return None
    domain = env.get_domain("py")
    assert isinstance(domain, PythonDomain)
    for name in domain.objects:
        if name.rpartition(".")[2] == target.rpartition(".")[2] and found(name) is value:
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], name, node, content
            )
    return content


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True}
