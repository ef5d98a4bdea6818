"""Sentences about the posterior of a run, in the report and in the terminal."""

from dataclasses import replace

import pytest

from probattn.experiments.reporting import posterior_words, report
from probattn.inference.diagnostics.convergence import SiteConvergence

SITE = "network.blocks.0.attention.u"


def site(*, std=0.5, gain=0.0, kl=60.0):
    """Convergence of one site of 120 variables; gain in nats per example of 100."""
    numbers = {"kl": kl, "std_ratio": (std, std, std), "gain": 100 * gain, "gain_error": 0.1}
    return SiteConvergence(site=SITE, size=120, num_data=100, **numbers)


def spread(information=0.1):
    return {"entropy": 0.25, "mutual_information": information, "mutual_information_95": 2 * information}


def test_samples_that_differ_are_described_by_numbers_alone(result):
    words = posterior_words.describe_spread(replace(result(), convergence=[site()], spread=spread()))
    assert words.startswith("On validation data the mutual information of label and latent variables is 1.0e-01 nats")
    assert words.endswith("(95 % quantile 2.0e-01), 40 % of the entropy of 0.25 nats.")
    assert posterior_words.describe_spread(replace(result(), spread=spread())) == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"std": 0.125, "gain": 0.4}, "only 0.12 of the prior's; it has not converged, so this is not what the data"),
        ({"std": 0.125}, "only 0.12 of the prior's."),
        ({"std": 0.98, "kl": 0.3}, "0.98 of the prior's: the latent variables vary, but the network's output hardly"),
    ],
)
def test_samples_that_hardly_differ_are_said_so_with_the_reason(options, reason, result):
    words = posterior_words.describe_spread(replace(result(), convergence=[site(**options)], spread=spread(7e-6)))
    assert words.startswith("Samples of the attention layers hardly disagree")
    assert "7.0e-06 nats" in words
    assert reason in words


def test_only_posteriors_that_need_it_have_a_line_in_the_terminal(result):
    assert posterior_words.warnings(result()) == []
    assert posterior_words.warnings(replace(result(), convergence=[site()])) == []
    (line,) = posterior_words.warnings(replace(result(), convergence=[site(gain=0.35)]))
    assert line.startswith(f"posterior of {SITE}: not converged, refitting gains 0.35 nats")
    (line,) = posterior_words.warnings(replace(result(), convergence=[site(kl=0.3, std=0.98)]))
    assert line.startswith(f"posterior of {SITE}: collapsed")


def test_the_energy_that_e_captures_is_in_words(probabilistic, result):
    assert posterior_words.describe_energy(probabilistic()) == (
        "In network.blocks.0.attention the 2 columns of E capture 80 % of the energy ‖K_att‖², where 2 columns can "
        "capture 97 %."
    )
    assert posterior_words.describe_energy(result()) == ""


def test_the_number_of_examples_of_the_spectra_is_in_words(probabilistic):
    run = probabilistic()
    (layer, spectrum), *_ = run.spectra.items()
    spectra = {layer: spectrum._replace(examples=256), "other": spectrum._replace(examples=2)}
    assert posterior_words.describe_examples(replace(run, spectra=spectra)) == "Means over 2 to 256 examples."
    assert posterior_words.describe_examples(run) == ""


def test_the_report_has_verdict_spread_and_energy(probabilistic, read, tmp_path):
    run = probabilistic(convergence=[site(gain=0.35)], spread=spread(1e-6))
    reader = read(tmp_path / "r.html", [run])
    assert "Has the posterior converged?" in reader.text
    rows = [[cell["text"] for cell in row] for table in reader.tables for row in table]
    verdict = run.convergence[0].state
    assert [SITE, verdict, "0.35", "60"] in rows
    assert "hardly disagree" in reader.text
    assert "2 columns of E capture 80" in reader.text
    assert "lie on the lines" not in " ".join(panel.caption for panel in report.PANELS)
