"""Decisions: chosen on validation data only, evaluated on test data only."""

import math
from dataclasses import replace

import pytest
import torch

from probattn.experiments.evaluation.decisions import ALPHA, TARGET, decide
from probattn.inference import Prediction


def answers(n, *, seed, error):
    """Return predictions of three classes, a share of them wrong and less confident."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(n, generator=generator) < error
    confidence = torch.where(wrong, 0.45, 0.9) + 0.05 * torch.rand(n, generator=generator)
    labels = torch.randint(3, (n,), generator=generator)
    said = (labels + wrong) % 3
    rest = ((1 - confidence) / 2)[:, None].expand(n, 3)
    return Prediction(probs=rest.scatter(1, said[:, None], confidence[:, None]), labels=labels)


def test_the_choice_knows_no_test_label_and_the_check_no_validation_label():
    valid, test = answers(400, seed=0, error=0.2), answers(300, seed=1, error=0.2)
    found = decide(valid, test).to_json()
    accepted = test.probs.amax(1) >= found["abstention"]["confidence"]
    right = test.probs.argmax(1) == test.labels
    seen = found["abstention"]["test"]
    assert seen["accepted"] == int(accepted.sum())
    assert seen["risk"] == pytest.approx(1 - float(right[accepted].double().mean()))
    assert 0.5 < seen["coverage"] < 0.9  # the wrong fifth, which doubts, is left out
    assert found["abstention"]["target"] == TARGET
    other = decide(valid, replace(test, labels=(test.labels + 1) % 3)).to_json()
    assert {k: v for k, v in other["abstention"].items() if k != "test"} == {
        k: v for k, v in found["abstention"].items() if k != "test"
    }
    assert other["abstention"]["test"]["risk"] > 0.9


def test_sets_cover_what_they_promise_on_new_answers():
    valid, test = answers(2000, seed=0, error=0.3), answers(20_000, seed=1, error=0.3)
    found = decide(valid, test).to_json()
    spread = math.sqrt(ALPHA * (1 - ALPHA) / 2000)
    assert abs(found["plain"]["coverage"] - (1 - ALPHA)) < 4 * spread
    assert found["plain"]["size"] > 1


def test_decisions_are_repeatable_and_their_sets_are_those_evaluated():
    valid, test = answers(300, seed=0, error=0.1), answers(200, seed=1, error=0.1)
    decisions, again = decide(valid, test), decide(valid, test)
    assert decisions.to_json() == again.to_json()
    for kind, sets in decisions.sets.items():
        assert torch.equal(sets, again.sets[kind])
        covered = sets.gather(1, test.labels[:, None]).double().mean().item()
        found = decisions.to_json()[kind]
        assert (found["coverage"], found["size"]) == (covered, sets.sum(1).double().mean().item())


def test_the_words_say_the_numbers():
    valid, test = answers(400, seed=0, error=0.2), answers(300, seed=1, error=0.2)
    decisions = decide(valid, test)
    found, words = decisions.to_json(), " ".join(decisions.describe())
    for number in (
        f"{100 * found['abstention']['test']['coverage']:.1f} % are answered",
        f"{100 * found['plain']['coverage']:.1f} % of the test data covered",
        f"{found['plain']['size']:.2f} classes on average",
    ):
        assert number in words


def test_abstaining_from_everything_is_said():
    valid, test = answers(20, seed=0, error=0.0), answers(20, seed=1, error=0.0)
    words = decide(valid, test).describe()
    assert words[0].startswith("abstain from everything")
    assert "are answered" not in " ".join(words)
