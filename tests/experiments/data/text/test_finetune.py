"""Fine-tuning by the command: a pretrained encoder, its twin, resuming and evaluation without the encoder's folder."""

import json
import shutil
import sys

import pytest
import torch

from probattn.experiments.cli import main
from probattn.experiments.cli import study as study_command
from probattn.experiments.config import presets
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train
from probattn.experiments.runs.build import build, check_memory, load_data
from probattn.experiments.runs.load import open_run
from probattn.experiments.studies import study
from probattn.inference import CheckpointError
from probattn.inference.io import checkpoint
from probattn.inference.training.optimizers import Optimizers, lr_factors
from probattn.inference.training.trainer import Trainer

pytest.importorskip("transformers")
from tiny_encoder import write_encoder  # noqa: E402

TINY = ("network.max_length=12", "train.epochs=2", "train.log_every=1")
KEP, SOFTMAX, SPARSE = "finetune/cola", "finetune/cola-softmax", "finetune/cola-sparse"
NEW = {  # a replaced layer's parameters that are not the encoder's
    "softmax": set(),
    "kep-svgp": {"projection.weights", "log_scale", "out.weight", "out.bias"},
    "sparse-cgp": {
        *("inducing.0", "inducing.1", "latent.weight", "log_scales"),
        *("out.weight", "out.bias"),
    },
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def encoder(tmp_path):
    write_encoder(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def command(monkeypatch, capsys, corpus):
    monkeypatch.setenv("PROBATTN_DATA", str(corpus))

    def run(*arguments):
        capsys.readouterr()  # the progress bar of writing the encoder
        monkeypatch.setattr(sys, "argv", ["probattn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main.main()
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


def tiny(name, encoder, *changes):
    changes = (*(each for each in TINY if "rank" not in each or name == KEP), *changes)
    rank = ("layer.rank=3",) if name == KEP else ()
    return presets.preset(name).with_changes([*changes, *rank, f"network.encoder={encoder}"])


@pytest.mark.parametrize("name", [KEP, SOFTMAX, SPARSE, "finetune/imdb", "finetune/imdb-softmax"])
def test_only_the_encoder_has_the_encoders_learning_rate(corpus, encoder, name):
    settings = presets.preset(name).with_changes(
        [f"network.encoder={encoder}", "network.max_length=12", "data.name=cola"]
    )
    if settings.layer.name == "kep-svgp":
        settings = settings.with_changes(["layer.rank=3"])
    model, _ = build(settings, load_data(settings, corpus))
    factors = lr_factors(model, settings.train.lr_scale)
    fast = {each for each, factor in factors.items() if factor == 1}
    layer = "network.encoder.wrapped.encoder.layer.1.attention.self.layer."
    assert fast == {layer + each for each in NEW[settings.layer.name]} | {"network.head.weight", "network.head.bias"}
    assert all(factor == 0.05 for each, factor in factors.items() if each not in fast)
    assert (presets.twin("finetune/cola"), presets.twin("finetune/imdb")) == (SOFTMAX, "finetune/imdb-softmax")


@pytest.mark.parametrize("name", [KEP, SOFTMAX])
def test_weights_decay_and_norms_and_biases_do_not(corpus, encoder, name):
    settings = tiny(name, encoder)
    assert settings.train.weight_decay > 0
    assert settings.train.decoupled_weight_decay
    model, guide = build(settings, load_data(settings, corpus))
    made = Optimizers(model, guide, options=settings.train, num_data=10, steps_per_epoch=1)
    decay = {id(each): group["weight_decay"] for group in made.optimizer.param_groups for each in group["params"]}
    for parameter_name, parameter in model.named_parameters():
        is_weight = parameter_name.endswith("weight") and "norm" not in parameter_name.lower()
        if is_weight or parameter_name.endswith("bias") or "norm" in parameter_name.lower():
            assert decay[id(parameter)] == (settings.train.weight_decay if is_weight else 0.0), parameter_name


@pytest.mark.parametrize("name", [KEP, SOFTMAX])
def test_a_run_that_was_stopped_resumes_exactly_without_the_encoders_folder(
    tmp_path, corpus, encoder, name, monkeypatch
):
    settings, options = tiny(name, encoder), {"name": name, "root": corpus, "progress": False}
    train.train(settings, tmp_path / "whole", **options)
    validate, calls = Trainer._validate, []

    def interrupted(trainer):
        calls.append(trainer.epoch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validate(trainer)

    monkeypatch.setattr(Trainer, "_validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.train(settings, tmp_path / "stopped", **options)
    shutil.rmtree(encoder)
    train.train(settings, tmp_path / "stopped", resume=True, **options)
    whole, stopped = (checkpoint.read(tmp_path / each / "last.pt") for each in ("whole", "stopped"))
    for part in ("model", "guide"):
        assert whole[part].keys() == stopped[part].keys()
        assert all(torch.equal(value, stopped[part][key]) for key, value in whole[part].items())
    assert torch.load(tmp_path / "whole" / "last.pt", weights_only=True).keys()


def test_the_command_trains_and_evaluates_and_needs_the_encoder_no_more(command, tmp_path, encoder, monkeypatch):
    changes = [part for each in (*TINY, "layer.rank=3") for part in ("--set", each)]
    monkeypatch.chdir(tmp_path)
    code, _, err = command("train", KEP, "--encoder", encoder.name, "--out", "run", *changes)
    assert (code, "error" in err) == (0, False), err
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert saved["network"]["encoder"] == str(encoder)
    shutil.rmtree(encoder)
    code, out, err = command("evaluate", "run", "--method", "mc-dropout,laplace", "--num-samples", 2)
    assert (code, err) == (0, "")
    assert "dropout" in out
    assert "out-of-domain" in out
    run = open_run(tmp_path / "run")
    assert not torch.equal(
        *(run.model.train().network(*batch[::2]) for batch in [next(iter(run.batches(run.dataset.test)))] * 2)
    )


def test_twins_start_from_the_same_encoder(corpus, encoder):
    models = []
    for name in (KEP, SOFTMAX):
        settings = tiny(name, encoder)
        models.append(build(settings, load_data(settings, corpus))[0].state_dict())
    kep, softmax = models
    other = kep.keys() ^ softmax.keys()
    assert all(".layer.1.attention." in each for each in other)
    differing = {each for each in kep.keys() & softmax.keys() if not torch.equal(kep[each], softmax[each])}
    assert differing <= {"network.head.weight", "network.head.bias"}


def test_a_preset_without_encoder_says_what_to_give(command, corpus, tmp_path):
    code, _, err = command("train", KEP, "--out", tmp_path / "run")
    assert code == 1
    assert "give its folder with --encoder FOLDER (config.json, model.safetensors and the tokenizer's files" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encoder", "absent"], "cannot load the encoder 'absent'"),
        (["--encoder", "bert", "--set", "network.max_length=17"], "max_length must be 3 to 16 for the encoder"),
        (["--encoder", "bert", "--set", "layer.last=3", "--set", "layer.rank=3"], "out of range"),
        (["--encoder", "bert", "--set", "layer.rank=5"], "rank"),
        (["--encoder", "bert", "--set", 'train.lr_scale={"zebra": 1}', "--set", "layer.rank=3"], "'zebra' matches no"),
        (["--set", 'train.lr_scale={"zebra"'], "train.lr_scale: "),
        (["--set", "train.lr_scale=0.1"], "train.lr_scale: "),
    ],
)
def test_wrong_arguments_are_errors_of_one_sentence(command, tmp_path, encoder, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("train", KEP, "--out", "run", "--set", "network.max_length=12", *arguments)
    assert code == 1
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_study_takes_the_encoder(command, tmp_path, encoder, monkeypatch):
    jobs = []
    monkeypatch.setattr(study, "run_study", lambda todo, **_: jobs.extend(todo))
    monkeypatch.setattr(study_command, "_compare", lambda *_, **__: None)
    code, _, err = command("study", KEP, SOFTMAX, "--encoder", encoder, "--seeds", 2, "--out", tmp_path / "study")
    assert (code, err) == (0, "")
    assert len(jobs) == 4
    assert all(job.changes == (f"network.encoder={encoder}",) for job in jobs)


def test_a_network_that_does_not_fit_into_memory_is_refused(corpus, encoder, monkeypatch):
    settings = tiny(KEP, encoder)
    dataset = load_data(settings, corpus)
    check_memory(settings, dataset, copies=4)
    monkeypatch.setattr("probattn.experiments.runs.build.total_memory", lambda _: 1000)
    with pytest.raises(SettingsError, match="the weights .* take a smaller encoder, or the layer's sizes"):
        check_memory(settings, dataset, copies=4)


def test_a_run_resumes_with_its_own_learning_rates_only(tmp_path, corpus, encoder):
    options = {"name": SOFTMAX, "root": corpus, "progress": False}
    train.train(tiny(SOFTMAX, encoder, "train.epochs=1"), tmp_path / "run", **options)
    changed = tiny(SOFTMAX, encoder, "train.epochs=1", 'train.lr_scale={"network.encoder.*": 0.5}')
    with pytest.raises((SettingsError, CheckpointError), match="lr_scale"):
        train.train(changed, tmp_path / "run", resume=True, **options)
