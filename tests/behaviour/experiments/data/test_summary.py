"""The summary of data that `train` prints: classes in each part, what was left out, copies, and
what the network misses."""

import random
import re

import numpy as np
import pandas as pd
import pytest
from own_files import WORDS
from PIL import Image

from probattn.experiments.config import presets
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.summary import summarise
from probattn.experiments.runs.sources import load_data


def read(preset, path, *changes):
    """The data set of the settings of a preset for a path."""
    settings = presets.preset(preset).with_changes([f"data.path={path}", *changes])
    return load_data(settings, None)


def words(count, *, seed, length=8):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=length)) + f" {seed} {n}" for n in range(count)]


def texts(path, rows):
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(path, index=False)


def write_part(kind, folder, part, numbers, classes):
    """Write numbered inputs, of which every other one has the same of two classes."""
    rows = [(number, classes[number % 2]) for number in numbers]
    if kind == "images":
        for number, label in rows:
            pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            (folder / part / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / part / label / f"{number}.png")
    else:
        form = "the film number {}" if kind == "text" else "{}.25"
        texts(folder / f"{part}.csv", [(form.format(number), label) for number, label in rows])


@pytest.mark.parametrize(
    ("kind", "preset"), [("text", "text/csv"), ("table", "tabular/csv"), ("images", "vit/folder")]
)
@pytest.mark.parametrize(("copies", "conflicts"), [(0, False), (6, False), (6, True), (40, False)])
def test_copies_between_parts_and_other_labels_of_equal_inputs_are_counted(
    tmp_path, kind, preset, copies, conflicts
):
    write_part(kind, tmp_path, "train", range(40), "ab")
    test = [*range(40, 60), *range(copies)]
    write_part(kind, tmp_path, "test", test, "ba" if conflicts else "ab")
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


@pytest.mark.parametrize(
    "change",
    [
        *(str.upper, str.title, "  {}\n".format, lambda text: text.replace(" ", "\u00a0  ")),
        lambda text: text.replace("'", "\u2019"),
    ],
)
def test_texts_that_differ_in_case_space_and_apostrophes_alone_are_copies(tmp_path, change):
    rows = [(f"{text} isn't", "ab"[n % 2]) for n, text in enumerate(words(60, seed=0))]
    texts(tmp_path / "train.csv", rows[:40])
    texts(tmp_path / "valid.csv", rows[40:50])
    texts(tmp_path / "test.csv", rows[50:] + [(change(text), label) for text, label in rows[:6]])
    summary = summarise(read("text/csv", tmp_path))
    assert summary.repeated == 6
    (tmp_path / "valid.csv").unlink()
    texts(tmp_path / "train.csv", rows + [(change(text), label) for text, label in rows])
    (tmp_path / "test.csv").unlink()
    assert summarise(read("text/csv", tmp_path)).repeated == 0  # they stay in one part


@pytest.mark.parametrize(
    ("labels", "word"),
    [(["a"] * 40, "same label"), ([f"id{n}" for n in range(40)], "validation part")],
)
def test_data_without_a_part_or_a_second_class_are_an_error_that_says_which(tmp_path, labels, word):
    texts(tmp_path / "a.csv", list(zip(words(40, seed=0), labels, strict=True)))
    with pytest.raises(DatasetError, match=word):
        read("text/csv", tmp_path / "a.csv")


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


def test_numbers_to_predict_are_counted_once_and_not_called_a_class(tmp_path):
    rng = np.random.default_rng(0)
    pd.DataFrame({"a": rng.normal(size=60), "target": rng.normal(size=60)}).to_csv(
        tmp_path / "a.csv", index=False
    )
    changes = "data.label_column=target", "data.task=regression"
    dataset = read("tabular/csv", tmp_path / "a.csv", *changes)
    (row,) = summarise(dataset).counts.to_dict("records")
    parts = {"training": dataset.train, "validation": dataset.valid, "test": dataset.test}
    assert {name: row[name] for name in parts} == {name: len(part) for name, part in parts.items()}
    assert "class" not in row
