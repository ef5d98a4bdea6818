"""A stage of the checks: cases that are measured one by one, and what their answers mean."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Answer = dict[str, Any]
"""Measurements of a case; ``error`` in their place says why there are none, ``skipped`` why none were made."""


class Scope(NamedTuple):
    """Device and size of the checks.

    Args:
        device: ``"cuda"``, or ``"cpu"``, where the checks are small and test themselves alone.
    """

    device: str

    @property
    def is_small(self) -> bool:
        """True on a CPU."""
        return self.device == "cpu"


class Stage(NamedTuple):
    """Cases of one question.

    Args:
        name: name of the stage.
        question: what it answers.
        cases: returns the cases by name; each is called once, and the file has its answer before the next is.
        problems: returns what is wrong, in sentences that say what to switch off, from the answers by case.
    """

    name: str
    question: str
    cases: Callable[[Scope], Mapping[str, Callable[[], Answer]]]
    problems: Callable[[Mapping[str, Answer]], list[str]]


def failed(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return the errors of the cases that have one."""
    return {case: answer["error"] for case, answer in answers.items() if "error" in answer}


def measured(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers of the cases that were measured."""
    return {case: answer for case, answer in answers.items() if not {"error", "skipped"} & answer.keys()}
