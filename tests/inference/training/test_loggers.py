"""Loggers by Lightning Fabric's protocol, beside the run's own log."""

import csv

import pytest
from lightning_fabric.loggers import CSVLogger
from small_fit import build, lines, short, untimed

from probattn.inference import fit


class Recorder:
    """Logger that records its calls."""

    def __init__(self):
        self.metrics, self.status = [], []

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def finalize(self, status):
        self.status.append(status)


def test_a_logger_gets_records_and_the_end(tmp_path):
    logger = Recorder()
    history = fit(*build(), loggers=[logger], out=tmp_path, **short(epochs=2))
    assert logger.status == ["success"]
    steps = [(step, values) for step, values in logger.metrics if "step/loss" in values]
    assert [(step, values["step/loss"]) for step, values in steps] == [(r["step"], r["loss"]) for r in history.steps]
    epochs = [values for _, values in logger.metrics if "epoch/train_loss" in values]
    assert [each["valid/nll"] for each in epochs] == [each["valid/nll"] for each in history.epochs]
    assert sorted(untimed(lines(tmp_path))) == sorted(untimed(history.steps + history.epochs))


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, "failed"), (KeyboardInterrupt, "failed")])
def test_a_logger_is_told_how_the_run_ended(error, status):
    logger = Recorder()
    model, guide, train, valid = build()

    def fail(batch):
        raise error("stop")

    train.at, train.callback = (1, 1), fail
    with pytest.raises(error):
        fit(model, guide, train, valid, loggers=[logger], **short())
    assert logger.status == [status]


def test_lightnings_csv_logger_writes_the_terms_of_the_loss(tmp_path):
    history = fit(*build(), loggers=[CSVLogger(tmp_path, name="run")], **short(epochs=1))
    (path,) = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    losses = [float(row["step/loss"]) for row in rows if row["step/loss"]]
    assert losses == pytest.approx([record["loss"] for record in history.steps])
