"""Each command from beginning to end on tiny digits, as its user would type it."""

import functools

import pandas as pd
import pytest
import torch
from PIL import Image

from probattn.experiments.data.images.known_sets import load
from probattn.experiments.studies import study

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Ten test images of digits as files."""
    folder = tmp_path_factory.mktemp("images")
    for number, pixels in enumerate(load("digits").test.images[:10]):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{number}.png")
    return folder


def test_two_layers_over_seeds_are_trained_evaluated_and_compared(command, tmp_path, assignments, tiny):
    for preset, name in ((KEP, "kep"), (SOFTMAX, "softmax")):
        changes = assignments([*tiny, "train.num_samples=2"])
        for seed in range(2):
            folder = tmp_path / name / f"seed-{seed}"
            code, text, _ = command("train", preset, "--out", folder, *changes, "--set", f"train.seed={seed}")
            assert code == 0
            assert "probattn evaluate" in text
        code, text, err = command("evaluate", tmp_path / name, "--method", "temperature", "--ood", "letters")
        assert code == 0, err
        assert f"report: {tmp_path / name / 'seed-1' / 'report.html'}" in text
    scores = pd.read_csv(tmp_path / "kep" / "seed-0" / "scores.csv")
    (row,) = scores[(scores.method == "posterior") & (scores.set == "test")].to_dict("records")
    assert row["n"] == 359  # data.limit leaves the test part whole
    assert "ood/letters" in set(scores.set)
    code, text, err = command("compare", tmp_path / "kep", tmp_path / "softmax", "--out", tmp_path / "compared")
    assert code == 0, err
    assert "2 seeds" in text or "ensemble" in text
    results = pd.read_csv(tmp_path / "compared" / "results.csv")
    test = results[(results.set == "test") & (results.method == "posterior") & results.seed.notna()]
    assert sorted(test.run + test.seed.astype(int).astype(str)) == [f"{KEP}0", f"{KEP}1", f"{SOFTMAX}0", f"{SOFTMAX}1"]
    assert row["accuracy"] in set(test.accuracy)
    assert {".csv", ".md", ".tex"} <= {path.suffix for path in (tmp_path / "compared").iterdir()}
    again = command("compare", tmp_path / "compared" / "results.csv", "--out", tmp_path / "again")
    assert again[0] == 0
    assert (tmp_path / "again" / "comparison.tex").read_text() == (tmp_path / "compared" / "comparison.tex").read_text()


def test_a_run_predicts_and_is_exported_and_the_shared_folder_predicts_the_same(command, kep, tmp_path, images):
    assert command("evaluate", kep)[0] == 0
    code, text, err = command("predict", kep, images, "--sort", "entropy")
    assert code == 0, err
    assert "9.png" in text
    code, _, err = command("predict", kep, images, "--out", tmp_path / "answers.csv")
    assert code == 0, err
    assert len(pd.read_csv(tmp_path / "answers.csv")) == 10
    assert command("export", kep, "--out", tmp_path / "shared")[0] == 0
    assert command("predict", tmp_path / "shared", images, "--out", tmp_path / "again.csv")[0] == 0
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "answers.csv").read_text()
    code, _, err = command("export", kep, "--out", tmp_path / "program.pt2")
    assert code == 0, err
    assert (tmp_path / "program.pt2").stat().st_size > 1000


def test_the_demo_compares_layers_and_continues_where_it_stopped(command, tmp_path, monkeypatch, tiny):
    monkeypatch.setattr(study, "plan", functools.partial(study.plan, changes=tiny))
    demo = ("demo", "--out", tmp_path / "demo", "--layers", "softmax,kep-svgp", "--workers", 1, "--epochs", 3)
    code, text, _ = command(*demo)
    assert code == 0
    for word in ("ACC", "MCC", "AURC", "AUROC", "FPR95", "ECE", "NLL", "Brier", KEP, SOFTMAX):
        assert word in text
    assert text.endswith(f"report: {tmp_path / 'demo' / 'report.html'}\n")
    weights = (tmp_path / "demo" / KEP / "seed-0" / "last.pt").read_bytes()
    assert command(*demo)[:2] == (0, text)
    assert (tmp_path / "demo" / KEP / "seed-0" / "last.pt").read_bytes() == weights
    code, _, err = command("demo", "--out", tmp_path / "demo", "--layers", "softmax,gcp")
    assert code == 1
    assert "gcp" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["presets"], ["kep-svgp/cifar10-softmax", "vit/folder", "400"]),
        (["presets", "tabular/csv"], ["data.label_column", "train.epochs"]),
        (["reproduce", "--list"], ["kep-svgp/table-1", "cgp/table-1"]),
        (["check-gp"], ["agree"]),
        (["--help"], ["train", "study", "bench"]),
        (["bench", "--help"], ["layers", "scaling"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_is_listed(command, monkeypatch, arguments, words):
    monkeypatch.setenv("COLUMNS", "40")
    code, text, err = command(*arguments)
    assert (code, err) == (0, "")
    assert [word for word in words if word not in text] == []


def test_settings_as_a_file_are_read_again(command, tmp_path):
    code, text, _ = command("presets", KEP, "--yaml")
    (tmp_path / "settings.yaml").write_text(text.replace("epochs: 100", "epochs: 101"), encoding="utf-8")
    code, again, _ = command("presets", KEP, "--yaml")
    assert (code, again) == (0, text)
    code, _, err = command(
        "train", "--config", tmp_path / "settings.yaml", "--out", tmp_path / "run", "--set", "train.b=1"
    )
    assert code == 1
    assert "train.b" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there(command, tmp_path, is_one_message):
    assert is_one_message(command("check-gpu")[2], "no GPU")
    code, _, err = command("train", KEP, "--out", tmp_path / "run", "--set", "train.accelerator=cuda")
    assert code == 1
    assert is_one_message(err, "train.accelerator=cuda", "no GPU")
    assert not (tmp_path / "run").exists()
