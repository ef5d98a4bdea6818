"""Inputs of predictions from files: what is read as for training, and what cannot be read stops
nothing else."""

import functools

from probattn.experiments.sharing.inputs import checked_text, read_rows


def test_half_a_surrogate_pair_stops_no_other_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "good \\ud83d"}\n{"text": "\\ud83d\\ude00 good"}\n'
        'no json\n{"text": 3}\n{"text": "x"}\n'
    )
    inputs = read_rows(
        [path], functools.partial(checked_text, column="text"), texts=["bad \udcff", "bad"]
    )
    assert list(inputs.values.values()) == ["bad", "\U0001f600 good", "x"]
    assert set(inputs.failures) == {"text 1", *(f"{path}:{line}" for line in (1, 3, 4))}
    assert "surrogate" in inputs.failures["text 1"]
