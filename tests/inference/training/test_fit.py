"""fit: what it does in each step, and that a run which was killed goes on as if it had not been."""

import json
import math
import warnings

import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SoftmaxAttention, draws, guides
from probattn.functional.errors import NumericalError
from probattn.inference import CheckpointError, NonFiniteError, TraceMeanField_ELBO, fit
from probattn.inference.distributed import collectives, random_state
from probattn.inference.io import checkpoint
from probattn.inference.training import trainer
from probattn.inference.training.objective import Objective
from probattn.inference.training.run_log import read_log
from probattn.inference.training.schedule import SCHEDULES, learning_rate
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian

STEPS = 3


class Regularised(SoftmaxAttention):
    """Softmax attention with a regulariser of 3 nats an example, in the CGP layers' form."""

    def forward(self, x, mask=None):
        unit = dist.Unit(x.new_full(x.shape[-3:-2], -3.0))
        self.observe("fit", unit, unit.sample(), regulariser=True)
        return super().forward(x, mask)


class Network(PyroModule):
    def __init__(self, *, outputs=3, dropout=0.0, width=4, attention=None) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.attention = attention or KEPSVGPAttention(width, 2, rank=2, eta=0.1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.dropout(x + self.attention(x)).mean(-2))


class Loader(DataLoader):
    """A loader that calls back at batch number ``at = (epoch, batch)``, the batch 1 or later.

    An epoch counts from its second batch on, since fit may look at one batch beforehand.
    """

    started, at, callback = 0, None, None

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            self.started += number == 1
            if self.at == (self.started, number):
                batch = self.callback(batch) or batch
            yield batch


def data(size=8):
    source = torch.Generator().manual_seed(0)
    y = torch.arange(size) % 3
    x = torch.randn(size, 4, 3, generator=source) * 0.3 + torch.eye(3)[y].unsqueeze(1)
    return TensorDataset(x, y)


def build(
    seed=0,
    *,
    guide="full",
    dropout=0.0,
    generator=True,
    valid=True,
    width=4,
    likelihood=None,
    num_data=8,
    attention=None,
    **_,
):
    """Model, guide and loaders (three batches of 3, 3 and 2), all of them from ``seed``."""
    torch.manual_seed(seed)
    outputs = 1 if isinstance(likelihood, Gaussian) else 3
    network = Network(dropout=dropout, width=width, outputs=outputs, attention=attention and attention(width, 2))
    model = Supervised(network, likelihood or Categorical(), num_data=num_data)
    made = guides.for_model(model, guide) if isinstance(guide, str) else guide(model)
    source = torch.Generator().manual_seed(100 + seed) if generator else None
    train = Loader(data(), batch_size=3, shuffle=True, generator=source)
    return model, made, train, DataLoader(data(), batch_size=4) if valid else None


def weights(*modules):
    return {
        f"{i}.{name}": value.clone() for i, module in enumerate(modules) for name, value in module.state_dict().items()
    }


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def untimed(records):
    """Records without times, as text, since NaN is no equal of NaN."""
    return [json.dumps({key: value for key, value in record.items() if key != "seconds"}) for record in records]


def lines(folder):
    return read_log(folder / "log.jsonl")


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def short(**options):
    return {"epochs": 4, "lr": 0.02, "log_every": 1, "num_samples": 3, "progress": False} | options


def test_loss_falls_and_accuracy_rises():
    torch.manual_seed(0)
    model, guide, _, _ = build(num_data=30)
    train = DataLoader(data(30), batch_size=10, shuffle=True)
    history = fit(model, guide, train, train, epochs=25, lr=0.05, progress=False)
    losses = [epoch["train_loss"] for epoch in history.epochs]
    assert losses[-1] < 0.8 * losses[0]
    accuracies = [epoch["valid/accuracy"] for epoch in history.epochs]
    assert accuracies[0] < history.best_value == max(accuracies)
    assert history.best_value > 0.95
    assert history.epochs[history.best_epoch - 1]["valid/accuracy"] == history.best_value


@pytest.mark.parametrize("guide", ["full", AutoNormal])
def test_the_same_seed_gives_the_same_weights_bit_by_bit(guide):
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(int(torch.randint(1000, ())))
        model, q, train, valid = build(guide=guide, dropout=0.3)
        torch.rand(seed + len(results))
        history = fit(model, q, train, valid, **short(epochs=2, seed=seed))
        results.append((weights(model, q), untimed(history.steps)))
    assert_same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert results[0][1] != results[2][1]


def test_without_a_seed_the_generator_is_left_as_it_is():
    losses = []
    for seed in (4, 4, 5):
        model, q, train, _ = build()
        torch.manual_seed(seed)
        losses.append([step["loss"] for step in fit(model, q, train, **short(epochs=1, seed=None)).steps])
    assert losses[0] == losses[1] != losses[2]


VARIANTS = {
    "plain": {},
    "no generator": {"generator": False},
    "dropout": {"dropout": 0.4},
    "auto": {"guide": AutoNormal},
    "auto multivariate": {"guide": AutoMultivariateNormal, "samples_per": "batch"},
    "without validation": {"valid": False},
    "clip": {"clip_norm": 0.05},
    "anneal": {"kl_anneal_epochs": 3, "warmup_epochs": 2.5, "kl_weight": 0.5},
    "alpha": {"alpha_start": 0.0, "alpha_end": 0.8, "schedule": "linear", "attention": Regularised},
    "num_particles": {"num_particles": 2, "elbo": "trace"},
    "patience": {"patience": 3, "monitor": "nll", "lr": 0.5, "epochs": 6},
    "all": {
        "dropout": 0.2,
        "guide": AutoNormal,
        "clip_norm": 0.5,
        "kl_anneal_epochs": 2,
        "num_particles": 2,
        "patience": 4,
        "monitor": "log_prob",
        "weight_decay": 0.01,
        "warmup_epochs": 1,
        "precision": "bf16-mixed",
    },
}
BUILDING = ("guide", "dropout", "generator", "valid", "attention")


def kill(batch):
    raise KeyboardInterrupt


@pytest.mark.parametrize("epoch", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path, variant, epoch):
    """Killed at the second batch of an epoch; what is built anew has other weights and other random states."""
    options = VARIANTS[variant]
    training = short(**{name: value for name, value in options.items() if name not in BUILDING})

    model, guide, train, valid = build(**options)
    whole = fit(model, guide, train, valid, out=tmp_path / "whole", **training)
    expected = weights(model, guide)

    model, guide, train, valid = build(**options)
    train.at, train.callback = (epoch, 1), kill
    with pytest.raises(KeyboardInterrupt):
        fit(model, guide, train, valid, out=tmp_path / "killed", **training)

    model, guide, train, valid = build(seed=0 if epoch == 1 else 9, **options)
    with (tmp_path / "killed" / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "st')
    resumed = fit(model, guide, train, valid, out=tmp_path / "killed", resume=True, **training)

    assert_same(weights(model, guide), expected)
    assert untimed(resumed.steps) == untimed(whole.steps)
    assert untimed(resumed.epochs) == untimed(whole.epochs)
    assert (resumed.best_epoch, resumed.best_value) == (whole.best_epoch, whole.best_value)
    assert untimed(lines(tmp_path / "killed")) == untimed(lines(tmp_path / "whole"))
    for name in ("best.pt", "last.pt"):
        first, second = (checkpoint.read(tmp_path / run / name) for run in ("whole", "killed"))
        for part in ("model", "guide"):
            assert_same(first[part], second[part])
        if name == "last.pt":
            states = [file["extra"]["random"][0]["torch"] for file in (first, second)]
            assert torch.equal(*states)
            moments = (file["extra"]["optimizer"]["state"] for file in (first, second))
            for one, other in zip(*(m.values() for m in moments), strict=True):
                assert_same(one, other)


def test_a_finished_run_is_not_trained_again(tmp_path):
    model, guide, train, valid = build()
    first = fit(model, guide, train, valid, out=tmp_path, **short())
    expected, before = weights(model, guide), (tmp_path / "last.pt").read_bytes()
    model, guide, train, valid = build(seed=3)
    second = fit(model, guide, train, valid, out=tmp_path, resume=True, **short())
    assert train.started == 0
    assert_same(weights(model, guide), expected)
    assert untimed(second.steps + second.epochs) == untimed(first.steps + first.epochs)
    assert (second.best_epoch, second.best_value) == (first.best_epoch, first.best_value)
    assert (tmp_path / "last.pt").read_bytes() == before


def test_resume_without_a_run_starts_one(tmp_path):
    model, guide, train, _ = build()
    history = fit(model, guide, train, out=tmp_path / "a" / "b", resume=True, **short(epochs=1))
    assert (tmp_path / "a" / "b" / "last.pt").exists()
    assert len(history.epochs) == 1


@pytest.fixture
def run(tmp_path):
    """The folder of a finished run of one epoch."""
    model, guide, train, valid = build()
    fit(model, guide, train, valid, out=tmp_path / "run", **short(epochs=1))
    return tmp_path / "run"


def refused(run, error, match, *, built=None, resume=True, **options):
    """fit must raise, with every file and every weight as before."""
    files = snapshot(run)
    model, guide, train, valid = built or build(seed=5)
    before = weights(model, guide)
    with pytest.raises(error, match=match) as caught:
        fit(model, guide, train, valid, out=run, resume=resume, **short(**({"epochs": 1} | options)))
    assert snapshot(run) == files
    assert_same(weights(model, guide), before)
    return str(caught.value)


def test_a_folder_with_a_run_is_not_overwritten(run):
    refused(run, FileExistsError, "resume=True", resume=False)


def test_resuming_with_other_options_names_them(run):
    message = refused(run, CheckpointError, "other options", lr=0.5, epochs=7, clip_norm=1.0)
    for line in ("lr: 0.02 → 0.5", "epochs: 1 → 7", "clip_norm: None → 1.0"):
        assert line in message
    assert "seed" not in message


def test_resuming_another_architecture_names_its_differences(run):
    message = refused(run, CheckpointError, "another architecture", built=build(width=6))
    assert "model: network.embed.weight has shape (6, 3), the checkpoint (4, 3)" in message
    refused(run, CheckpointError, "guide: network.attention.u.raw_scale is missing", built=build(guide="diagonal"))


def test_resuming_with_a_loader_that_cannot_be_put_back_is_refused(run):
    with pytest.raises(CheckpointError, match="had a generator and now has none"):
        fit(*build(generator=False), out=run, resume=True, **short(epochs=1))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_half_written_last_checkpoint_is_refused(run, share):
    whole = (run / "last.pt").read_bytes()
    (run / "last.pt").write_bytes(whole[: int(share * len(whole))])
    refused(run, CheckpointError, r"last\.pt is damaged")


def test_weights_alone_are_no_run_to_go_on_with(run):
    (run / "last.pt").write_bytes((run / "best.pt").read_bytes())
    refused(run, CheckpointError, r"last\.pt holds weights alone, as best\.pt does")


def test_a_last_checkpoint_of_random_bytes_is_refused(run):
    (run / "last.pt").write_bytes(bytes(torch.randint(256, (5000,), dtype=torch.uint8).tolist()))
    refused(run, CheckpointError, r"last\.pt is damaged")


def poison_inputs(model, guide):
    return lambda batch: [batch[0].clone().index_fill(0, torch.tensor([1]), math.nan), batch[1]]


def poison_weight(model, guide):
    def poison(batch):
        with torch.no_grad():
            model.network.embed.bias[0] = math.inf

    return poison


def poison_guide(model, guide):
    def poison(batch):
        with torch.no_grad():
            guide.network.attention.u.loc[0, 0, 0] = math.nan

    return poison


def poison_loss(model, guide):
    def poison(batch):
        model.network.attention.eta = math.nan

    return poison


def poison_gradient(model, guide):
    def poison(batch):
        model.network.head.weight.register_hook(lambda gradient: gradient * math.nan)

    return poison


def poison_cholesky(model, guide):
    def poison(batch):
        def refuse(module, inputs):
            raise NumericalError("CGPAttention 'network.attention': 𝒦_o + σ²I is not positive definite")

        model.network.attention.register_forward_pre_hook(refuse)

    return poison


def poison_cholesky_and_inputs(model, guide):
    def poison(batch):
        poison_cholesky(model, guide)(batch)
        return poison_inputs(model, guide)(batch)

    return poison


POISONS = {
    poison_inputs: r"epoch 2, batch 1: NaN or Inf in the inputs, rows \[1\] of the batch",
    poison_weight: r"epoch 2, batch 1: NaN or Inf in parameter network\.embed\.bias of the model",
    poison_guide: r"epoch 2, batch 1: NaN or Inf in parameter network\.attention\.u\.loc of the guide",
    poison_loss: r"epoch 2, batch 1: NaN or Inf; lower lr \(Expected parameter log_factor",
    poison_cholesky: r"^epoch 2, batch 1: CGPAttention 'network.attention': 𝒦_o \+ σ²I is not positive definite$",
    poison_cholesky_and_inputs: r"epoch 2, batch 1: NaN or Inf in the inputs, rows \[1\] of the batch.*CGPAttention",
    poison_gradient: r"epoch 2, batch [12]: NaN or Inf in (parameter|the gradient of) network\.head\.weight",
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"valid": False}])
def test_what_is_not_finite_is_named_and_never_reaches_the_disk(tmp_path, poison, batch, options):
    """Also in an epoch's last batch, behind which only the checkpoints come."""
    model, guide, train, valid = build(**options)
    options = {name: value for name, value in options.items() if name != "valid"}
    train.at, files = (2, batch), {}

    then = poison(model, guide)

    def callback(batch):
        files.update({name: (tmp_path / name).read_bytes() for name in ("last.pt", "best.pt")})
        return then(batch)

    train.callback = callback
    with pytest.raises(NonFiniteError, match=POISONS[poison].replace("batch 1", f"batch {batch}")):
        fit(model, guide, train, valid, out=tmp_path, **short(**options))
    for name, content in files.items():
        assert (tmp_path / name).read_bytes() == content
    assert len(files) == 2
    content = checkpoint.read(tmp_path / "last.pt")
    assert all(value.isfinite().all() for part in ("model", "guide") for value in content[part].values())


def test_an_error_of_the_numerics_in_validation_is_named(tmp_path):
    def refuse(module, inputs):
        if not module.training and (inputs[0].abs() > 100).any():
            raise NumericalError("CGPAttention 'network.attention': 𝒦_o + σ²I is not positive definite")

    model, guide, train, _ = build()
    model.network.attention.register_forward_pre_hook(refuse)
    x, y = data().tensors
    words = r"^epoch 1, validation: batch 1: CGPAttention 'network.attention': 𝒦_o \+ σ²I is not positive definite$"
    with pytest.raises(NonFiniteError, match=words):
        fit(model, guide, train, [(x, y), (1e6 * x, y)], out=tmp_path, **short())
    assert not (tmp_path / "last.pt").exists()


@pytest.mark.parametrize("place", ["model", "handlers"])
def test_an_error_without_a_message_stays_itself(place, monkeypatch):
    """Also one that comes from outside of Pyro's traces, which add shapes to a message."""

    def refuse(*_):
        raise RuntimeError

    model, guide, train, _ = build()
    if place == "model":
        model.network.attention.register_forward_pre_hook(refuse)
    else:
        monkeypatch.setattr(Objective, "_handlers", refuse)
    with pytest.raises(RuntimeError) as raised:
        fit(model, guide, train, **short())
    assert type(raised.value) is RuntimeError
    assert str(raised.value).partition("\n")[0] == ""
    with torch.no_grad():
        model.network.head.weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"head\.weight of the model: .* \(RuntimeError\)"):
        fit(model, guide, train, **short())


def test_broken_regression_labels_are_named():
    model, guide, _, _ = build(likelihood=Gaussian())
    x, y = torch.randn(4, 4, 3), torch.tensor([[0.0], [1.0], [math.nan], [2.0]])
    with pytest.raises(NonFiniteError, match=r"epoch 1, batch 0: NaN or Inf in the labels, rows \[2\]"):
        fit(model, guide, [(x, y)], **short())


def test_an_error_that_has_nothing_to_do_with_nan_stays_itself():
    model, guide, _, _ = build()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit(model, guide, [(torch.randn(4, 4, 2), torch.zeros(4).long())], **short())


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("nll", [3.0, 1.0, 1.0, 2.0], 2),
        ("accuracy", [0.1, 0.5, 0.7, 0.2], 3),
        ("log_prob", [-1.0, -2.0, -0.5, -3.0], 3),
        ("ece", [math.nan, 0.3, math.nan, 0.4], 2),
        ("auroc", [math.nan, math.nan, math.nan, math.nan], 1),
    ],
)
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_best_epoch_is_kept_and_the_model_ends_with_it(tmp_path, monkeypatch, monitor, values, best, on_disk):
    model, guide, train, valid = build()
    seen = []

    def validate(model, guide, data, *, num_samples):
        assert (data, num_samples) == (valid, 3)
        seen.append(weights(model, guide))
        return {monitor: values[len(seen) - 1], "other": 0.0}

    monkeypatch.setattr(trainer, "validate", validate)
    out = tmp_path if on_disk else None
    history = fit(model, guide, train, valid, out=out, **short(monitor=monitor))
    assert history.best_epoch == best
    assert history.best_value == values[best - 1] or math.isnan(values[best - 1])
    assert_same(weights(model, guide), seen[best - 1])
    if on_disk:
        model, guide, _, _ = build(seed=7)
        extra = checkpoint.load(tmp_path / "best.pt", model, guide)
        assert extra["epoch"] == best
        assert_same(weights(model, guide), seen[best - 1])
        checkpoint.load(tmp_path / "last.pt", model, guide)
        assert_same(weights(model, guide), seen[-1])


def test_patience_counts_epochs_without_a_better_one(monkeypatch):
    values = iter([1.0, 2.0, 0.5, 0.5, 0.6, 0.1])
    monkeypatch.setattr(trainer, "validate", lambda *args, **kwargs: {"nll": next(values)})
    model, guide, train, valid = build()
    history = fit(model, guide, train, valid, **short(epochs=6, monitor="nll", patience=2))
    assert [epoch["valid/nll"] for epoch in history.epochs] == [1.0, 2.0, 0.5, 0.5, 0.6]
    assert history.best_epoch == 3


@pytest.mark.parametrize("on_disk", [True, False])
def test_without_validation_the_last_epoch_counts(tmp_path, on_disk):
    model, guide, train, _ = build()
    history = fit(model, guide, train, out=tmp_path if on_disk else None, **short())
    assert (history.best_epoch, history.best_value) == (4, None)
    end = weights(model, guide)
    reference, other, train, _ = build()
    fit(reference, other, train, **short())
    assert_same(end, weights(reference, other))
    assert "valid/accuracy" not in history.epochs[0]


def test_a_monitor_that_the_model_does_not_have_is_an_error_that_names_those_it_has(tmp_path):
    model, guide, _, _ = build(likelihood=Gaussian())
    batches = [(torch.randn(4, 4, 3), torch.randn(4, 1))]
    with pytest.raises(ValueError, match="monitor 'accuracy' is no metric of this model; choose one of log_prob"):
        fit(model, guide, batches, batches, out=tmp_path, **short(monitor="accuracy"))
    assert not (tmp_path / "last.pt").exists()
    model, guide, train, _ = build()
    with pytest.raises(ValueError, match="monitor='acuracy'"):
        fit(model, guide, train, train, **short(monitor="acuracy"))
    assert train.started == 0


def test_unknown_options_and_no_data_are_errors(tmp_path):
    model, guide, train, _ = build()
    with pytest.raises(TypeError, match="learning_rate"):
        fit(model, guide, train, learning_rate=0.1)
    empty = DataLoader(TensorDataset(torch.zeros(0, 4, 3)), batch_size=2)
    for nothing in ([], empty):
        with pytest.raises(ValueError, match="gives no batch"):
            fit(model, guide, nothing, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
    rates = {"steps": 12, "warmup": 3, "lr": 0.02, "min_lr": 1e-5}
    assert [r["lr"] for r in history.steps] == [learning_rate("cosine", step=step, **rates) for step in range(12)]


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.5, 1.0), (0.7, 0.7), (1.0, 1.0)])
def test_alpha_goes_from_the_first_step_to_the_last(start, end):
    """And scales the regulariser alone: the rest of the loss is that of the network without one."""
    model, guide, train, _ = build(attention=Regularised)
    history = fit(model, guide, train, **short(alpha_start=start, alpha_end=end))
    alphas = [start + (end - start) * step / (4 * STEPS - 1) for step in range(4 * STEPS)]
    penalties = [record["penalty/network.attention.fit"] for record in history.steps]
    assert penalties == pytest.approx([3 * weight for weight in alphas], rel=1e-6)
    model, guide, train, _ = build(attention=SoftmaxAttention)
    plain = fit(model, guide, train, **short())
    assert [record["nll"] for record in history.steps] == pytest.approx([r["nll"] for r in plain.steps], rel=1e-5)
    losses = [record["loss"] - penalty for record, penalty in zip(history.steps, penalties, strict=True)]
    assert losses == pytest.approx([record["loss"] for record in plain.steps], rel=1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_learning_rate_follows_the_schedule_asked_for(name):
    model, guide, train, _ = build()
    history = fit(model, guide, train, **short(schedule=name, warmup_epochs=1, min_lr=1e-3))
    rates = {"steps": 12, "warmup": 3, "lr": 0.02, "min_lr": 1e-3}
    assert [r["lr"] for r in history.steps] == [learning_rate(name, step=step, **rates) for step in range(12)]


def test_log_every_logs_the_first_and_every_nth_step():
    model, guide, train, _ = build()
    history = fit(model, guide, train, **short(log_every=5))
    assert [record["step"] for record in history.steps] == [1, 5, 10]


def test_first_steps_are_adams_on_the_elbo_per_example():
    """Two steps by hand from the same random state: no hidden factor, no stale gradient."""
    options = short(epochs=1, lr=0.05, min_lr=0.05, clip_norm=0.3)
    model, guide, train, _ = build()
    batches = [(x, y) for x, y in train]
    model, guide, _, _ = build()
    fit(model, guide, batches, **options)
    actual = weights(model, guide)

    model, guide, _, _ = build()
    parameters = [*model.parameters(), *guide.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    torch.manual_seed(0)
    for x, y in batches:
        optimizer.zero_grad()
        with draws("example"):
            loss = TraceMeanField_ELBO()(model, guide)(x, y)
        (loss / 8).backward()
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        for p in parameters:
            p.grad.mul_(min(1.0, 0.3 / norm.item()))
        optimizer.step()
    by_hand = weights(model, guide)
    for name, value in actual.items():
        torch.testing.assert_close(value, by_hand[name], rtol=1e-4, atol=1e-6, msg=name)


def test_weight_decay_leaves_the_guide_alone():
    results = []
    for decay in (0.0, 10.0):
        model, guide, train, _ = build()
        fit(model, guide, [next(iter(train))], **short(epochs=1, weight_decay=decay))
        results.append((weights(model), weights(guide)))
    assert_same(results[0][1], results[1][1])
    decayed = {name for name, value in results[0][0].items() if not torch.equal(value, results[1][0][name])}
    assert decayed >= {"0.network.embed.weight", "0.network.head.weight", "0.network.attention.out.weight"}


def test_posterior_draws_and_elbo_are_the_ones_asked_for():
    shapes = {}
    for asked in ("example", "batch"):
        for particles in (1, 2):
            model, guide, train, _ = build()

            def record(module, inputs, output, key=(asked, particles)):
                shapes.setdefault(key, output.shape)

            model.network.attention.out.register_forward_hook(record)
            fit(model, guide, train, **short(epochs=1, samples_per=asked, num_particles=particles))
    assert shapes["example", 1] == shapes["batch", 1] == (3, 4, 4)
    assert shapes["example", 2] == shapes["batch", 2] == (2, 3, 4, 4)
    for asked in ("mean_field", "trace"):
        model, guide, train, _ = build()
        kl = [r["kl/network.attention.u"] for r in fit(model, guide, train, **short(epochs=1, elbo=asked)).steps]
        model, guide, train, _ = build()
        exact = sum(
            torch.distributions.kl_divergence(guide.get_submodule(site)(prior), prior).item()
            for site, prior in guides.latent_sites(model)
        )
        assert (kl[0] == pytest.approx(exact / 8, rel=1e-5)) == (asked == "mean_field")


def test_bf16_trains_float32_weights_with_labels_as_they_are():
    seen = []

    class Spy(Gaussian):
        def forward(self, outputs, mask=None):
            distribution = super().forward(outputs, mask)
            original = distribution.log_prob

            def log_prob(value):
                seen.append((outputs.dtype, value.dtype, value.max().item()))
                return original(value)

            distribution.log_prob = log_prob
            return distribution

    model, guide, _, _ = build(likelihood=Spy())
    x, y = torch.randn(8, 4, 3), torch.full((8, 1), 20.0001)
    history = fit(model, guide, [(x, y)], **short(epochs=30, lr=0.1, precision="bf16-mixed"))
    assert history.steps[-1]["loss"] < 0.5 * history.steps[0]["loss"]
    assert set(seen) == {(torch.bfloat16, torch.float32, y.max().item())}
    assert all(p.dtype == torch.float32 for p in [*model.parameters(), *guide.parameters()])


def test_bf16_starts_from_the_float32_loss():
    losses = []
    for precision in ("32", "bf16-mixed"):
        model, guide, train, valid = build()
        losses.append(fit(model, guide, train, valid, **short(epochs=1, precision=precision)).steps[0]["loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


def test_tensorboard_has_the_numbers_of_the_log_also_after_a_resume(tmp_path):
    model, guide, train, valid = build()
    train.at, train.callback = (3, 2), kill
    with pytest.raises(KeyboardInterrupt):
        fit(model, guide, train, valid, out=tmp_path, **short())
    fit(*build(seed=4), out=tmp_path, resume=True, **short())
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


def test_num_data_other_than_the_loaders_is_refused():
    model, guide, train, _ = build(num_data=3)
    with pytest.raises(ValueError, match=r"num_data=3, but the training loader has 8 examples.*2.67 times"):
        fit(model, guide, train, **short())


def test_a_guide_of_another_model_is_refused():
    model, _, train, _ = build()
    _, other, _, _ = build(1)
    with pytest.raises(ValueError, match="another model"):
        fit(model, other, train, **short())


@pytest.mark.parametrize("left", ["best.pt", "log.jsonl"])
def test_what_is_left_of_a_run_is_not_overwritten(tmp_path, left):
    model, guide, train, valid = build()
    fit(model, guide, train, valid, out=tmp_path, **short())
    for name in {"last.pt", "best.pt", "log.jsonl"} - {left}:
        (tmp_path / name).unlink()
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="holds a run"):
        fit(*build(), out=tmp_path, **short())
    assert snapshot(tmp_path) == before


def test_a_run_that_lost_its_last_checkpoint_is_not_started_over(tmp_path):
    model, guide, train, valid = build()
    fit(model, guide, train, valid, out=tmp_path, **short())
    (tmp_path / "last.pt").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match="without last.pt"):
        fit(*build(), out=tmp_path, resume=True, **short())
    assert snapshot(tmp_path) == before


def test_several_devices_are_refused(monkeypatch):
    monkeypatch.setattr(collectives.Fabric, "world_size", property(lambda self: 2))
    model, guide, train, _ = build()
    with pytest.raises(ValueError, match="torchrun --nproc-per-node=2"):
        fit(model, guide, train, **short())


def test_the_default_monitor_of_a_regression_is_its_log_probability():
    model, guide, _, _ = build(likelihood=Gaussian())
    batches = [(torch.randn(8, 4, 3), torch.randn(8, 1))]
    history = fit(model, guide, batches, batches, **short())
    assert history.best_value == max(epoch["valid/log_prob"] for epoch in history.epochs)


def test_a_samplers_generator_is_checkpointed(tmp_path):
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(data(), sampler=torch.utils.data.RandomSampler(data(), generator=generator))
    before = generator.get_state()
    state = random_state.capture(loader)
    list(loader)
    random_state.restore(state, loader)
    assert torch.equal(generator.get_state(), before)
