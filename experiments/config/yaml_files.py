"""Settings as YAML: presets, and what ``probattn presets NAME --yaml`` prints and ``train --config`` reads."""

import functools
import json
from collections.abc import Hashable
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from probattn.experiments.config.validation import SettingsError


class _Loader(yaml.SafeLoader):
    """Loader that refuses keys that occur twice, of which YAML's would take the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is set twice", node.start_mark)
        return super().construct_mapping(node, deep)


def to_yaml(name: str, settings: Any) -> str:
    """Return all settings of a preset as YAML."""
    content = json.loads(json.dumps({"preset": name} | asdict(settings)))  # YAML has no tuples
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return f"# probattn train --config FILE.yaml; settings that are left out are those of the preset\n{text}"


@functools.cache
def packaged(name: str) -> dict[str, Any]:
    """Return the content of a file of this package, ``preset_files/NAME.yaml``."""
    return read(files("probattn.experiments.config") / "preset_files" / f"{name}.yaml")


def read(path: Path | Traversable) -> dict[str, Any]:
    """Read a file of settings: part → setting → value, and the preset's name as ``preset``.

    Raises:
        SettingsError: a file that cannot be read, or is no mapping in YAML; names the line.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(f"cannot read {path}{line}: {problem}; correct the file, or --config") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{path} is no mapping; `probattn presets NAME --yaml` prints a file of settings")
    return content
