"""Each logged step holds the terms of its loss, in log.jsonl and in a logger."""

import warnings

import pytest
from lightning_fabric.loggers import TensorBoardLogger
from small_fit import STEPS, build, lines, short, untimed

from probattn.inference import fit


def test_every_step_is_logged_once_and_its_terms_sum_to_the_loss(tmp_path):
    model, guide, train, valid = build()
    history = fit(model, guide, train, valid, out=tmp_path, **short(kl_anneal_epochs=1, warmup_epochs=1))
    assert sorted(untimed(lines(tmp_path))) == sorted(untimed(history.steps + history.epochs))
    assert [record["step"] for record in history.steps] == list(range(1, 4 * STEPS + 1))
    assert [record["epoch"] for record in history.steps] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    for record in history.steps:
        terms = {key: value for key, value in record.items() if key not in ("kind", "step", "epoch", "loss", "lr")}
        assert set(terms) == {"nll", "kl/network.attention.u", "penalty/network.attention.ksvd"}
        assert sum(terms.values()) == pytest.approx(record["loss"], rel=1e-5)
    kl = [record["kl/network.attention.u"] for record in history.steps[:4]]
    assert kl[0] == 0
    assert kl[1] == pytest.approx(kl[3] / 3, rel=0.1)
    for number, epoch in enumerate(history.epochs):
        losses = [record["loss"] for record in history.steps[number * STEPS : (number + 1) * STEPS]]
        mean = (3 * losses[0] + 3 * losses[1] + 2 * losses[2]) / 8
        assert epoch["train_loss"] == pytest.approx(mean)
        assert epoch["step"] == (number + 1) * STEPS


def test_log_every_logs_the_first_and_every_nth_step():
    model, guide, train, _ = build()
    history = fit(model, guide, train, **short(log_every=5))
    assert [record["step"] for record in history.steps] == [1, 5, 10]


def test_tensorboard_has_the_numbers_of_the_log(tmp_path):
    fit(*build(), out=tmp_path, loggers=[TensorBoardLogger(tmp_path, name="tensorboard", version="")], **short())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    records = lines(tmp_path)
    tags = {}
    for record in records:
        for key, value in record.items():
            if key not in ("kind", "step"):
                tag = key if "/" in key else f"{record['kind']}/{key}"
                tags.setdefault(tag, []).append((record["step"], value))
    assert set(events.Tags()["scalars"]) == set(tags)
    for tag, expected in tags.items():
        actual = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in actual] == [step for step, _ in expected], tag
        values = [value for _, value in expected]
        assert [value for _, value in actual] == pytest.approx(values, rel=1e-6, nan_ok=True), tag
