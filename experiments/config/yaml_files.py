"""Settings as YAML: what ``probattn presets NAME --yaml`` prints and ``probattn train --config`` reads."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from probattn.experiments.config.settings import Change, Settings
from probattn.experiments.config.validation import SettingsError

PARTS = ("preset", "data", "network", "layer", "train", "warm_start")
"""Keys of the file."""


class ConfigFile(NamedTuple):
    """Content of a file: the preset that it starts from, None if it names none, and its changes of settings."""

    preset: str | None
    changes: list[Change]


def to_yaml(name: str, settings: Settings) -> str:
    """Return all settings of a preset as YAML."""
    content = {part: _plain(values) for part, values in asdict(settings).items()}
    text = yaml.safe_dump({"preset": name} | content, sort_keys=False, allow_unicode=True)
    return f"# probattn train --config FILE.yaml; settings that are left out are those of the preset\n{text}"


def read(path: Path) -> ConfigFile:
    """Read a file of settings.

    Raises:
        SettingsError: it cannot be read, is no YAML, or has keys that are unknown or occur twice; names the line.
    """
    if path.exists() and not path.is_file():
        raise SettingsError(f"{path} is no file; name your file of settings with --config")
    try:
        text = path.read_text(encoding="utf-8")
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise SettingsError(
                    f"{path}, line {token.start_mark.line + 1}: write the value in place of *{token.value}"
                )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}; name your file with --config") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8: byte {error.start}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{path}{line} is not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise SettingsError(f"{path} is nested too deeply") from error
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{path} needs the keys {', '.join(PARTS)}; `probattn presets NAME --yaml` prints a file")
    preset, changes = None, []
    for name, node, place in _items(root, path):
        if name not in PARTS:
            raise SettingsError(f"{place}: unknown key {name!r}; known keys: {', '.join(PARTS)}")
        if name == "preset":
            preset = _text(node, place)
        elif isinstance(node, yaml.MappingNode):
            changes += [Change(f"{name}.{key}", _text(value, at), at) for key, value, at in _items(node, path)]
        elif name == "warm_start" and _text(node, place) == "none":
            changes.append(Change(name, "none", place))
        else:
            raise SettingsError(f"{place}: {name} needs settings below it, such as {_EXAMPLES[name]}")
    return ConfigFile(preset, changes)


_EXAMPLES = {
    "data": "'batch_size: 32'",
    "network": "'dim: 64'",
    "layer": "'name: kep-svgp'",
    "train": "'epochs: 20'",
    "warm_start": "'epochs: 10', or null",
}


def _items(node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node, str]]:
    """Yield the key, value, and file and line of each entry."""
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in seen:
            raise SettingsError(f"{path}, line {line}: {name!r} is set in line {seen[name]} already; remove one")
        seen[name] = line
        yield name, value, f"{path}, line {line}"


def _text(node: yaml.Node, place: str) -> str:
    """Return a value as ``--set`` takes it."""
    if isinstance(node, yaml.ScalarNode):
        value = _value(node, place)
        return (
            node.value
            if isinstance(value, str)
            else {None: "none", True: "true", False: "false"}.get(
                value if value is None or isinstance(value, bool) else "", node.value.replace("_", "")
            )
        )
    return json.dumps(_value(node, place))


def _value(node: yaml.Node, place: str) -> Any:
    """Return a value as Python has it; numbers such as 1e-3, which YAML 1.1 takes for text, are numbers."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _value(value, place) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, place) for each in node.value]
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except yaml.YAMLError as error:
        raise SettingsError(f"{place}: {getattr(error, 'problem', None) or error}") from error
    if isinstance(value, str) and node.style is None:
        try:
            return float(value)
        except ValueError:
            return value
    return value if isinstance(value, str | int | float | None) else node.value


def _plain(value: Any) -> Any:
    """Return tuples as lists, of which YAML has a form."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
