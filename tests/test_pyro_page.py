"""docs/pyro.md: results of its code, and its table of sites against the diagrams."""

import importlib.util
import logging
import re
from pathlib import Path

import pyro
import pytest
import torch
from torch.testing import assert_close

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "pyro.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def namespace(run_page, tmp_path_factory):
    """Everything that the page's code defines."""
    with pytest.MonkeyPatch.context() as patch, pyro.get_param_store().scope():
        patch.chdir(tmp_path_factory.mktemp("page"))
        return run_page(DOCS / "pyro.md")


def test_the_three_loops_agree(namespace):
    (svi, svi_means), (loop, loop_means), (fitted, fit_means) = (
        namespace[name] for name in ("svi_result", "torch_result", "fit_result")
    )
    assert abs(loop - fitted) < 0.001
    assert_close(fit_means, loop_means, atol=0.001, rtol=0)
    assert abs(svi - loop) < 1.5
    assert_close(svi_means, loop_means, atol=0.15, rtol=0)
    start = namespace["result"](*namespace["start"]())[0]
    assert max(svi, loop, fitted) < start - 5
    history = namespace["history"].steps
    assert len({step["step"] for step in history}) == len(history) > 1


def test_svi_of_a_function_guide_and_fit_of_a_module_guide_agree(namespace):
    assert abs(namespace["function_loss"] - namespace["module_loss"]) < 1.5
    assert_close(namespace["function_means"], namespace["module_means"], atol=0.25, rtol=0)
    full = namespace["torch_result"][0]  # independent scalars are a smaller family
    assert full - 0.3 < namespace["module_loss"] < full + 5


def test_the_loops_find_the_posterior_of_the_chains(namespace):
    prediction = namespace["prediction"]
    for chain in (namespace["by_nuts"], namespace["by_sgld"]):
        assert_close(chain.mean, prediction.mean, atol=0.15, rtol=0)
        assert abs((chain.variance / prediction.variance).mean() - 1) < 0.15
    assert 0.02 < namespace["check"].p_values["mean"].item() < 0.98


def test_predictive_and_predict_agree(namespace):
    sampled, prediction = namespace["sampled"], namespace["prediction"]
    error = (prediction.variance / len(sampled)).sqrt()
    assert ((sampled.mean(0) - prediction.mean).abs() < 5 * error).all()
    assert abs((sampled.var(0) / prediction.variance).mean() - 1) < 0.1


def test_a_layer_in_a_function_uses_its_plate(namespace):
    plates = {name: [frame.name for frame in namespace["nodes"][name]["cond_indep_stack"]] for name in ("u", "g", "y")}
    assert plates == {"u": [], "g": ["data"], "y": ["data"]}
    losses = namespace["program_losses"]
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20])


def test_priors_of_priors(namespace):
    assert namespace["sparse_guide"].sites == ("attention.prior.tau", "attention.prior.zeta", "attention.u")
    assert namespace["scale_guide"].sites == ("attention.log_scale", "attention.u")
    assert sum(namespace["sparse_losses"][-20:]) / 20 < 60
    assert abs(namespace["scale_loss"] - namespace["torch_result"][0]) < 10


def test_the_bayesian_head_has_the_exact_posterior(namespace):
    found, mean, variance = (namespace[name] for name in ("bayesian_prediction", "exact_mean", "exact_variance"))
    assert_close(found.mean, mean, atol=0.08, rtol=0)
    assert_close(found.variance, variance, atol=0, rtol=0.15)


def test_interventions_are_linear_in_z_o(namespace):
    forced = namespace["forced"]
    assert_close(forced[2] - forced[0], 2 * (forced[1] - forced[0]), atol=1e-4, rtol=1e-4)
    assert_close(namespace["conditioned"], forced[1])
    assert (forced[1] - namespace["freely"]).abs().max() > 0.5
    assert (forced[1] - forced[0]).abs().max() > 0.5


def test_errors_name_the_site(namespace):
    assert set(namespace["messages"]) == set(namespace["cases"])
    sites = {"missing site": "attention.u", "point mass": "attention.u"}
    for name, message in namespace["messages"].items():
        assert sites.get(name, "attention.z_o") in message


def test_draws_of_a_bayesian_head_run_one_after_another_and_the_log_says_so(namespace, caplog):
    with caplog.at_level(logging.WARNING, "probattn"):
        namespace["predict"](namespace["BayesianHead"](), None, namespace["x"][:2], num_samples=2)
    assert "one after another (vectorize=False)" in caplog.text


def table():
    """Return the global, local and observed sites of each diagram in the page's table."""
    rows = PAGE.split("<!-- sites:", 1)[1].split("\n\n")[1].splitlines()[2:]
    found = {}
    for row in rows:
        *cells, link = (cell.strip() for cell in row.strip("|").split(" | "))
        name = re.fullmatch(r"\[(.*)\]\(figures/\1\.svg\)", link.strip(" |")).group(1)
        found[name] = tuple({f"attention.{site}" for site in re.findall(r"`([^`]*)`", cell)} for cell in cells[1:])
    return found


@pytest.fixture(scope="module")
def diagrams():
    pytest.importorskip("graphviz")
    spec = importlib.util.spec_from_file_location("diagrams", DOCS / "diagrams.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_lists_every_diagram(diagrams):
    assert list(table()) == list(diagrams.LAYERS)


@pytest.mark.parametrize("name", table())
def test_diagrams_show_the_sites_of_the_table(diagrams, name):
    shared, local, observed = table()[name]
    torch.manual_seed(0)
    source = diagrams.diagram(name).source
    outside, inside = re.fullmatch(r"(.*)subgraph cluster_examples \{(.*?)\n\t\}.*", source, flags=re.DOTALL).groups()

    def nodes(part, colour):
        return set(re.findall(rf'^\s*"?([\w.]+)"? \[label=\S+ fillcolor={colour} ', part, flags=re.MULTILINE))

    assert nodes(outside, "white") == shared
    assert nodes(outside, "gray") == set()
    assert nodes(inside, "white") == local
    assert nodes(inside, "gray") == observed | {"y"}
    mentioned = set(re.findall(r"attention\.[\w.]+", source))
    assert mentioned == shared | local | observed
    drawn = set(re.findall(r"<title>([\w.]+)</title>", (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")))
    assert drawn - {"cluster_examples"} == mentioned | {"y"}
