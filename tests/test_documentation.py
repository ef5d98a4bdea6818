"""README and docs/: the code of each page runs, links lead somewhere, files and rooms that are named exist."""

import re
from pathlib import Path

import pyro
import pytest
import typer

from probattn import guides
from probattn.experiments.cli.main import app

ROOT = Path(__file__).parents[1]
BUILT = (ROOT / "docs" / "_build", ROOT / "docs" / "api" / "generated")
README = ROOT / "README.md"
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if not set(BUILT) & set(page.parents))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES, ROOT / "experiments" / "results" / "README.md"]


def text_of(path):
    return path.read_text(encoding="utf-8")


def code_blocks(path):
    return re.findall(r"```python\n(.*?)```", text_of(path), flags=re.DOTALL)


def pages_with_code():
    return [page.stem for page in PAGES if code_blocks(page)]


@pytest.fixture(scope="module")
def readme(run_page, tmp_path_factory):
    """Everything that the README's code defines."""
    with pytest.MonkeyPatch.context() as patch, pyro.get_param_store().scope():
        patch.chdir(tmp_path_factory.mktemp("readme"))
        return run_page(README)


@pytest.fixture
def page(run_page, monkeypatch, tmp_path):
    """Run a page of docs/ in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda name: run_page(ROOT / "docs" / f"{name}.md")


def test_the_readmes_program_errs_less_where_it_answers(readme):
    prediction = readme["prediction"]
    scores = readme["decision"].evaluate(prediction.probs, prediction.labels)
    assert scores["coverage"] > 0.5
    assert scores["risk"] < 0.02 < 1 - readme["metrics"].accuracy(prediction.probs, prediction.labels)


def test_custom_layer(page):
    namespace = page("custom-layers")
    assert namespace["results"]["accuracy"] > 0.6
    assert {name for name, _ in guides.latent_sites(namespace["model"])} == {
        f"network.blocks.{block}.attention.log_sharpness" for block in range(2)
    }


def test_sharing(page, tmp_path):
    namespace = page("sharing")
    assert namespace["config"]["patch_size"] == 2
    assert (tmp_path / "my-model" / "README.md").is_file()
    assert (tmp_path / "network.pt2").is_file()
    difference = namespace["answer"]["probs"] - namespace["network"](namespace["images"])["probs"]
    assert difference.abs().max() < 1e-5


def test_layers(page):
    namespace = page("layers")
    assert namespace["history"].epochs[-1]["train_loss"] < namespace["history"].epochs[0]["train_loss"]
    assert (namespace["changed"].probs - namespace["free"].probs).abs().max() > 0.01


def test_prediction(page):
    namespace = page("prediction")
    prediction, answers = namespace["prediction"], namespace["answers"]
    assert prediction.draws.shape == (10, *prediction.probs.shape) == (10, 300, 10)
    total = prediction.expected_entropy + prediction.mutual_information
    assert (prediction.entropy - total).abs().max() < 1e-6
    assert (namespace["low"] < namespace["high"]).all()
    assert namespace["accepted"].double().mean() > 0.5
    assert namespace["sets"].evaluate(answers.probs, answers.labels)["coverage"] > 0.9
    assert namespace["detection"]["mutual_information"]["auroc"] > 0.9
    assert [site.state for site in namespace["sites"]] == ["not converged"]


def test_third_party_networks(page):
    namespace = page("third-party-networks")
    assert namespace["prediction"].probs.argmax(-1).eq(namespace["prediction"].labels).double().mean() > 0.6
    trained = {name for name, weight in namespace["with_block"].named_parameters() if weight.requires_grad}
    assert {name.split(".")[2] for name in trained} == {"block", "head"}


def test_training(page):
    namespace = page("training")
    assert namespace["history"].epochs[-1]["valid/accuracy"] > 0.5
    assert namespace["loss"].isfinite()


def test_every_page_with_code_is_tested():
    names = re.findall(r'\bpage\("([\w-]+)"\)', text_of(Path(__file__)))
    assert sorted([*names, "pyro"]) == pages_with_code()  # test_pyro_page.py


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_named_files_exist(path):
    text = text_of(path)
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", text_of(found), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings], target
    sources = [f"/{source.relative_to(ROOT).as_posix()}" for source in ROOT.glob("[a-z]*/**/*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any(source.endswith(f"/{name}") for source in sources), name


def written_commands(path):
    """Return the `probattn` commands in code spans and blocks, a line each, without comments."""
    code = "\n".join(re.findall(r"```(.*?)```", text_of(path), flags=re.DOTALL))
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL))
    lines = [*re.sub(r"\\\n", " ", code).splitlines(), *spans]
    found = (re.match(r"(?:[$!] ?)?probattn ([a-z].*)", line.strip()) for line in lines)
    return [match[1].partition(" #")[0] for match in found if match]


def unknown_words(line):
    """Return the first word if it is no command, and the options that the command does not have."""
    command, (first, *rest) = typer.main.get_command(app), line.split()
    if first not in command.commands:
        return [first]
    command = command.commands[first]
    if hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest[0]]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in re.findall(r"--[a-z][a-z-]*", " ".join(rest)) if word not in {*options, "--help"}]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_the_documentation_exist_with_their_options(path):
    unknown = {line: words for line in written_commands(path) if (words := unknown_words(line))}
    assert not unknown
