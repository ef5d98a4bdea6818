"""Rows of a comparison, from folders of evaluated runs."""

import math

import pytest
import torch
from evaluated_runs import run, scored, store, write_metrics

from probattn.experiments.config import presets
from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.sealed_files import DamagedFileError, read_json, write_json
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.runs.folder import claim
from probattn.experiments.studies import collect, compare
from probattn.inference import Prediction, metrics


def test_runs_of_one_preset_are_a_row_with_a_score_a_seed(tmp_path):
    folders = [
        run(tmp_path / f"{layer}-{seed}", f"digits/{layer}", seed=seed, methods={"posterior": scored(value + seed)})
        for layer, value in (("softmax", 0.5), ("kep-svgp", 0.25))
        for seed in (0, 3)
    ]
    found = collect.rows(folders)
    assert {row: {s: v.test["accuracy"] for s, v in seeds.items()} for row, seeds in found.scores.items()} == {
        "digits/softmax": {0: 0.5, 3: 3.5},
        "digits/kep-svgp": {0: 0.25, 3: 3.25},
    }
    assert found.baselines == {"digits/kep-svgp": "digits/softmax"}
    assert found.groups == {"single models": ["digits/softmax", "digits/kep-svgp"]}


def test_the_values_of_each_seed_as_csv():
    nan = math.nan
    scores = {
        "=one": {
            0: Scores({"nll": 0.1 + 0.2}, {"far": {"nll": 1.0}}, {"fog": {1: {"nll": 2.0}, 3: {"nll": 4.0}}}),
            3: Scores({"nll": 0.5, "auroc": nan}, ood={"letters": {"entropy": {"auroc": 0.75}}}),
        },
        "one, ensemble of 2": {0: Scores({"nll": 0.25})},
    }
    rows = collect.Rows(scores, {}, {collect.SINGLE: ["=one"], collect.ENSEMBLES: ["one, ensemble of 2"]}, ["=one"])
    lines = [
        "row,seed,subject,detector,metric,value",
        "'=one,0,test,,nll,0.30000000000000004",
        "'=one,0,domain-far,,nll,1.0",
        "'=one,0,shift,,nll,3.0",
        "'=one,3,test,,nll,0.5",
        "'=one,3,ood-letters,entropy,auroc,0.75",
    ]
    assert compare.seeds_csv(rows).splitlines() == lines


def test_each_method_is_a_row_compared_with_the_twin_by_the_same_method(tmp_path):
    by = {"posterior": scored(0.1), "mc-dropout": scored(0.2), "laplace+temperature": scored(0.3)}
    soft, kep = (run(tmp_path / layer, f"digits/{layer}", methods=by) for layer in ("softmax", "kep-svgp"))
    found = collect.rows([soft, kep])
    names = ["", " + MC dropout", " + KFLLLA + temperature scaling"]
    assert list(found.scores) == [f"digits/{layer}{name}" for layer in ("softmax", "kep-svgp") for name in names]
    assert found.scores["digits/kep-svgp + KFLLLA + temperature scaling"][0] == Scores({"accuracy": 0.3})
    above_softmax = {f"digits/softmax{name}": "digits/softmax" for name in names[1:]}
    assert found.baselines == above_softmax | {f"digits/kep-svgp{name}": f"digits/softmax{name}" for name in names}


def test_a_method_that_the_twin_lacks_with_some_seed_is_compared_with_the_plain_twin(tmp_path):
    kinds = {
        "softmax": [("mc-dropout", "temperature"), ("temperature",)],
        "kep-svgp": [("mc-dropout", "temperature", "refit", "refit+temperature")] * 2,
    }
    folders = []
    for layer, seeds in kinds.items():
        for seed, names in enumerate(seeds):
            by = {name: scored(0.1) for name in ("posterior", *names)}
            folders.append(run(tmp_path / f"{layer}-{seed}", f"digits/{layer}", seed=seed, methods=by))
    baselines, row = collect.rows(folders).baselines, "digits/kep-svgp + "
    for name in ("temperature scaling", "guide refitted + temperature scaling"):
        assert baselines[row + name] == "digits/softmax + temperature scaling"
    assert baselines[f"{row}MC dropout"] == baselines[f"{row}guide refitted"] == "digits/softmax"


def test_without_the_twin_there_is_no_baseline(tmp_path):
    found = collect.rows([run(tmp_path / "kep", "digits/kep-svgp", methods={"posterior": scored(0.1)})])
    assert found.baselines == {}


def evaluated(folder, name, *changes, seed=0):
    return run(folder, name, *changes, seed=seed, methods={"posterior": scored(0.1)})


def test_a_run_is_paired_with_the_twin_of_its_own_settings(tmp_path):
    folders = [
        evaluated(tmp_path / "soft", "digits/softmax"),
        evaluated(tmp_path / "soft-accuracy", "digits/softmax", "train.monitor=accuracy"),
        evaluated(tmp_path / "kep", "digits/kep-svgp", "train.monitor=accuracy"),
    ]
    found = collect.rows(folders)
    accuracy = "digits/softmax (train.monitor=accuracy)"
    assert list(found.scores) == ["digits/softmax", accuracy, "digits/kep-svgp (train.monitor=accuracy)"]
    assert found.baselines == {"digits/kep-svgp (train.monitor=accuracy)": accuracy}
    found = collect.rows([folders[0], folders[2]])
    assert list(found.scores) == ["digits/softmax", "digits/kep-svgp (train.monitor=accuracy)"]
    assert found.baselines == {}
    found = collect.rows(folders[1:])  # a change that both have needs no label
    assert list(found.scores) == ["digits/softmax", "digits/kep-svgp"]
    assert found.baselines == {"digits/kep-svgp": "digits/softmax"}


def test_twins_may_differ_in_settings_that_were_tuned_for_each(tmp_path):
    folders = [
        evaluated(tmp_path / "soft", "digits/softmax", "network.dropout=0.3"),
        evaluated(tmp_path / "kep", "digits/kep-svgp", "train.kl_weight=0.1"),
    ]
    assert collect.rows(folders).baselines == {}
    found = collect.rows(folders, tuned={"network.dropout"}, note="Chosen.")
    ((row, twin),) = found.baselines.items()
    assert row.startswith("digits/kep-svgp")
    assert twin == "digits/softmax (network.dropout=0.3)"
    assert {comparison.note for comparison in compare.comparisons(found).values()} == {"n = 360. Chosen."}


@pytest.mark.parametrize("epochs", [7, 40])
def test_a_warm_start_belongs_to_the_layer(tmp_path, epochs):
    folders = []
    for name in ("digits/softmax", "digits/cgp", "digits/sgpa-tempered"):
        settings = presets.preset(name).with_total_epochs(epochs)
        folders.append(tmp_path / name)
        with claim(folders[-1], settings, name=name, device="cpu", data={}, resume=False):
            write_metrics(folders[-1], methods={"posterior": scored(0.1)})
    found = collect.rows(folders)
    assert found.baselines == dict.fromkeys(["digits/cgp", "digits/sgpa-tempered"], "digits/softmax")
    longer = evaluated(tmp_path / "longer", "digits/softmax", "train.epochs=41")
    assert collect.rows([longer, *folders[1:]]).baselines == {}


@pytest.mark.parametrize(
    ("change", "paired"),
    [
        ("layer.rank=4", True),
        ("train.kl_weight=0.5", True),
        ("train.num_particles=2", True),
        ("train.accelerator=cpu", True),
        ("train.lr=0.01", False),
        ("network.dim=32", False),
        ("data.limit=100", False),
        ("train.epochs=20", False),
    ],
)
def test_settings_outside_of_the_layer_must_agree(tmp_path, change, paired):
    folders = [evaluated(tmp_path / "soft", "digits/softmax"), evaluated(tmp_path / "kep", "digits/kep-svgp", change)]
    assert bool(collect.rows(folders).baselines) is paired


def test_the_plain_softmax_run_is_preferred_as_twin(tmp_path):
    folders = [
        evaluated(tmp_path / "dropout", "digits/softmax", "layer.dropout=0.1"),
        evaluated(tmp_path / "plain", "digits/softmax"),
        evaluated(tmp_path / "kep", "digits/kep-svgp"),
    ]
    assert collect.rows(folders).baselines == {"digits/kep-svgp": "digits/softmax"}


def test_runs_that_were_stopped_early_are_labelled(tmp_path):
    def stopped(seed, **content):
        common = {"methods": {"posterior": scored(0.1)}, "best_epoch": 20}
        return run(tmp_path / str(seed), "digits/softmax", seed=seed, **common, **content)

    early, whole, old = stopped(0, epochs_done=30), stopped(1, epochs_done=40), stopped(2)
    assert list(collect.rows([early]).scores) == ["digits/softmax (30 of 40 epochs)"]
    assert list(collect.rows([early, whole, old]).scores) == ["digits/softmax (seed 0: 30 of 40 epochs)"]
    assert list(collect.rows([whole, old]).scores) == ["digits/softmax"]


def test_runs_that_patience_ended_are_finished(tmp_path):
    def ended(patience):
        content = {"methods": {"posterior": scored(0.1)}, "best_epoch": 20, "epochs_done": 30}
        return run(tmp_path / str(patience), "digits/softmax", f"train.patience={patience}", **content)

    assert list(collect.rows([ended(10)]).scores) == ["digits/softmax"]
    assert list(collect.rows([ended(11)]).scores) == ["digits/softmax (30 of 40 epochs)"]


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("digits/kep-svgp-ee", "digits/softmax"),
        ("kep-svgp/cifar100", "kep-svgp/cifar100-softmax"),
        ("cgp/cifar10-sparse-paper", "cgp/cifar10-softmax"),
        ("cgp/cifar10-softmax", "cgp/cifar10-softmax"),
        ("mine/other", None),
    ],
)
def test_the_twin_of_a_preset(name, twin):
    assert presets.twin(name) == twin


def test_every_preset_has_a_twin_of_the_same_data_network_and_epochs():
    without = {name for name in presets.PRESETS if presets.twin(name) is None}
    assert without == {"vit/folder", "image/hf", "text/csv", "text/jsonl", "text/hf", "tabular/csv"}  # by --layer
    for name, settings in presets.PRESETS.items():
        if name in without:
            continue
        twin = presets.preset(presets.twin(name))
        assert (twin.data, twin.network, twin.epochs) == (settings.data, settings.network, settings.epochs)
        own = ["train.monitor"] if name.startswith("kep-svgp/") and name.endswith("-paper") else []
        assert collect.differ_in_layer_only(twin, settings, tuned=own), name


def test_runs_that_differ_in_more_than_the_seed_are_rows_of_their_own(tmp_path):
    by = {"posterior": scored(0.1)}
    wide = run(tmp_path / "wide", "digits/softmax", "network.dim=128", methods=by)
    plain = [run(tmp_path / str(seed), "digits/softmax", seed=seed, methods=by) for seed in (0, 1)]
    found = collect.rows([wide, *plain])
    assert list(found.scores) == ["digits/softmax (network.dim=128)", "digits/softmax"]
    assert set(found.scores["digits/softmax"]) == {0, 1}


def test_changes_that_all_runs_have_are_not_in_their_names(tmp_path):
    folders = [
        evaluated(tmp_path / "one", "digits/softmax", "train.lr=0.1", "network.dropout=0.3"),
        evaluated(tmp_path / "two", "digits/softmax", "train.lr=0.1"),
    ]
    assert collect.rows(folders).plain == ["digits/softmax (network.dropout=0.3)", "digits/softmax"]


def test_runs_of_data_in_another_place_are_of_one_kind(tmp_path):
    changes = "data.label_column=y", "data.path=/some where/a.csv"
    one = run(tmp_path / "one", "tabular/csv", *changes, methods={"posterior": scored(0.5)})
    two = run(tmp_path / "two", "tabular/csv", changes[0], seed=1, methods={"posterior": scored(0.6)})
    assert collect.rows([one, two]).scores.keys() == {"tabular/csv"}


def test_two_runs_of_one_seed_are_named(tmp_path):
    folders = [run(tmp_path / each, "digits/softmax", methods={"posterior": scored(0.1)}) for each in "ab"]
    with pytest.raises(SettingsError, match="b: another run of digits/softmax has seed 0 already"):
        collect.rows(folders)


def test_a_run_that_was_not_evaluated(tmp_path):
    with pytest.raises(SettingsError, match=r"kep was not evaluated; .*probattn evaluate .*kep"):
        collect.rows([run(tmp_path / "kep", "digits/kep-svgp")])


def test_broken_metrics(tmp_path):
    folder = run(tmp_path / "kep", "digits/kep-svgp")
    write_json(folder / "metrics.json", {"run": "x"})
    with pytest.raises(SettingsError, match=r"metrics\.json cannot be used.*evaluate the run again"):
        collect.rows([folder])


def test_edited_metrics_are_not_compared(tmp_path):
    folder = run(tmp_path / "kep", "digits/kep-svgp", methods={"posterior": scored(0.5)})
    path = folder / "metrics.json"
    path.write_text(path.read_text().replace("0.5", "0.9"))
    with pytest.raises(DamagedFileError, match=r"metrics\.json is damaged or was edited: .*; evaluate the run again"):
        collect.rows([folder])


def test_nothing_to_compare():
    with pytest.raises(SettingsError, match="nothing to compare"):
        collect.rows([])


def test_the_ensemble_of_runs_is_the_mean_of_their_probabilities(tmp_path):
    torch.manual_seed(0)
    labels, folders, probs = torch.randint(3, (40,)), [], []
    for seed in range(3):
        sets = ["valid", "test", *(["ood/letters"] if seed else [])]
        options = {"methods": {"posterior": scored(0.1)}, "data": dict.fromkeys(sets, "digest")}
        folders.append(run(tmp_path / str(seed), "digits/softmax", seed=seed, **options))
        probs.append(torch.randn(40, 3).softmax(-1))
        for name in sets:
            store(folders[-1], name, Prediction(probs=probs[-1], expected_entropy=torch.zeros(40), labels=labels))
    found = collect.rows(folders)
    assert found.groups["ensembles"] == ["digits/softmax, ensemble of 3"]
    mixed = found.scores["digits/softmax, ensemble of 3"][0]
    assert mixed == Scores(metrics.evaluate(sum(probs) / 3, labels))  # not all have letters


def test_one_run_is_no_ensemble(tmp_path):
    folder = run(tmp_path / "0", "digits/softmax", methods={"posterior": scored(0.1)})
    for name in ("valid", "test"):
        store(folder, name, Prediction(probs=torch.tensor([[0.5, 0.5]]), labels=torch.tensor([0])))
    assert "ensembles" not in collect.rows([folder]).groups


def test_mean_shift_is_over_all_corruptions_and_severities():
    shift = {
        "fog": {1: {"nll": 1.0, "auroc": math.nan}, 5: {"nll": 2.0, "auroc": 0.5}},
        "snow": {1: {"nll": 6.0, "auroc": 0.7}},
    }
    assert Scores({}, shift=shift).mean_shift == pytest.approx({"nll": 3.0, "auroc": math.nan}, nan_ok=True)
    assert Scores({}).mean_shift == {}


def test_results_which_say_not_what_they_were_computed_from_are_refused(tmp_path):
    folder = evaluated(tmp_path / "kep", "digits/kep-svgp")
    content = read_json(folder / "metrics.json")
    del content["provenance"]
    write_json(folder / "metrics.json", content)
    with pytest.raises(SettingsError, match=rf"{folder}.*cannot be used.*probattn evaluate {folder}"):
        collect.rows([folder])


def test_runs_of_different_data_are_not_compared(tmp_path):
    names = ("digits/softmax", "kep-svgp/cifar10-softmax")
    folders = [run(tmp_path / str(n), name, methods={"posterior": scored(0.5)}) for n, name in enumerate(names)]
    with pytest.raises(SettingsError, match="different data, digits, cifar10: compare the runs of each separately"):
        collect.rows(folders)
