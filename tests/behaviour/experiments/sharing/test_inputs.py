"""Inputs of predictions from files: what is read as for training, and what cannot be read stops
nothing else."""

import functools
import os

from probattn.experiments.sharing.inputs import checked_text, read_images, read_rows


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


def test_images_that_cannot_be_read_stop_no_others(photos):
    strange = os.fsencode(photos) + b"/\xff.png"
    os.link(photos / "wide.png", strange)  # a name that is not UTF-8
    (photos / "README.md").write_text("no image")
    (photos / "more" / "labels.json").write_text("{}")
    inputs = read_images([photos, photos / "missing.png", photos / ("x" * 300)], shape=(3, 8, 8))
    assert {value.shape for value in inputs.values.values()} == {(3, 8, 8)}
    assert sorted(inputs.values) == sorted(
        [str(photos / "more/fits.png"), str(photos / "wide.png"), str(photos / "\\xff.png")]
    )
    assert len(inputs.failures) == 3
