"""The checks of a GPU, the cheapest first; what each case answers is in a file before the next one starts."""

import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import probattn
from probattn import experiments, inference, models
from probattn.experiments.runs.environment import environment
from probattn.experiments.studies.gpu import captures, compiled, kernels, runs, speed
from probattn.experiments.studies.gpu.stage import Answer, Scope, Stage, failed
from probattn.inference.io.digest import digest
from probattn.inference.io.sealed_files import read_json, write_json
from probattn.inference.non_finite import first_line

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        captures.CAPTURE,
        kernels.SOLVERS,
        kernels.ATTENTION,
        compiled.COMPILED,
        captures.ROLLBACK,
        runs.RESUME,
        speed.EPOCHS,
        speed.PROFILE,
        speed.AROUND,
        runs.PROCESSES,
    )
}
"""All stages by name, in their order."""
MAX_MESSAGE = 200


def find(names: Sequence[str]) -> list[Stage]:
    """Return the stages of these names, all without any.

    Raises:
        ValueError: an unknown name.
    """
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise ValueError(f"no stage {', '.join(unknown)}; the stages are {', '.join(STAGES)}")
    return [STAGES[name] for name in names or STAGES]


def run(
    stages: Sequence[Stage],
    *,
    scope: Scope,
    path: Path,
    minutes: float,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run the cases that the file does not have yet, until the time is over, and return its content.

    Args:
        stages: the stages.
        scope: device and size.
        path: file of the answers; those of another device or version of PyTorch are replaced, and errors of another
            source code.
        minutes: no case starts later than this; a case takes seconds, an epoch of a compiled mode a few minutes.
        say: called with a line for each case, and with the problems of each stage that is complete.
    """
    started, here = time.perf_counter(), environment(scope.device)
    content = read_json(path) if path.exists() else {}
    if content.get("environment") != here:
        content = {"environment": here, "stages": {}}
    source = _source_digest()
    if content.setdefault("source", source) != source:
        content["source"] = source
        for answers in content["stages"].values():
            for case in failed(answers):
                del answers[case]
    for stage in stages:
        answers = content["stages"].setdefault(stage.name, {})
        for case, function in stage.cases(scope).items():
            if case in answers:
                continue
            if time.perf_counter() - started > 60 * minutes:
                say("time is over; the same command continues")
                return content
            answers[case] = answer(function)
            write_json(path, content)
            say(f"{stage.name}, {case}: {in_words(answers[case])}")
            if "error" in answers[case] and not is_usable(scope.device):
                say("after this error the process cannot use the device; the same command continues")
                return content
        for problem in stage.problems(answers):
            say(f"{stage.name}: {problem}")
    return content


def is_usable(device: str) -> bool:
    """Return False if the device computes nothing in this process any more, as after an illegal access to memory."""
    try:
        return torch.ones(2, device=device).sum().item() == 2
    except RuntimeError:
        return False


def _source_digest() -> str:
    """Return the digest of this library's source code."""
    found = {}
    for package in (probattn, inference, models, experiments):
        root = Path(package.__path__[0])
        found |= {f"{package.__name__}/{file.relative_to(root)}": file.read_bytes() for file in root.rglob("*.py")}
    return digest(found)


def answer(function: Callable[[], Answer]) -> Answer:
    """Return the answer of a case with its seconds and warnings; an error is an answer, too."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = function()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {first_line(error)[:MAX_MESSAGE]}", "at": _own_frames(error)}
    told = sorted({str(each.message).partition("\n")[0][:MAX_MESSAGE] for each in caught})
    return found | {"took": time.perf_counter() - started} | ({"warnings": told} if told else {})


def verdict(content: dict[str, Any], *, scope: Scope) -> list[str]:
    """Return in sentences what works, what to switch off, and which stages are not complete."""
    lines, missing = [], []
    for stage in STAGES.values():
        answers = content["stages"].get(stage.name, {})
        if stage.cases(scope).keys() - answers.keys():
            missing.append(stage.name)
            continue
        problems = stage.problems(answers)
        lines += [f"{stage.name}: {problem}" for problem in problems] or [f"{stage.name}: in order"]
    if missing:
        lines.append(f"not complete: {', '.join(missing)}; the same command continues")
    return lines


def in_words(found: Answer) -> str:
    """Return an answer in one line."""
    if "error" in found:
        return f"failed: {found['error']}"
    if "skipped" in found:
        return f"left out: {found['skipped']}"
    values = {key: value for key, value in found.items() if key not in ("took", "warnings", "kernels")}
    return ", ".join(f"{key} {_number(value)}" for key, value in values.items()) or f"{found['took']:.1f} s"


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_number, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _own_frames(error: BaseException) -> list[str]:
    """Return the last places in this library that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(each.filename).name}:{each.lineno}" for each in frames if "probattn" in each.filename][-2:]
