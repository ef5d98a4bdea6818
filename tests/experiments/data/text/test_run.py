"""A run on texts by the command, from the corpus's files to tables, figures and the report."""

import contextlib
import json
import shutil
import sys

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import accuracy_score, matthews_corrcoef

from probattn.experiments.cli import main
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs.load import open_run
from probattn.experiments.studies import study
from probattn.inference import predict

TINY = {
    "train.epochs": 3,
    "train.warmup_epochs": 0,
    "train.log_every": 1,
    "network.dim": 16,
    "network.heads": 2,
    "network.mlp_dim": 16,
    "network.spelling": 5,
    "layer.rank": 3,
}


@pytest.fixture
def command(monkeypatch, capsys, corpus):
    monkeypatch.setenv("PROBATTN_DATA", str(corpus))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["probattn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main.main()
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


def changes(**others):
    options = {key: value for key, value in (TINY | others).items() if value is not None}
    return [part for key, value in options.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """The run of :func:`trained`, empty until a test needs it."""
    return tmp_path_factory.mktemp("trained") / "run"


@pytest.fixture
def trained(command, tmp_path, trained_once):
    """A run of its own for each test, copied from one that is trained once."""
    if not trained_once.exists():
        code, _, err = command("train", "kep-svgp/cola", "--out", tmp_path / "first", *changes())
        assert code == 0, err
        shutil.copytree(tmp_path / "first", trained_once)
        shutil.rmtree(tmp_path / "first")
    shutil.copytree(trained_once, tmp_path / "run")
    return tmp_path / "run"


def load_predictions(folder):
    run = read_evaluated_run(folder)
    return run.predictions(run.test_sets, "posterior")


@pytest.fixture
def blank_figures(monkeypatch):
    """Figures are built but not rendered, which takes most of the time of an evaluation."""

    def save(self, file, **_):
        with contextlib.nullcontext(file) if hasattr(file, "write") else open(file, "wb") as stream:
            Image.new("L", (1, 1)).save(stream, "PNG")

    monkeypatch.setattr(Figure, "savefig", save)


def test_a_run_is_trained_resumed_evaluated_and_reported(command, trained):
    code, out, err = command("train", "kep-svgp/cola", "--out", trained, "--resume", *changes())
    assert (code, err) == (0, "")
    assert "was finished already, after 3 epochs" in out
    assert WordTokenizer.load(trained / "tokenizer.json").spelling == 5
    epochs = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert all("valid/mcc" in each for each in epochs if each["kind"] == "epoch")

    code, out, err = command("evaluate", trained, "--method", "temperature,mc-dropout,laplace")
    assert (code, err) == (0, "")
    assert "Test data, out-of-domain" in out
    found = json.loads((trained / "metrics.json").read_text())["methods"]
    assert set(found) == {"posterior", "temperature", "mc-dropout", "laplace"}
    stored = load_predictions(trained)
    for scores, name in (
        (found["posterior"]["test"], "test"),
        (found["posterior"]["domain"]["out-of-domain"], "domain/out-of-domain"),
    ):
        prediction = stored[name]
        assert len(prediction.labels) == {"test": 30, "domain/out-of-domain": 20}[name]
        answers = prediction.probs.argmax(-1)
        assert scores["mcc"] == pytest.approx(matthews_corrcoef(prediction.labels, answers), abs=1e-6)
        assert scores["accuracy"] == pytest.approx(accuracy_score(prediction.labels, answers))
    assert found["temperature"]["test"]["mcc"] == found["posterior"]["test"]["mcc"]
    assert (trained / "tables" / "domain-out-of-domain.csv").exists()
    assert (trained / "figures" / "most_uncertain.svg").exists()
    page = (trained / "report.html").read_text()
    assert "out-of-domain" in page

    code, out, err = command("compare", trained, "--out", trained.parent / "compared")
    assert (code, err) == (0, "")
    assert "Test data, out-of-domain" in out
    assert (trained.parent / "compared" / "domain-out-of-domain.svg").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            ["--shift"],
            "--shift corrupts images, and cola is text; its other domains (out-of-domain) are always evaluated",
        ),
        (["--ood", "svhn"], "--ood takes images, and cola is text"),
    ],
)
def test_what_is_for_images_is_refused_before_any_work(command, trained, option, message):
    code, out, err = command("evaluate", trained, *option)
    assert (code, out) == (1, "")
    assert message in " ".join(err.split())
    assert not (trained / "metrics.json").exists()


def test_a_run_whose_tokenizer_is_lost_says_so(command, trained):
    (trained / "tokenizer.json").unlink()
    code, _, err = command("evaluate", trained)
    assert code == 1
    assert "tokenizer.json" in err


def test_a_layer_of_fixed_length_is_refused_before_the_folder_is_made(command, tmp_path):
    out = tmp_path / "run"
    code, _, err = command("train", "kep-svgp/cola", "--out", out, *changes(**{"layer.merge": "concat"}))
    assert code == 1
    assert "merge=concat has weights over tokens: set layer.merge=add" in " ".join(err.split())
    assert not out.exists()


@pytest.mark.parametrize(
    ("preset", "layer"),
    [
        pytest.param("cgp/cola", {}, marks=pytest.mark.slow),
        ("cgp/cola-sparse", {"layer.inducing": 2}),
        ("cgp/cola-sgpa", {"layer.inducing": 2}),
        pytest.param("cgp/cola-softmax", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::probattn.functional.jitter.JitterWarning")
@pytest.mark.usefixtures("blank_figures")
def test_every_layer_trains_on_texts(command, tmp_path, preset, layer):
    out = tmp_path / "run"
    code, _, err = command("train", preset, "--out", out, *changes(**{"layer.rank": None, "train.epochs": 1}, **layer))
    assert code == 0, err
    code, _, err = command("evaluate", out, "--method", "mc-dropout")
    assert code == 0, err
    assert (out / "report.html").exists()


@pytest.mark.usefixtures("blank_figures")
def test_a_job_of_a_study_evaluates_the_domains_of_texts(corpus, tmp_path):
    options = changes(**{"layer.rank": None, "train.epochs": 1})[1::2]
    (job,) = study.plan(
        ["cgp/cola-softmax"], seeds=1, epochs=None, out=tmp_path / "study", changes=options, root=corpus
    )
    study.run_job(job, ("temperature",))
    found = json.loads((tmp_path / "study" / "cgp" / "cola-softmax" / "seed-0" / "metrics.json").read_text())["methods"]
    assert set(found["temperature"]) == {"test", "domain"}


@pytest.mark.usefixtures("blank_figures")
def test_a_run_on_the_features_of_a_hugging_face_encoder(command, corpus, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    encoder = tmp_path / "bert"
    encoder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dogs", "see", "runs", "away", "not", "a", "."]
    transformers.BertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(encoder)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(encoder)
    out = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    code, _, err = command(
        "train", "kep-svgp/cola", "--out", out, *changes(**{"network.encoder": "bert", "train.epochs": 1})
    )
    assert code == 0, err
    assert not (out / "tokenizer.json").exists()
    for cwd in (tmp_path, corpus):  # the run knows where its encoder lies
        monkeypatch.chdir(cwd)
        code, _, err = command("evaluate", out)
        assert code == 0, err
    assert len(list((corpus / ".probattn-cache").iterdir())) == 4  # train, valid, test, out of domain

    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(encoder)
    code, _, err = command("evaluate", out)
    assert code == 1
    assert "differ from those" in " ".join(err.split())


def test_resuming_with_other_data_is_refused_and_leaves_the_words_of_the_run(command, trained, corpus):
    before = (trained / "tokenizer.json").read_bytes()
    path = corpus / "cola_public" / "raw" / "in_domain_train.tsv"
    path.write_text(path.read_text().replace("happily", "zealously"))
    code, _, err = command("train", "kep-svgp/cola", "--out", trained, "--resume", *changes())
    assert code == 1
    assert "was trained with other data" in " ".join(err.split())
    assert (trained / "tokenizer.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_predictions_of_changed_texts_are_made_anew(command, trained, corpus):
    assert command("evaluate", trained)[0] == 0
    before = load_predictions(trained)["test"].probs
    path = corpus / "cola_public" / "raw" / "in_domain_dev.tsv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    assert command("evaluate", trained)[0] == 0
    after = load_predictions(trained)["test"].probs
    assert not torch.equal(before, after)
    torch.testing.assert_close(before.flip(0), after, rtol=1e-4, atol=1e-4)


def test_stored_predictions_are_in_the_order_of_the_data_though_computed_by_length(command, trained):
    assert command("evaluate", trained, "--method", "temperature")[0] == 0
    run, stored = open_run(trained), read_evaluated_run(trained)
    data = run.dataset.test
    order = run.batches_by_length(data).order
    assert not torch.equal(order, torch.arange(len(data)))
    torch.manual_seed(0)
    expected = predict(run.model, run.guide, run.batches(data), num_samples=10)
    found, scaled = (stored.predictions(stored.test_sets, name)["test"] for name in ("posterior", "temperature"))
    assert torch.equal(found.labels, data.labels)
    assert torch.equal(scaled.labels, data.labels)
    torch.testing.assert_close(found.probs, expected.probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.expected_entropy, expected.expected_entropy, rtol=1e-4, atol=1e-5)
    logits, logits_scaled = (each.probs.double().logit()[:, 1] for each in (expected, scaled))
    temperature = (logits @ logits) / (logits @ logits_scaled)
    torch.testing.assert_close(logits_scaled * temperature, logits, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("blank_figures")
def test_a_report_of_texts_advises_nothing_that_is_for_images(command, trained):
    assert command("evaluate", trained)[0] == 0
    page = (trained / "report.html").read_text()
    assert "--shift" not in page
    assert "--ood" not in page
    assert "out-of-domain" in page


def test_a_program_of_texts_comes_with_its_tokenizer(command, trained, tmp_path):
    path = tmp_path / "a.pt2"
    code, out, err = command("export", trained, "--out", path, "--num-samples", 2)
    assert (code, err) == (0, "")
    assert "takes int64 tokens (batch, tokens, 6) and bool mask (batch, tokens)" in out
    files = {"tokenizer.json": "", "probattn.json": ""}
    program = torch.export.load(path, extra_files=files).module()
    (tmp_path / "tokenizer.json").write_text(files["tokenizer.json"], encoding="utf-8")
    tokenizer = WordTokenizer.load(tmp_path / "tokenizer.json")
    run = open_run(trained)
    torch.manual_seed(0)
    expected = predict(run.model, run.guide, run.batches(run.dataset.test), num_samples=2)
    for number, words in enumerate(run.dataset.test.texts[:5]):
        ids = tokenizer.encode(words).unsqueeze(0)
        found = program(ids, torch.ones(1, ids.shape[1], dtype=torch.bool))
        torch.testing.assert_close(found["probs"][0], expected.probs[number], rtol=1e-4, atol=1e-5)
    about = json.loads(files["probattn.json"])
    assert (about["name"], about["num_samples"], about["classes"]) == ("kep-svgp/cola", 2, list(run.dataset.classes))
