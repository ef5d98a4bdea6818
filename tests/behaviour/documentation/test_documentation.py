"""README, docs/ and examples/: the code of each runs with the results it shows; commands and public
names exist."""

import importlib
import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
import typer
from torch.testing import assert_close

import probattn
from probattn import guides, inference, models
from probattn.experiments.cli.main import app

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
BUILT = {DOCS / "_build", DOCS / "api" / "generated"}
PAGES = sorted(page for page in DOCS.rglob("*.md") if not BUILT & set(page.parents))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES, ROOT / "experiments" / "results" / "README.md"]


def run_page(path):
    """Run the Python code of a Markdown page, block by block, and return what it defines."""
    names = {}
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), flags=re.DOTALL)
    ):
        exec(compile(block, f"{path.name}, block {number}", "exec"), names)
    return names


def share_right(prediction):
    return inference.metrics.accuracy(prediction.probs, prediction.labels)


def readme(names):
    scores = names["decision"].evaluate(names["prediction"].probs, names["prediction"].labels)
    assert scores["coverage"] > 0.5
    assert scores["risk"] < min(0.02, 1 - share_right(names["prediction"]))
    assert "network.blocks.1.attention.u" in dict(guides.latent_sites(names["model"]))


def custom_layers(names):
    assert names["results"]["accuracy"] > 0.6
    assert {name for name, _ in guides.latent_sites(names["model"])} == {
        f"network.blocks.{block}.attention.log_sharpness" for block in range(2)
    }


def sharing(names):
    assert_close(
        names["answer"]["probs"], names["network"](names["images"])["probs"], atol=1e-5, rtol=0
    )


def layers(names):
    assert names["history"].epochs[-1]["train_loss"] < names["history"].epochs[0]["train_loss"]
    assert (names["changed"].probs - names["free"].probs).abs().max() > 0.01


def prediction(names):
    assert names["accepted"].double().mean() > 0.5
    assert names["sets"].evaluate(names["answers"].probs, names["answers"].labels)["coverage"] > 0.9
    assert names["detection"]["mutual_information"]["auroc"] > 0.75
    assert [site.state for site in names["sites"]] == ["alive"]
    scores = inference.metrics.evaluate(names["prediction"])
    assert scores["accuracy"] > 0.9
    assert scores["ece"] < 0.15
    assert names["check"].p_values["accuracy"] < 0.1


def any_classifier(names):
    answers, threshold, sets = (names[name] for name in ("answers", "threshold", "sets"))
    assert share_right(answers) > 0.9
    assert threshold.evaluate(answers.probs, answers.labels)["risk"] < 0.05
    assert sets.evaluate(answers.probs, answers.labels)["coverage"] > 0.8
    given = names["program"].module()(names["images"][names["test"]])
    assert torch.equal(given["set"], sets.sets(given["probs"]))
    assert torch.equal(given["accepted"], threshold.accepts(given["probs"]))
    # The numbers of the table.
    needed = [inference.conformal.min_examples(alpha) for alpha in (0.1, 0.05, 0.01)]
    assert needed == [9, 19, 99]


def serving(names):
    requests = names["requests"]
    for call in ("answer", "sampled_answer"):
        for images, probs in zip(requests, names[f"{call}s"], strict=True):
            assert torch.equal(probs, names[call](images))
    assert [probs.shape for probs in names["traced_answers"]] == [(4, 10)] * len(requests)


def third_party_networks(names):
    assert share_right(names["prediction"]) > 0.6
    trained = {
        name for name, weight in names["with_block"].named_parameters() if weight.requires_grad
    }
    assert {name.split(".")[2] for name in trained} == {"block", "head"}
    sizes = []
    first = names["with_block"].network.wrapped.backbone.features[0]
    first.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    inference.predict(names["with_block"], names["with_block_guide"], names["images"][:4])
    assert sizes == [4]


def latent_members(names):
    assert names["history"].steps[-1]["loss"] < names["history"].steps[0]["loss"]
    with torch.no_grad():
        outputs = names["model"].network.network(names["images"][-100:])
    assert_close(names["whole"].probs, outputs[2].softmax(-1))


def training(names):
    assert names["history"].epochs[-1]["valid/accuracy"] > 0.5
    assert names["loss"].isfinite()


def pyro(names):
    """Check that the loops agree with each other and with NUTS."""
    (svi, svi_means), (loop, loop_means), (fitted, fit_means) = (
        names[name] for name in ("svi_result", "torch_result", "fit_result")
    )
    assert abs(loop - fitted) < 0.001
    assert_close(fit_means, loop_means, atol=0.001, rtol=0)
    assert abs(svi - loop) < 1.5
    assert_close(svi_means, loop_means, atol=0.15, rtol=0)
    assert max(svi, loop, fitted) < names["result"](*names["start"]())[0] - 5
    history = names["history"].steps
    assert len({step["step"] for step in history}) == len(history) > 1
    assert sum(names["function_losses"][-20:]) / 20 < loop + 5

    sampled, prediction, chain = (names[name] for name in ("sampled", "prediction", "by_nuts"))
    assert_close(chain.mean, prediction.mean, atol=0.15, rtol=0)
    assert abs((chain.variance / prediction.variance).mean() - 1) < 0.15
    assert (
        (sampled.mean(0) - prediction.mean).abs() < 5 * (prediction.variance / len(sampled)).sqrt()
    ).all()
    assert abs((sampled.var(0) / prediction.variance).mean() - 1) < 0.1


PAGES_WITH_CODE = (
    custom_layers,
    sharing,
    layers,
    prediction,
    any_classifier,
    serving,
    third_party_networks,
    latent_members,
    training,
    pyro,
)
CHECKS = {f"docs/{check.__name__.replace('_', '-')}.md": check for check in PAGES_WITH_CODE}


@pytest.mark.parametrize("page", ["README.md", *CHECKS])
def test_the_code_of_a_page_has_the_results_that_it_shows(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    CHECKS.get(page, readme)(run_page(ROOT / page))


def test_the_code_of_every_page_and_example_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)
    assert {
        page.relative_to(ROOT).as_posix()
        for page in PAGES
        if "```python\n" in page.read_text("utf-8")
    } == {*CHECKS}


def distinguishes_inputs(names):
    trainer = names["trainer"]
    trainer.train_dataset = [
        row | {"token_type_ids": [1] * len(row["input_ids"])} for row in names["test"]
    ]
    with pytest.raises(ValueError, match="token_type_ids"):
        trainer.train()
    return names["results"]["eval_accuracy"] > 0.7  # 0.5 is chance


SLOW = ("conformal_prediction_sets", "custom_prior", "lightning_training", "train_digits")
SLOW += ("export_and_serve", "regression_intervals")
EXAMPLES = {
    "train_digits": lambda names: names["results"]["accuracy"] > 0.75,  # 0.1 is chance
    "custom_prior": lambda names: (
        min(values["accuracy"] for values in names["results"].values()) > 0.8
    ),
    "pyro_svi_loop": lambda names: names["rmse"] < 0.9 and 0.6 < names["coverage"] < 1,
    "replace_attention_in_torchvision_vit": lambda names: (
        names["difference"] < 1e-4 and names["results"]["accuracy"] > names["before"] - 0.05
    ),
    "finetune_text_classifier": distinguishes_inputs,
    "lightning_training": lambda names: names["results"]["accuracy"] > 0.5,
    "conformal_prediction_sets": lambda names: 0.85 < names["values"]["coverage"] <= 1,
    # The labels' deviation is 77.
    "regression_intervals": lambda names: (
        names["results"]["rmse"] < 70 and 0.8 < names["values"]["coverage"] <= 1
    ),
    "serve_with_fastapi": lambda names: (
        len(names["answers"]) == 5
        and all(0.1 < answer["probability"] <= 1 for answer in names["answers"])
        and names["refused"] == 422
    ),
    "export_and_serve": lambda names: (
        torch.tensor(names["answers"]["probs"]).sum(1).sub(1).abs().max() < 1e-4
    ),
}
NEEDS = {
    "serve_with_fastapi": ("fastapi", "httpx2"),
    "finetune_text_classifier": ("transformers", "accelerate"),
    "lightning_training": ("lightning.pytorch",),
}


# Trainers of other libraries call what their dependencies deprecate.
@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXAMPLES]
)
def test_an_example_runs_as_it_is(name, monkeypatch, tmp_path):
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    assert EXAMPLES[name](
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    )


def written_commands(path):
    """Return the `probattn` commands in code spans and blocks, a line each, without comments."""
    text = path.read_text("utf-8")
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    blocks = re.sub(r"\\\n", " ", "\n".join(re.findall(r"```(.*?)```", text, flags=re.DOTALL)))
    matches = (
        re.match(r"(?:[$!] ?)?probattn ([a-z].*)", line.strip())
        for line in [*blocks.splitlines(), *spans]
    )
    return [match[1].partition(" #")[0] for match in matches if match]


def unknown_words(line):
    """Return the first word if it is no command, and the options that the command does not have."""
    commands, (first, *rest) = typer.main.get_command(app).commands, line.split()
    if first not in commands:
        return [first]
    options = {
        word for part in commands[first].params for word in (*part.opts, *part.secondary_opts)
    }
    return [
        word
        for word in re.findall(r"--[a-z][a-z-]*", " ".join(rest))
        if word not in {*options, "--help"}
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_the_documentation_exist_with_their_options(path):
    assert {line: words for line in written_commands(path) if (words := unknown_words(line))} == {}


def test_every_public_name_is_in_the_api_reference_and_has_a_docstring():
    listed = re.compile(
        r"\.\. currentmodule:: (\S+)\n\n\.\. autosummary::\n(?:   :.*\n)*\n((?:   \S+\n)+)"
    )
    sections = listed.findall(
        "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    )
    paths = [
        f"{module}.{name}".rpartition(".") for module, names in sections for name in names.split()
    ]
    known = [getattr(importlib.import_module(module), name) for module, _, name in paths]
    assert [
        path for path, value in zip(paths, known, strict=True) if not inspect.getdoc(value)
    ] == []
    for package in (probattn, models, models.likelihoods, inference, inference.metrics):
        public = {
            name: value
            for name, value in vars(package).items()
            if not name.startswith("_") and callable(value)
        }
        ours = {
            name
            for name, value in public.items()
            if package.__name__ in str(getattr(value, "__module__", ""))
        }
        assert (
            sorted(name for name in ours if all(public[name] is not value for value in known)) == []
        )
