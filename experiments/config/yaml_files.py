"""Settings as YAML: what ``probattn presets NAME --yaml`` prints and ``probattn train --config`` reads."""

from collections.abc import Hashable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError


class _Loader(yaml.SafeLoader):
    """Loader that refuses keys that occur twice, of which YAML's would take the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice.pop()!r} is set twice", node.start_mark)
        return super().construct_mapping(node, deep)


def to_yaml(name: str, settings: Settings) -> str:
    """Return all settings of a preset as YAML."""
    text = yaml.safe_dump({"preset": name} | _plain(asdict(settings)), sort_keys=False, allow_unicode=True)
    return f"# probattn train --config FILE.yaml; settings that are left out are those of the preset\n{text}"


def read(path: Path) -> dict[str, Any]:
    """Read a file of settings: part → setting → value, and the preset's name as ``preset``.

    Raises:
        SettingsError: it cannot be read, or is no YAML.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}; name your file of settings with --config") from error


def parse(text: str, title: str) -> dict[str, Any]:
    """Return the mapping that a text in YAML holds.

    Raises:
        SettingsError: no YAML, no mapping, or a key that occurs twice; names the line.
    """
    try:
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{title}{line} is not valid: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{title} is no mapping; `probattn presets NAME --yaml` prints a file of settings")
    return content


def _plain(value: Any) -> Any:
    """Return tuples as lists, of which YAML has a form."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
