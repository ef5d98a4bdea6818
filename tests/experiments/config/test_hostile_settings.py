"""Settings of unknown origin."""

import random

from tests.fuzz.settings import fuzz_settings


def test_mutated_settings_are_refused_or_survive_every_conversion():
    for seed in range(300):
        fuzz_settings(random.Random(seed))
