"""Settings as YAML: presets, and what ``probattn presets NAME --yaml`` prints and
``train --config`` reads."""

import contextlib
import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from probattn.experiments.config.validation import SettingsError

NULL = ("", "~", "null")  # YAML's spellings of None


class TextLoader(yaml.BaseLoader):
    """Loader of texts, which the types of the settings turn into numbers and truth values: a column
    may be ``no``."""

    def construct_scalar(self, node: yaml.ScalarNode) -> str | None:
        """Return the text of a node; None for YAML's null without quotes."""
        text = super().construct_scalar(node)
        return None if node.style is None and text.lower() in NULL else text


def from_text(text: str) -> Any:
    """Return a value of the command line: a list or mapping in brackets, None for ``none``, or the
    text itself."""
    if text.startswith(("[", "{")):
        with contextlib.suppress(yaml.YAMLError, RecursionError):
            return yaml.load(text, TextLoader)  # noqa: S506 - it makes texts only
    return None if text.lower() in (*NULL, "none") else text


def to_yaml(name: str, settings: Any) -> str:
    """Return all settings of a preset as YAML."""
    content = json.loads(json.dumps({"preset": name} | asdict(settings)))  # YAML has no tuples
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return (
        "# probattn train --config FILE.yaml; settings that are left out are those of the "
        f"preset\n{text}"
    )


def packaged(name: str) -> dict[str, Any]:
    """Return the content of a file of this package, ``preset_files/NAME.yaml``, with YAML's
    types."""
    path = files("probattn.experiments.config") / "preset_files" / f"{name}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read(path: Path) -> dict[str, Any]:
    """Read a file of settings: part → setting → value, and the preset's name as ``preset``.

    Raises:
        SettingsError: a file that cannot be read, or is no mapping in YAML; names the line.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), TextLoader)  # it makes texts only
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise SettingsError(
            f"cannot read {path}: {problem}; correct the file, or --config"
        ) from error
    if not isinstance(content, dict):
        raise SettingsError(
            f"{path} is no mapping; `probattn presets NAME --yaml` prints a file of settings"
        )
    if not isinstance(content.get("preset"), str | None):
        raise SettingsError(f"{path}: preset must be the name of one, got {content['preset']!r}")
    return content
