"""Fuzzing of command lines: each is accepted, or refused by one short message; nothing is trained or measured."""

import contextlib
import io
import os
import random as random_module
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from probattn.experiments.bench import meter
from probattn.experiments.cli import main
from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings
from probattn.experiments.evaluation import evaluate
from probattn.experiments.runs import seeds, train
from probattn.experiments.sharing import programs as export
from probattn.experiments.studies import demo, posterior_check, reproduce, study, sweep
from probattn.experiments.studies.reproductions import ENTRIES

KEP = "digits/kep-svgp"
MOST_LINES = 4
"""Number of lines of a message, at most."""
ACCEPTED = "accepted"
"""Status of a command that passed all checks and was about to work."""
TEXTS = (
    *("", " ", "-", "--", ",", ",,", "=", ".", "..", "/", "~", "*", "nan", "inf", "-inf", "none", "true", "[]", "{}"),
    *("-1", "0", "1", "2", "1.5", "1e3", "1e400", "0x10", "1_0", " 1", "²", "١", str(2**31), str(2**63), str(2**64)),
    *(
        "9" * 30,
        "1" * 5000,
        "x" * 5000,
        "é",
        "\x1b[31mred\x1b[0m",
        "\x07",
        "a\nb",
        "\r",
        "\u202edcba",
        "\udcff",
        "=1+1",
    ),
)
PLACES = ("file", "file/x", "fifo", "fifo/x", "loop", "loop/x", "empty", "new", "new/x", "run", "pipes", "\udcff", "")
COMMANDS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "train": (
        ["preset"],
        ["--data", "--out", "--set", "--seeds", "--workers", "--resume", "--layer", "--epochs", "--config"],
    ),
    "evaluate": (
        ["path"],
        [
            "--data",
            "--num-samples",
            "--seed",
            "--method",
            "--shift",
            "--corruptions",
            "--severities",
            "--ood",
            "--baseline",
        ],
    ),
    "compare": (["path"], ["--out"]),
    "study": (
        ["preset"],
        [
            "--data",
            "--out",
            "--set",
            "--sweep",
            "--sweep-seeds",
            "--layers",
            "--seeds",
            "--epochs",
            "--method",
            "--workers",
        ],
    ),
    "reproduce": (["entry"], ["--list", "--scale", "--seeds", "--out", "--data", "--workers", "--dry-run"]),
    "demo": ([], ["--out", "--epochs", "--layers", "--workers"]),
    "export": (["path"], ["--out", "--num-samples", "--seed"]),
    "presets": (["preset"], ["--layer", "--yaml"]),
    "check-posterior": ([], ["--out", "--seed"]),
    "bench layers": ([], ["--rounds", "--device", "--seed", "--json"]),
    "bench train": ([], ["--rounds", "--device", "--images", "--preset", "--set", "--seed", "--json"]),
    "bench predict": ([], ["--rounds", "--device", "--seed", "--json"]),
    "bench scaling": ([], ["--rounds", "--device", "--sizes", "--limit", "--seed", "--json"]),
}
"""Arguments and options of each command."""
FLAGS = ("--yaml", "--resume", "--shift", "--list", "--dry-run")
PATHS = ("--config", "--data", "--out", "--ood", "--baseline", "--json")


class Outcome(NamedTuple):
    """Exit status of a command, or :data:`ACCEPTED`, and what it wrote."""

    status: int | str
    out: str
    err: str


class _AcceptedError(BaseException):
    """Raised in place of the work of a command."""


def fuzz_arguments(random: random_module.Random, folder: Path) -> None:
    """Try one random command line.

    Args:
        random: generator.
        folder: folder that the command may use; :func:`furnish` is called if it is empty.

    Raises:
        AssertionError: a traceback, a long message, or control characters in the output.
    """
    if not any(folder.iterdir()):
        furnish(folder)
    arguments = command_line(random, folder)
    with without_work(), contextlib.chdir(folder):
        outcome = run(arguments)
    check(arguments, outcome)


def furnish(folder: Path) -> None:
    """Fill a folder with what no command expects: pipes, links in a circle, files in place of folders."""
    (folder / "file").write_text("text", encoding="utf-8")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "a.png")


def command_line(random: random_module.Random, folder: Path) -> list[str]:
    """Return a command with random options, most with a hostile value."""

    def value(kind: str) -> str:
        if kind == "preset":
            return random.choice((KEP, random.choice(list(PRESETS)), random.choice(TEXTS)))
        if kind == "entry":
            return random.choice((random.choice(list(ENTRIES)), random.choice(TEXTS)))
        if kind in ("--set", "--sweep"):
            keys = list(_flat_settings())
            return f"{random.choice(keys)}={random.choice(TEXTS)}" if random.random() < 0.9 else random.choice(TEXTS)
        if (kind == "path" or kind in PATHS) and random.random() < 0.8:
            suffix = random.choice(("", "", ".pt2", ".safetensors", "/./", "x" * 300))
            return str(folder / random.choice(PLACES)) + suffix
        # the root of the file system would be searched for images
        return random.choice([text for text in TEXTS if kind != "--ood" or text not in ("/", ".", "..", "~")])

    command = random.choice(list(COMMANDS))
    positional, options = COMMANDS[command]
    words = [*command.split(), *map(value, positional)]
    for option in random.choices(options, k=random.randint(0, 3)) if options else ():
        words += [option] if option in FLAGS else [option, value(option)]
    if random.random() < 0.05:
        words.insert(random.randrange(len(words) + 1), random.choice(TEXTS))
    return words


def run(arguments: Sequence[str]) -> Outcome:
    """Run the command in this process, by the function that the program calls."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with (
        patch.object(sys, "argv", ["probattn", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main.main()
        except SystemExit as stopped:
            status: int | str = stopped.code
        except _AcceptedError:
            status = ACCEPTED
    return Outcome(status, *(_text(stream) for stream in (out, err)))


def check(arguments: Sequence[str], outcome: Outcome) -> None:
    """Check that a command was accepted or failed with one short message.

    Raises:
        AssertionError: it was not.
    """
    status, out, err = outcome
    told = f"{arguments!a}: {status}\n{err}"
    visible = (character.isprintable() or character == "\n" for character in out + err)
    assert all(visible), f"control characters: {told!a}"
    assert "Traceback" not in err, told
    if status in (1, 2) and err:  # without a message: the help
        assert err.startswith("error: ") or "\nerror: " in err, told
        assert len(err.splitlines()) <= MOST_LINES, told
    else:
        assert status in (0, 2, ACCEPTED), told


@contextlib.contextmanager
def without_work() -> Iterator[None]:
    """Stop commands with the status :data:`ACCEPTED` where they would train, predict, measure or export."""

    def accept(*arguments: Any, **options: Any) -> NoReturn:
        raise _AcceptedError

    def in_turn(function: Any, jobs: Sequence[Any], *, workers: int) -> Iterator[Any]:
        yield from ((job, function(job)) for job in jobs)

    with contextlib.ExitStack() as stack:
        for module, name, replacement in (
            (train, "fit", accept),
            (evaluate, "predict_sets", accept),
            (export, "predictor_network", accept),
            (export, "save_safetensors", accept),
            (posterior_check, "fit", accept),
            (meter.flops, "matmul_rates", accept),
            (seeds, "run_in_workers", in_turn),
            (sweep, "run_in_workers", in_turn),
            (study, "run_in_workers", in_turn),
            (demo, "run_in_workers", in_turn),
            (reproduce, "run_time", accept),
        ):
            stack.enter_context(patch.object(module, name, replacement))
        yield


def _flat_settings() -> dict[str, Any]:
    settings: Settings = PRESETS["digits/sgpa"]
    return PRESETS[KEP].flat() | settings.flat() | PRESETS["kep-svgp/cola"].flat()


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()
