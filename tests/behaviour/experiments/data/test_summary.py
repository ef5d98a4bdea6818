"""What `train` prints of data: classes in each part, what was left out, copies, and what the
network misses."""

import random
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from probattn.experiments.config import presets
from probattn.experiments.data.summary import summarise
from probattn.experiments.runs.sources import load_data

WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "ran",
    "away",
    "from",
    "good",
    "bad",
    "films",
)
WORDS += ("with", "long", "slow", "plots")


def read(preset, path, *changes):
    """The data set of the settings of a preset for a path."""
    settings = presets.preset(preset).with_changes([f"data.path={path}", *changes])
    return load_data(settings, None)


def words(count, *, seed, length=8):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=length)) + f" {seed} {n}" for n in range(count)]


def texts(path, rows):
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(path, index=False)


def images(folder, kind, pixels):
    for number, image in enumerate(pixels):
        place = folder / kind[number % len(kind)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")


def make(kind, folder, *, copies, conflicts):
    """A training and a test part, of which some test inputs are training inputs, with or without
    their labels."""
    generator = np.random.default_rng(0)
    if kind == "images":
        pixels = generator.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
        images(folder / "train", "ab", pixels[:40])
        test = np.concatenate([pixels[40:], pixels[:copies]])
        images(folder / "test", "ba" if conflicts else "ab", test)
        return "vit/folder"
    if kind == "texts":
        rows = [(text, "ab"[n % 2]) for n, text in enumerate(words(60, seed=0))]
    else:
        numbers = generator.normal(size=60)
        rows = [(f"{number:.4f}", "ab"[n % 2]) for n, number in enumerate(numbers)]
    copied = [
        (text, "ab"["ba".index(label) if conflicts else "ab".index(label)])
        for text, label in rows[:copies]
    ]
    texts(folder / "train.csv", rows[:40])
    texts(folder / "test.csv", rows[40:] + copied)
    return "text/csv" if kind == "texts" else "tabular/csv"


@pytest.mark.parametrize("kind", ["texts", "table", "images"])
@pytest.mark.parametrize(("copies", "conflicts"), [(0, False), (6, False), (6, True), (40, False)])
def test_copies_between_parts_and_other_labels_of_equal_inputs_are_counted(
    tmp_path, kind, copies, conflicts
):
    preset = make(kind, tmp_path, copies=copies, conflicts=conflicts)
    summary = summarise(read(preset, tmp_path, "data.valid_share=0.1"))
    assert summary.repeated <= copies
    train, valid, test = (
        summary.counts[name].iloc[-1] for name in ("training", "validation", "test")
    )
    assert (train + valid, test) == (40, 20 + copies)
    notes = " ".join(summary.notes)
    assert (f"{summary.repeated} of {test} test" in notes) == (summary.repeated > 0)
    assert ("another label" in notes) == conflicts
    if copies == 40:  # all training and validation examples
        assert summary.repeated == train


def test_rows_that_are_equal_after_decoding_are_equal(tmp_path):
    rows = pd.DataFrame(
        {"a": [f"{n}.5" for n in range(40)], "c": ["x", "y"] * 20, "label": ["u", "v"] * 20}
    )
    other = pd.DataFrame(
        {"a": [f"{n}.50" for n in range(20)], "c": ["x\u200b", " y"] * 10, "label": ["u", "v"] * 10}
    )
    rows.to_csv(tmp_path / "train.csv", index=False)
    rows[:10].to_csv(tmp_path / "valid.csv", index=False)
    other.to_csv(tmp_path / "test.csv", index=False)
    summary = summarise(read("tabular/csv", tmp_path))
    assert summary.repeated == 20
    assert "10 of 10 validation" in " ".join(summary.notes)


def test_classes_have_their_shares_and_rare_ones_and_those_called_none_are_named(tmp_path):
    labels = ["a"] * 40 + ["b"] * 20 + ["NA"] * 5 + ["once"] + ["twice"] * 2
    texts(tmp_path / "a.csv", list(zip(words(len(labels), seed=0), labels, strict=True)))
    dataset = read("text/csv", tmp_path / "a.csv")
    summary = summarise(dataset)
    table = summary.counts.set_index("class")
    assert set(table.index) == {*dataset.classes, "all"}
    for name in dataset.classes:
        for part, examples in (
            ("training", dataset.train),
            ("validation", dataset.valid),
            ("test", dataset.test),
        ):
            assert table.loc[name, part] == (examples.labels == dataset.classes.index(name)).sum()
    notes = " ".join(summary.notes)
    assert all(name in notes for name in ("'once'", "'twice'", "'NA'"))
    assert "a " in str(summary)


def test_files_that_are_left_out_are_said(tmp_path):
    for name in ("train", "notes"):
        texts(
            tmp_path / f"{name}.csv",
            [(text, "ab"[n % 2]) for n, text in enumerate(words(30, seed=0))],
        )
    notes = read("text/csv", tmp_path).notes
    assert any("notes.csv" in note for note in notes)
    for part in ("train", "valid", "test"):
        (example,) = [note for note in notes if f"the {part} part begins" in note]
        line, label = re.search(r"train\.csv, line (\d+): '(.)'", example).groups()
        assert label == "ab"[int(line) % 2]


def test_shares_of_texts_that_are_cut_and_of_tokens_that_are_unknown_are_said(tmp_path):
    rows = [(" ".join(WORDS[: 4 + n % 10]), "ab"[n % 2]) for n in range(60)]
    texts(tmp_path / "train.csv", rows)
    texts(tmp_path / "valid.csv", [(f"new{n} the cat unseen{n}", "ab"[n % 2]) for n in range(4)])
    texts(
        tmp_path / "test.csv",
        [(f"zzz{n}", "ab"[n % 2]) for n in range(3)] + [(" ".join(WORDS[:16]), "a")],
    )
    dataset = read("text/csv", tmp_path, "network.max_length=8")
    valid, test = dataset.unseen(dataset.valid), dataset.unseen(dataset.test)
    assert valid.to_numpy().tolist() == [[0, 0.5]] * 4
    assert test.to_numpy().tolist() == [[0, 1]] * 3 + [[0.5, 0]]
    train = dataset.unseen(dataset.train)
    assert (train.iloc[:, 0] > 0).sum() == sum(len(text.split()) > 8 for text, _ in rows)
    notes = [note for note in summarise(dataset).notes if "test part:" in note]
    assert ["cut" in note and "12.5%" in note for note in notes] == [True, False]
    assert ["unknown" in note and "75.0%" in note for note in notes] == [False, True]
