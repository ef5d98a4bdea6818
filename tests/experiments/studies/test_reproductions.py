"""The registry of the papers' tables and figures is complete and consistent."""

import re

import pytest
import torch
from scipy import stats

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data import root as places
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import image_datasets as images
from probattn.experiments.data.images import ood_sets as ood_datasets
from probattn.experiments.data.images.corruptions import CATEGORIES, CORRUPTIONS
from probattn.experiments.data.text import corpora
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.metric_display import DETECTORS, DISPLAY, OOD_DISPLAY, MetricDisplay
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.evaluation.seed_statistics import Cell
from probattn.experiments.studies import paper_tables
from probattn.experiments.studies.against_paper import difference
from probattn.experiments.studies.entries import Column, Model, Part, Row
from probattn.experiments.studies.paper_tables import PaperValue, parse
from probattn.experiments.studies.reproduced_figures import FIGURES
from probattn.experiments.studies.reproductions import ENTRIES, find
from probattn.experiments.studies.scales import SCALES
from probattn.experiments.studies.scored import value_of

PARTS = [(name, part) for name, entry in ENTRIES.items() for part in entry.parts]
IDS = [f"{name} {part.title}" for name, part in PARTS]
UNITS = {1, 10, 100, 1000}
WRONG_AVERAGES = {("Kernel (asym)", "c"), *((model, each) for model in ("Kernel (sym)", "SCGPT") for each in "abcd")}
"""Averages of Table III of the CGP paper that are not those of its rows, as printed."""
DATA = ("cifar10", "cifar100", "imdb", "cola")


def test_all_tables_and_figures_of_both_papers_are_there():
    kep = [*(f"table-{number}" for number in range(1, 10)), *(f"figure-{number}" for number in range(1, 6))]
    cgp = [*(f"table-{number}" for number in range(1, 6)), *(f"figure-{number}" for number in range(1, 5))]
    assert list(ENTRIES) == [*(f"kep-svgp/{name}" for name in kep), *(f"cgp/{name}" for name in cgp)]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_reproduced_or_says_why_not(name):
    entry = ENTRIES[name]
    assert bool(entry.parts) != bool(entry.unavailable)
    assert entry.title
    number = {"1": "I", "2": "II", "3": "III", "4": "IV", "5": "V"} if name.startswith("cgp") else {}
    kind, _, digit = name.partition("/")[2].partition("-")
    assert f"{ {'table': 'Table', 'figure': 'Fig.'}[kind] } {number.get(digit, digit)}," in entry.source
    assert "section" in entry.source or "appendix" in entry.source
    assert bool(entry.figure) == (kind == "figure" and bool(entry.parts))
    assert not entry.figure or entry.figure in FIGURES
    assert len({part.title for part in entry.parts}) == len(entry.parts)


@pytest.mark.parametrize(("name", "part"), PARTS, ids=IDS)
def test_models_methods_and_metrics_of_a_block_are_known(name, part):
    assert {row.model.settings.data.name for row in part.rows.values()} == {part.data}
    assert part.data in DATA
    assert not part.baseline or part.baseline in part.rows
    assert bool(part.corruptions) == bool(part.severities)
    for row in part.rows.values():
        assert row.model.preset in PRESETS
        assert methods.check(row.method) == row.method
        for scale in SCALES.values():
            assert scale.settings(row.model, seed=3).train.seed == 3
    for column in part.columns:
        kind, _, rest = column.subject.partition("/")
        assert column.display.scale in UNITS
        if kind == "log":
            assert (column.metric, column.comparable) == ("seconds", False)
        elif kind == "ood":
            dataset, _, detector = rest.partition("/")
            assert dataset == "mean" or dataset in part.ood
            assert detector == "average" or detector in DETECTORS
            assert column.display.higher_is_better == OOD_DISPLAY[column.metric].higher_is_better
        else:
            assert kind in ("test", "domain", "shift")
            assert kind != "shift" or (part.corruptions and rest in ("all", *CATEGORIES))
            assert column.display.higher_is_better == DISPLAY[column.metric].higher_is_better
    assert set(part.ood) <= set(ood_datasets.NAMES) & set(places.PLACES)


@pytest.mark.parametrize(("name", "part"), PARTS, ids=IDS)
def test_the_papers_numbers_are_in_their_units_and_have_a_row_of_ours(name, part):
    assert bool(part.paper) != bool(ENTRIES[name].figure)
    for row in part.paper:
        assert row in {each.paper or own for own, each in part.rows.items()}
    for row in part.rows if part.paper else ():
        assert set(part.paper_row(row)) == {column.key for column in part.columns}
    for numbers in part.paper.values():
        for column in part.columns:
            value, scale = numbers[column.key], column.display.scale
            largest = {"nll": 12, "brier": 2, "seconds": 2000}.get(column.metric, 1)
            assert 0 < value.mean <= scale * largest
            assert value.mean > scale * largest / 2000
            assert value.std is None or 0 <= value.std < max(value.mean, 0.1 * scale)


def test_numbers_of_different_tables_agree_where_the_papers_repeat_them():
    """A second check of the transcription: the same experiment has the same numbers wherever it is."""
    first = {data: parse(text, paper_tables.KEP_COLUMNS) for data, text in paper_tables.KEP_1.items()}
    seventh = {data: parse(text, paper_tables.KEP_COLUMNS) for data, text in paper_tables.KEP_7.items()}
    for data, rows in seventh.items():
        assert {name: values for name, values in rows.items() if name in first[data]} == {
            name: values for name, values in first[data].items() if name in rows
        }
    times = ("accuracy", "nll", "seconds")
    for data in ("imdb", "cola"):
        for name, values in parse(paper_tables.KEP_4[data], times).items():
            assert {key: values[key] for key in times[:2]} == {key: first[data][name][key] for key in times[:2]}
    assert parse(paper_tables.KEP_6, paper_tables.KEP_COLUMNS)["W_1 of N × 2N"] == first["cifar10"]["KEP-SVGP"]
    pairs, singles = parse(paper_tables.KEP_5, paper_tables.KEP_COLUMNS)["MSP"], first["cola"]["MSP"]
    assert {key: value.mean for key, value in pairs.items()} == {key: value.mean for key, value in singles.items()}
    for metric in paper_tables.CGP_METRICS:
        second, fourth = (parse(table[metric], "abcde") for table in (paper_tables.CGP_2, paper_tables.CGP_4))
        assert second["SGPA"] == fourth["SGPA"]
        assert second["CGPT"] == fourth["CGPT, α = 0.5 → 1"]
    detectors = [parse(text, "abcd") for text in paper_tables.CGP_3.values()]
    for model, average in detectors[-1].items():
        for column, value in average.items():
            mean = sum(each[model][column].mean for each in detectors[:-1]) / 4
            if (model, column) not in WRONG_AVERAGES:
                assert value.mean == pytest.approx(mean, abs=0.015), (model, column)


def test_a_text_with_a_missing_number_or_a_row_twice_is_refused():
    assert parse("a | 1.5±0.1 –\nb | 2 3", "xy") == {
        "a": {"x": PaperValue(1.5, 0.1)},
        "b": {"x": PaperValue(2.0), "y": PaperValue(3.0)},
    }
    with pytest.raises(ValueError, match="row 'a' has 1 numbers for 2 columns"):
        parse("a | 1", "xy")
    with pytest.raises(ValueError, match="row 'a' is there twice"):
        parse("a | 1\na | 2", "x")


@pytest.mark.parametrize(
    ("name", "guess"), [("kep-svgp/tabel-1", "kep-svgp/table-1"), ("cgp/figure3", "cgp/figure-3"), ("zebra", "known:")]
)
def test_an_unknown_name_suggests_near_ones(name, guess):
    with pytest.raises(SettingsError, match=re.escape(guess)) as caught:
        find(name)
    assert repr(name) in str(caught.value)
    assert "probattn reproduce --list" in str(caught.value)


def test_the_reduced_size_is_smaller_and_named():
    model = Model("kep-svgp/cifar10-paper", ("layer.eta=1",))
    full, cpu = (scale.settings(model, seed=1) for scale in SCALES.values())
    assert full == model.settings.with_changes(["train.seed=1"])
    assert (cpu.epochs, cpu.network.dim, cpu.layer.eta, cpu.train.seed) == (10, 128, 1.0, 1)
    assert [scale.label for scale in SCALES.values()] == ["", "reduced (cpu)"]
    with pytest.raises(SettingsError, match="no size for kep-svgp/svhn"):
        SCALES["cpu"].settings(Model("kep-svgp/svhn-softmax"), seed=0)


def test_every_reduced_run_is_shorter_than_the_papers():
    models = {row.model for _, part in PARTS for row in part.rows.values()}
    for model in models:
        assert SCALES["cpu"].settings(model, seed=0).epochs < model.settings.epochs


ACCURACY = MetricDisplay("ACC", 100, higher_is_better=True)


def test_the_interval_of_a_difference_is_that_of_welch():
    ours, theirs = [0.83, 0.85, 0.84], [84.0, 84.4, 85.0, 83.5, 86.0]
    paper = PaperValue(float(torch.tensor(theirs).mean()), float(torch.tensor(theirs).std()))
    cell = Cell(tuple(ours), sum(ours) / 3, float(torch.tensor(ours, dtype=torch.float64).std()))
    found = difference(cell, paper, scale=100, trials=5)
    expected = stats.ttest_ind([100 * each for each in ours], theirs, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-5)
    assert found.interval == "welch"
    alone = difference(cell, paper._replace(std=None), scale=100, trials=5)
    expected = stats.ttest_1samp([100 * each for each in ours], paper.mean).confidence_interval(0.95)
    shifted = (expected.low - paper.mean, expected.high - paper.mean)
    assert (alone.low, alone.high) == pytest.approx(shifted, rel=1e-5)
    assert alone.interval == "own seeds"
    assert difference(cell, paper, scale=100, trials=None).interval == "own seeds"
    one = difference(Cell((0.84,), 0.84), paper, scale=100, trials=5)
    assert (one.low, one.interval, one.is_significant) == (None, "", False)
    assert one.value == pytest.approx(84 - paper.mean)


def test_columns_take_their_values_from_the_scores():
    shift = {name: {level: {"ece": level + index / 10} for level in (1, 5)} for index, name in enumerate(CORRUPTIONS)}
    detection = {
        "svhn": {key: {"auroc": 0.1 * number} for number, key in enumerate(DETECTORS, 1)},
        "lsun": {key: {"auroc": 0.2} for key in DETECTORS},
        "textures": {key: {"auroc": 0.9} for key in DETECTORS},
    }
    scores = Scores({"ece": 0.5}, {"out-of-domain": {"ece": 0.25}}, shift, detection)
    names = ("gaussian_noise", "shot_noise", "fog")
    part = Part("", {}, (), corruptions=names, severities=(5,), ood=("svhn", "lsun"))

    def value(subject, metric="ece", block=part):
        return value_of(Column(subject, metric, ACCURACY), block, scores, {"seconds": 7.0})

    places_of = {name: list(CORRUPTIONS).index(name) for name in names}
    assert value("test") == 0.5
    assert value("domain/out-of-domain") == 0.25
    assert value("log", "seconds") == 7.0
    assert value("shift/noise") == pytest.approx(5 + (places_of["gaussian_noise"] + places_of["shot_noise"]) / 20)
    assert value("shift/all") == pytest.approx(5 + sum(places_of.values()) / 30)
    assert value("ood/svhn/max_softmax", "auroc") == pytest.approx(0.2)
    assert value("ood/mean/energy", "auroc") == pytest.approx(0.3)
    assert value("ood/mean/average", "auroc") == pytest.approx((0.25 + 0.2) / 2)
    assert value("shift/blur") is None
    assert value("ood/places/energy", "auroc") is None
    incomplete = Part("", {}, (), ood=("svhn", "letters"))
    assert value("ood/mean/energy", "auroc", incomplete) is None


@pytest.mark.parametrize("name", places.PLACES)
def test_places_are_those_that_the_loaders_look_in(name, tmp_path, no_network, monkeypatch):
    text = places.missing(name, tmp_path)
    assert str(tmp_path) in text
    loaders = {"cola": corpora.read_cola, "imdb": corpora.read_imdb}
    loaders |= {each: lambda root: images.load(name, root=root) for each in images.NAMES}
    options = {"size": 32, "channels": 3, "in_distribution": ""}
    load = loaders.get(name, lambda root: ood_datasets.load(name, root=root, **options))
    with pytest.raises(DatasetError) as caught:
        load(tmp_path)
    paths = places.PLACES[name]
    for path in paths:
        assert path.removesuffix("/train").split("/")[-1].partition("_1")[0] in str(caught.value)
        (tmp_path / path).mkdir(parents=True)
        assert places.missing(name, tmp_path) == ""
        (tmp_path / path).rmdir()


def test_data_without_files_are_never_missing(tmp_path):
    assert {places.missing(name, tmp_path / "no-folder") for name in ("digits", "letters", "patches")} == {""}


def test_rows_of_one_model_share_its_runs():
    softmax = {row.model for row in ENTRIES["kep-svgp/table-1"].parts[0].rows.values() if row.method != "posterior"}
    assert softmax == {Model("kep-svgp/cifar10-softmax", ("train.monitor=accuracy",))}
    assert Row(Model("a")) == Row(Model("a"))
