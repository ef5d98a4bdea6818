"""Fuzzing of settings: mutated JSON is refused by a SettingsError, or accepted and then survives every conversion."""

import json
import math
import random as random_module
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings, from_json
from probattn.experiments.config.validation import SettingsError, readable_errors
from probattn.experiments.displayable import displayable
from probattn.experiments.runs.folder import RunRecord

HUGE = 10**4000
VALUES = (
    *(None, True, False, 0, 1, -1, 2, 3, 10**7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), HUGE),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, math.inf, -math.inf, math.nan),
    *("", " ", "none", "nan", "1", "1,", "auto", "cpu", "vit", "text", "softmax", "kep-svgp", "é", "\x00", "\x1b[31m"),
    *("\u202e", "\ud800", "\ufffe", "=1+1", "../..", "x" * 10_000, [], {}, [[]], {"": {}}, [1, 2], {"name": "cgp"}),
)


def fuzz_settings(random: random_module.Random) -> None:
    """Try one mutation of a preset's settings, or of the content of a run's ``settings.json``.

    Raises:
        AssertionError: another error than SettingsError, or accepted settings that change when they are saved and read.
    """
    name = random.choice(list(PRESETS))
    content: Any = asdict(PRESETS[name])
    is_record = random.random() < 0.3
    if is_record:
        content = {"name": name, "settings": content, "environment": {"torch": "2"}}
    for _ in range(random.randint(0, 4)):
        content = mutated(content, random)
    text = damaged(json.dumps(content, ensure_ascii=random.random() < 0.5), random)
    try:
        check_record(text) if is_record else check_settings(from_json(text))
    except SettingsError as error:
        if not str(error).strip():
            raise AssertionError(f"no message: {shortened(text)}") from error
    except AssertionError as error:
        raise AssertionError(f"{error}: {shortened(text)}") from error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of SettingsError: {shortened(text)}") from error


def check_record(text: str) -> None:
    """Read the content of ``settings.json``, which is saved and read back."""
    with readable_errors():
        record = TypeAdapter(RunRecord).validate_json(text)
    check_settings(record.settings)
    assert TypeAdapter(RunRecord).validate_json(json.dumps(asdict(record))) == record


def check_settings(settings: Settings) -> None:
    """Save accepted settings and read them back; every number is finite and the command line can express them."""
    assert from_json(json.dumps(asdict(settings))) == settings, "saved and read settings differ"
    flat = settings.flat()
    assert all(math.isfinite(value) for value in flat.values() if isinstance(value, float)), "not finite"
    assert all(abs(value) < 2**63 for value in flat.values() if isinstance(value, int)), "too large"
    assert settings.with_changes(f"{key}={value}" for key, value in flat.items()) == settings, "--set differs"
    for epochs in (2, 7):
        settings.with_total_epochs(epochs)


def mutated(content: Any, random: random_module.Random) -> Any:
    """Return JSON content with one change at a random place: another value, key or nesting."""
    if not isinstance(content, dict | list) or not content or random.random() < 0.02:
        return random.choice((*VALUES, [content], {"name": content}, nested(content, random.choice((5, 150, 300)))))
    content = content.copy()
    key = random.choice(list(content) if isinstance(content, dict) else range(len(content)))
    if isinstance(content, dict) and random.random() < 0.1:
        content[random.choice(("", "digest", "__class__", "epochs", "name", key.upper(), "\udcff"))] = content.pop(key)
    elif random.random() < 0.1:
        del content[key]
    else:
        content[key] = mutated(content[key], random)
    return content


def nested(content: Any, depth: int) -> Any:
    """Return content in a list in a list …"""
    for _ in range(depth):
        content = [content]
    return content


def damaged(text: str, random: random_module.Random) -> str:
    """Return JSON text that is sometimes cut, repeated, or has other characters in places."""
    if random.random() < 0.8:
        return text
    start, end = sorted(random.choices(range(len(text) + 1), k=2))
    between = random.choice(
        ("", "\x00", "\ud800", "[" * 100_000, '{"a":' * 100_000, "NaN", "1e999", text[start:end] * 2)
    )
    return text[:start] + between + text[random.choice((start, end)) :]


def shortened(text: str) -> str:
    """Return the text for a message."""
    return displayable(text if len(text) < 2000 else f"{text[:1000]} … {text[-1000:]}")
