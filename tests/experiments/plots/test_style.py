"""Names in figures."""

from probattn.experiments.plots import predictions, style


def test_names_are_drawn_as_they_are(result):
    assert style.shorten("network.blocks.6.attention.u") == "blocks.6.attention.u"
    assert style.shorten("0123456789", limit=7) == "01…6789"
    run = result(n=4, classes=2)
    runs = {"_hidden": (run.probs, run.labels), r"$\frac$ and $x$": (run.probs, run.labels)}
    figure = predictions.risk_coverage(runs)
    figure.draw_without_rendering()
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names[:2] == [" _hidden", r"\$\frac\$ and \$x\$"]
