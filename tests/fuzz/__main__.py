"""``python -m tests.fuzz``: run the fuzzers until the time is over and print each seed; exit with 1 after a failure."""

import argparse
import collections
import itertools
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.arguments import fuzz_arguments
from tests.fuzz.kills import fuzz_kills
from tests.fuzz.layers import fuzz_layers

FUZZERS: dict[str, Callable[[random.Random, Path], str]] = {
    "kills": fuzz_kills,
    "arguments": fuzz_arguments,
    "layers": lambda chosen, folder: fuzz_layers(chosen),
}


def main() -> int:
    """Parse the arguments, run the fuzzers one after another, and print the number of tries and failures of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="time after which no further try begins (10)")
    parser.add_argument("--tries", type=int, default=-1, help="number of tries; default: until the time is over")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="seed of the first try")
    parser.add_argument("--only", nargs="+", choices=FUZZERS, default=list(FUZZERS), help="names of fuzzers")
    options = parser.parse_args()
    began, tries, failures = time.monotonic(), collections.Counter(), collections.Counter()
    for number in itertools.count(options.seed):
        if tries.total() == options.tries or time.monotonic() - began >= 60 * options.minutes:
            break
        name = options.only[number % len(options.only)]
        tries[name] += 1
        try:
            with tempfile.TemporaryDirectory(prefix="probattn-fuzz-") as folder:
                print(f"{name}, seed {number}: {FUZZERS[name](random.Random(number), Path(folder))}", flush=True)
        except Exception:
            failures[name] += 1
            print(f"{name}, seed {number}: FAILED; repeat with --only {name} --seed {number} --tries 1", flush=True)
            traceback.print_exc()
    for name in options.only:
        print(f"{name}: {tries[name]} tries, {failures[name]} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
