"""Sweeps of a study: their syntax, the choice on validation data, and that other values never meet the test data."""

import csv
import json
import math

import pytest

from probattn.experiments.config import presets
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.sealed_files import read_json
from probattn.experiments.runs import train
from probattn.experiments.studies import compare, study, sweep, sweep_tables
from probattn.inference.training.run_log import read_log

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,1,10", ["0.1", "1", "10"]),
        ("1", ["1"]),
        ("none, 0.5", ["none", "0.5"]),
        ('{"a": 1, "b": [2, 3]},none', ['{"a": 1, "b": [2, 3]}', "none"]),
        ('{"a}": 1, "b,": 2},{"\\",": 3}', ['{"a}": 1, "b,": 2}', '{"\\",": 3}']),
        ('"0,1","2\\"3",4', ["0,1", '2"3', "4"]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotation_marks(text, values):
    assert sweep.split_values(text) == values


@pytest.mark.parametrize("text", ["", "1,,2", "1,", '{"a": 1', '"a', "1}", '"a"b'])
def test_lists_that_cannot_be_split_are_refused(text):
    with pytest.raises(SettingsError, match="--sweep"):
        sweep.split_values(text)


def test_a_sweep_is_for_one_preset_or_for_all_and_several_form_a_grid(tmp_path):
    texts = ["train.lr=1e-3,1e-2", f"{KEP}:train.kl_weight=0.1,1,10"]
    found = sweep.parse(texts, [KEP, SOFTMAX])
    assert found == {
        KEP: {"train.lr": ("1e-3", "1e-2"), "train.kl_weight": ("0.1", "1", "10")},
        SOFTMAX: {"train.lr": ("1e-3", "1e-2")},
    }
    planned = sweep.plan_sweeps(found, seeds=2, epochs=None, out=tmp_path)
    assert {name: len(each) for name, each in planned.items()} == {KEP: 6, SOFTMAX: 2}
    last = planned[KEP][-1]
    assert last.changes == ("train.lr=1e-2", "train.kl_weight=10")
    assert [job.settings.train.seed for job in last.jobs] == [0, 1]
    assert (last.jobs[0].settings.train.lr, last.jobs[0].settings.train.kl_weight) == (0.01, 10)
    assert sweep.parse([f"{KEP}:train.lr=1e-3,1e-2"], [KEP, SOFTMAX]).keys() == {KEP}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.kl_weight", "KEY=VALUE"),
        (f"{KEP}:=1,2", "KEY=VALUE"),
        ("digits/kep-svg:train.lr=0.1", "'digits/kep-svg' is no preset of this study; did you mean digits/kep-svgp"),
        ("train.seed=0,1", "train.seed cannot be swept.*--sweep-seeds"),
        ("train.monitor=nll,ece", "train.monitor cannot be swept"),
        ("data.seed=1,2", "validation data"),
        ("train.kl_weigth=0.1,1", "unknown key 'train.kl_weigth'; did you mean train.kl_weight"),
        ("train.kl_weight=0.1,-1", "train.kl_weight=-1.*kl_weight=-1.0"),
        ("train.kl_weight=0.1,much", "train.kl_weight: .*'much'"),
        ("layer.rank=1,2", "digits/softmax, layer.rank=1: unknown key 'layer.rank'"),
        ("train.lr=0.001,1e-3", "train.lr=0.001 and train.lr=1e-3 are the same settings"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(text, words, tmp_path):
    with pytest.raises(SettingsError, match=words):
        sweep.plan_sweeps(sweep.parse([text], [KEP, SOFTMAX]), seeds=1, epochs=None, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_setting_that_is_swept_twice_is_refused():
    with pytest.raises(SettingsError, match="another --sweep"):
        sweep.parse(["train.lr=1e-3,1e-2", f"{KEP}:train.lr=1e-4"], [KEP, SOFTMAX])


def test_a_sweep_of_epochs_that_the_study_sets_is_refused(tmp_path):
    found = sweep.parse(["train.epochs=5,10"], [SOFTMAX])
    with pytest.raises(SettingsError, match=r"--epochs sets train\.epochs"):
        sweep.plan_sweeps(found, seeds=1, epochs=3, out=tmp_path)


def test_the_folder_of_a_candidate_does_not_depend_on_how_its_values_are_written(tmp_path):
    def folder(*own):
        (job,) = study.plan([KEP], seeds=1, epochs=None, out=tmp_path, own={KEP: own})
        return job.folder.relative_to(tmp_path / KEP)

    both = folder("train.kl_weight=1", "train.lr=0.01")
    assert both.as_posix() == "train.kl_weight=1.0,train.lr=0.01/seed-0"
    assert folder("train.lr=1e-2", "train.kl_weight=1.0") == both
    assert folder("train.clip_norm=none").parts[0] == "train.clip_norm=none"
    odd, other = (folder(f'train.lr_scale={{"network/{"*" * 200}": {scale}}}') for scale in (1, 2))
    assert len(odd.parts) == 2
    assert odd != other
    assert max(len(part) for part in odd.parts) <= study.MAX_NAME


@pytest.mark.parametrize(
    ("values", "higher_is_better", "best"),
    [
        ([[0.3], [0.1], [0.2]], False, 1),
        ([[0.3], [0.1], [0.2]], True, 0),
        ([[0.1, 0.9], [0.4, 0.4]], False, 1),
        ([[0.5], [0.2], [0.2]], False, 1),
        ([[NAN], [0.9], [0.8]], True, 1),
        ([[0.1, NAN], [0.9, 0.9]], False, 1),
        ([[INF], [3.0]], False, 1),
        ([[-INF], [-INF]], True, 0),
        ([[NAN], [NAN, 1.0]], True, None),
    ],
)
def test_the_best_mean_is_chosen_the_first_of_equal_ones_and_never_nan(values, higher_is_better, best):
    assert sweep.choose(values, higher_is_better=higher_is_better) == best


def test_the_trainings_of_each_preset_are_counted_and_unequal_twins_are_named(tmp_path):
    found = sweep.parse([f"{KEP}:train.kl_weight=0.1,1,10"], [KEP, SOFTMAX])
    planned = sweep.plan_sweeps(found, seeds=2, epochs=None, out=tmp_path)
    lines = sweep.budgets([KEP, SOFTMAX], planned, seeds=5, sweep_seeds=2)
    assert f"{KEP}: 9 trainings, 3 candidates with seeds 0 to 1, then 3 of the best one" in lines
    assert f"{SOFTMAX}: 5 trainings, no sweep" in lines
    assert sum("tuning budget is not the same" in line for line in lines) == 1
    found = sweep.parse([f"{KEP}:train.kl_weight=1,2", f"{SOFTMAX}:network.dropout=0.1,0.2"], [KEP, SOFTMAX])
    planned = sweep.plan_sweeps(found, seeds=1, epochs=None, out=tmp_path)
    assert not any("warning" in line for line in sweep.budgets([KEP, SOFTMAX], planned, seeds=5, sweep_seeds=1))


def in_turn(function, jobs, *, workers):
    yield from ((job, function(job)) for job in jobs)


@pytest.fixture
def quick(monkeypatch):
    """Train in this process, evaluate on the test data only, and draw nothing."""
    evaluate = study.evaluate
    monkeypatch.setattr(study, "run_in_workers", in_turn)
    monkeypatch.setattr(sweep, "run_in_workers", in_turn)
    monkeypatch.setattr(study, "evaluate", lambda folder, *, by, root, **_: evaluate(folder, by=by, root=root))
    monkeypatch.setattr(compare, "figures", lambda *_: {})


def test_candidates_without_a_valid_metric_are_an_error(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(sweep, "validation_value", lambda job: NAN)
    found = sweep.parse(["train.lr=1e-3,1e-2"], [SOFTMAX])
    planned = sweep.plan_sweeps(found, seeds=1, epochs=None, out=tmp_path)
    with pytest.raises(SettingsError, match=r"no candidate has a valid .* --set train\.monitor=METRIC"):
        sweep.run_sweeps(found, planned, workers=1)


def test_a_study_chooses_on_validation_data_and_evaluates_only_what_it_chose(
    command, tmp_path, monkeypatch, quick, tiny, assignments
):
    out, trained, original = tmp_path / "study", [], train.fit

    def fit(*arguments, **options):
        trained.append(options["out"])
        return original(*arguments, **options)

    def study_of(kl_weights):
        options = ["--seeds", 2, "--method", "temperature", "--workers", 1, "--out", out]
        options += [*assignments([*tiny, "train.monitor=nll"]), "--sweep", f"{KEP}:train.kl_weight={kl_weights}"]
        return command("study", KEP, SOFTMAX, *options, "--sweep", f"{SOFTMAX}:network.dropout=0.2,0.3")

    monkeypatch.setattr(train, "fit", fit)
    code, text, err = study_of("0.1,1")
    assert (code, err) == (0, "")
    assert f"{KEP}: 3 trainings, 2 candidates with seed 0, then 1 of the best one" in text
    assert "warning" not in text
    content = read_json(out / "sweep.json")["presets"]
    for preset, key in ((KEP, "train.kl_weight"), (SOFTMAX, "network.dropout")):
        found = {}
        for candidate in content[preset]["candidates"]:
            folder = out / candidate["folder"]
            log = read_log(folder / "seed-0" / "log.jsonl")
            found[folder] = min(record["valid/nll"] for record in log if record["kind"] == "epoch")
            assert candidate["values"] == {"0": pytest.approx(found[folder], rel=1e-12)}
        best = min(found, key=found.get)
        (chosen,) = content[preset]["chosen"]
        setting = read_json(best / "seed-0" / "settings.json")["settings"]
        part, name = key.split(".")
        assert setting[part][name] == float(chosen.partition("=")[2])
        for folder in found:
            names = {path.name for path in folder.glob("seed-*")}
            assert names == ({"seed-0", "seed-1"} if folder == best else {"seed-0"})
            evaluated = [(run / "metrics.json").exists() or (run / "predictions").exists() for run in folder.iterdir()]
            assert evaluated == [folder == best] * len(names)
        comparison = (out / "comparison" / "test.md").read_text(encoding="utf-8").replace("\\", "")
        assert f"{preset}: {chosen} (of " in comparison
        assert chosen in text
    row = next(line for line in comparison.splitlines() if line.startswith(f"| {KEP}"))
    assert "vs digits/softmax" in row, "twins whose dropout is tuned are still twins"
    assert len(set(trained)) == 6
    with (out / "sweep.csv").open(encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    assert [record["chosen"] for record in records].count("yes") == 2
    assert "**yes**" in (out / "sweep.md").read_text(encoding="utf-8")

    states = {path: path.stat().st_mtime_ns for path in out.rglob("last.pt")}
    trained.clear()
    code, text, err = study_of("1,1e-1,1000")
    assert (code, err) == (0, "")
    assert f"{KEP}: 4 trainings" in text
    assert "warning: digits/" in text, "3 candidates against 2"
    assert all(path.stat().st_mtime_ns == before for path, before in states.items())
    new = set(out.rglob("last.pt")) - states.keys()
    assert {path.relative_to(out / KEP).parts[0] for path in new} == {"train.kl_weight=1000.0"}


def test_a_value_evaluated_by_an_earlier_study_and_not_chosen_now_is_named(tmp_path):
    lists = {"train.lr": ("1e-3", "1e-2")}
    planned = sweep.plan_sweeps({SOFTMAX: lists}, seeds=1, epochs=None, out=tmp_path)[SOFTMAX]
    choice = sweep.Choice(SOFTMAX, lists, "nll", planned, ((0.4,), (0.3,)), 1)
    expected = f"{SOFTMAX}: train.lr=1e-2 (of 1e-3, 1e-2), chosen by validation nll of seed 0."
    assert sweep.outcome([choice]) == [expected]
    folder = planned[0].jobs[0].folder
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({}))
    sentence, warning = sweep.outcome([choice])
    assert sentence == expected
    assert str(folder) in warning


def test_tables_of_a_sweep_have_each_seed_and_missing_values(tmp_path):
    lists = {"train.lr": ("1e-3", "1e-2")}
    planned = sweep.plan_sweeps({SOFTMAX: lists}, seeds=2, epochs=None, out=tmp_path)[SOFTMAX]
    choice = sweep.Choice(SOFTMAX, lists, "nll", planned, ((0.25, NAN), (0.5, 0.75)), 1)
    sweep_tables.write(tmp_path, [choice])
    text = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert "| train.lr=1e-3 | 0.2500 | – | – |  |" in text
    assert "| train.lr=1e-2 | 0.5000 | 0.7500 | **0.6250** | **yes** |" in text
    assert (tmp_path / "sweep.csv").read_text(encoding="utf-8").splitlines()[1:3] == [
        f"{SOFTMAX},train.lr=1e-3,nll,0,0.25,no",
        f"{SOFTMAX},train.lr=1e-3,nll,1,,no",
    ]
    (first, second) = read_json(tmp_path / "sweep.json")["presets"][SOFTMAX]["candidates"]
    assert first["values"] == {"0": 0.25, "1": None}
    assert second["mean"] == 0.625
    assert presets.preset(SOFTMAX).with_changes(second["changes"]).train.lr == 0.01
