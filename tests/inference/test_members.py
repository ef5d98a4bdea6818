"""Members of an ensemble trained together: each is the run that it would be alone, but for its draws."""

import warnings
from contextlib import ExitStack

import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

from probattn import (
    CGPAttention,
    JitterWarning,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.functional import jitter
from probattn.handlers import at_mean
from probattn.inference import NonFiniteError, TrainOptions, fit
from probattn.inference.alike import find_obstacle
from probattn.inference.checkpoint import read
from probattn.inference.logs import read_log
from probattn.inference.members import Member, fit_members
from probattn.inference.members_step import DrawnAnew
from probattn.inference.training import begin
from probattn.models import Classifier, TextTransformer, ViT

LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEPSVGPAttention.partial(rank=2),
    "kep-svgp-concat": KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4),
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-joint": SGPAttention.partial(inducing=3, draws="joint"),
    "cgp": CGPAttention,
    "sparse-cgp": SparseCGPAttention.partial(inducing=3),
    "sparse-cgp-prior": SparseCGPAttention.partial(inducing=3, guide="prior"),
    "cgp-collapsed": CGPAttention.partial(collapsed=True),
    "sparse-cgp-collapsed": SparseCGPAttention.partial(inducing=3, collapsed=True),
}
EACH_LAYER = pytest.mark.parametrize("layer", LAYERS)
EXACT = {"rtol": 1e-10, "atol": 1e-10}


class Stop(Exception):  # noqa: N818
    pass


class Batches(list):
    """Batches in an order that each pass draws anew; ``at`` maps (pass, number) to what is done to a batch."""

    def __init__(self, batches, seed, at=None):
        super().__init__(batches)
        self.generator, self.at, self.passes = torch.Generator().manual_seed(seed), at or {}, 0

    def __iter__(self):
        order = torch.randperm(len(self), generator=self.generator).tolist()
        for number, index in enumerate(order):
            self.passes += number == 1  # a look at the first batch is no pass
            yield self.at.get((self.passes, number), lambda batch: batch)(self[index])


def stop(batch):
    raise Stop


def spoil(batch):
    x, *rest = batch
    return (x * float("nan"), *rest)


def build(seed, layer="kep-svgp", *, network=None, dropout=0.0, family="full", at=None, loader_seed=None, out=None):
    """A member of two batches an epoch, of which both belong to the same data."""
    torch.manual_seed(seed)
    network = network or ViT(
        image_size=4,
        patch_size=2,
        channels=1,
        classes=3,
        dim=8,
        depth=2,
        heads=2,
        mlp_dim=8,
        dropout=dropout,
        attention=LAYERS[layer],
    )
    model = Classifier(network, num_data=8).double()
    source = torch.Generator().manual_seed(7)
    images, labels = torch.randn(8, 1, 4, 4, dtype=torch.float64, generator=source), torch.arange(8) % 3
    batches = [(images[i : i + 4], labels[i : i + 4]) for i in (0, 4)]
    train = Batches(batches, seed if loader_seed is None else loader_seed, at)
    guide = guides.for_model(model, family)
    return Member(model=model, guide=guide, train=train, valid=batches, out=out, seed=seed)


def short(**options):
    return {"epochs": 3, "lr": 0.01, "log_every": 1, "num_draws": 2, "progress": False} | options


def fit_alone(member, **options):
    parts = (member.model, member.guide, member.train, member.valid)
    return fit(*parts, out=member.out, seed=member.seed, **options)


def weights(member):
    parts = {"model": member.model, "guide": member.guide}
    return {f"{part}.{name}": value for part, module in parts.items() for name, value in module.state_dict().items()}


def assert_close(first, second, **tolerance):
    assert weights(first).keys() == weights(second).keys()
    for name, value in weights(first).items():
        torch.testing.assert_close(weights(second)[name], value, msg=name, **tolerance)


def assert_same_records(first, second, **tolerance):
    for one, other in zip(first.steps + first.epochs, second.steps + second.epochs, strict=True):
        values = [{k: v for k, v in each.items() if k not in ("kind", "seconds")} for each in (one, other)]
        assert values[1] == pytest.approx(values[0], nan_ok=True, **tolerance)


def refuse(text):
    pytest.fail(f"not together: {text}")


@EACH_LAYER
def test_with_draws_fixed_members_together_are_what_each_is_alone(layer):
    """Alone with capture, for the sake of the jitter that no look at a matrix spares."""
    options = short(clip_norm=0.05, weight_decay=0.1, kl_anneal_epochs=2, alpha_start=0.2, warmup_epochs=1)
    with at_mean():
        alone = [build(seed, layer) for seed in range(3)]
        expected = [fit_alone(member, capture=True, **options) for member in alone]
        members = [build(seed, layer) for seed in range(3)]
        histories = fit_members(members, say=refuse, **options)
    for one, other, first, second in zip(alone, members, expected, histories, strict=True):
        assert_close(one, other, **EXACT)
        assert_same_records(first, second, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"elbo": "trace", "posterior_draws": "batch", "log_every": 2},
        {"particles": 2, "kl_weight": 0.1, "local_kl_weight": 0.2},
        {"patience": 1, "epochs": 6, "lr": 0.3},
    ],
)
@pytest.mark.parametrize("family", ["full", "diagonal", "lowrank", "delta"])
def test_nothing_is_lost_by_other_options_and_guides(family, options):
    with at_mean():
        alone, members = ([build(seed, family=family) for seed in range(3)] for _ in range(2))
        expected = [fit_alone(member, **short(**options)) for member in alone]
        histories = fit_members(members, say=refuse, **short(**options))
    for one, other, first, second in zip(alone, members, expected, histories, strict=True):
        assert_close(one, other, **EXACT)
        assert_same_records(first, second, rel=1e-9, abs=1e-9)


def test_half_precision_is_that_of_a_run_alone():
    options = short(precision="bf16-mixed", epochs=1)
    with at_mean():
        alone, members = ([build(seed) for seed in range(2)] for _ in range(2))
        for member in alone:
            fit_alone(member, **options)
        fit_members(members, say=refuse, **options)
    for one, other in zip(alone, members, strict=True):
        assert_close(one, other, rtol=0, atol=0.01)


def test_padded_texts_are_trained_together():
    def text(seed):
        torch.manual_seed(seed)
        sizes = {"dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}
        network = TextTransformer(nn.Embedding(9, 8), classes=3, max_length=5, attention=LAYERS["kep-svgp"], **sizes)
        member = build(seed, network=network)
        mask = torch.arange(5) < torch.tensor([5, 2, 3, 1]).unsqueeze(1)
        batches = [(torch.randint(9, (4, 5)), y, mask) for _, y in member.valid]
        train = Batches(batches, seed)
        return Member(model=member.model, guide=member.guide, train=train, valid=batches, seed=seed)

    with at_mean():
        alone, members = ([text(seed) for seed in range(2)] for _ in range(2))
        for member in alone:
            fit_alone(member, **short())
        fit_members(members, say=refuse, **short())
    for one, other in zip(alone, members, strict=True):
        assert_close(one, other, **EXACT)


@pytest.mark.parametrize("layer", ["kep-svgp", "sgpa", "cgp", "softmax"])
def test_each_member_has_draws_of_its_own(layer):
    """Members that are alike in all else part in the first step: by their posterior draws, softmax by its dropout."""
    first, second = (build(0, layer, dropout=0.5 * (layer == "softmax")) for _ in range(2))
    assert_close(first, second, rtol=0, atol=0)
    fit_members([first, second], say=refuse, **short(epochs=1))
    before = weights(build(0, layer))
    moved = [name for name in before if not torch.equal(weights(first)[name], before[name])]
    assert len(moved) > 10
    assert [name for name in moved if torch.equal(weights(first)[name], weights(second)[name])] == []


def test_draws_of_all_members_have_their_law():
    scale = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[2.0, 0.0], [0.0, 0.5]]])

    def drawn(tril):
        return dist.MultivariateNormal(tril.new_ones(2), scale_tril=tril).rsample((40_000,))

    with DrawnAnew():
        draws = torch.vmap(drawn, randomness="different")(scale)
    torch.testing.assert_close(draws.mean(1), torch.ones(2, 2), rtol=0, atol=0.05)
    for member in range(2):
        torch.testing.assert_close(draws[member].T.cov(), scale[member] @ scale[member].T, rtol=0.05, atol=0.05)
    assert torch.stack([draws[0, :, 0], draws[1, :, 0]]).corrcoef()[0, 1].abs() < 0.03


def test_a_failing_member_is_named_and_the_others_keep_their_epoch(tmp_path):
    members = [
        build(seed, at={(2, 1): spoil} if seed == 1 else None, out=tmp_path / str(seed), dropout=0.1)
        for seed in range(3)
    ]
    # Made anew, the epoch is another pass over the data.
    members[1].train.at[(3, 1)] = spoil
    with pytest.raises(NonFiniteError, match=r"^member 1 \(seed 1\): epoch 2, batch 1: NaN or Inf in the inputs, rows"):
        fit_members(members, say=refuse, **short())
    assert [read(tmp_path / str(seed) / "last.pt")["extra"]["epoch"] for seed in range(3)] == [2, 1, 1]
    assert [record["epoch"] for record in read_log(tmp_path / "1" / "log.jsonl") if record["kind"] == "epoch"] == [1]


class Singular(PyroModule):
    """Factorises a matrix that the smallest jitter does not mend, wherever an input is above 50."""

    def __init__(self):
        super().__init__()
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x):
        eye = torch.eye(2, dtype=x.dtype)
        matrix = torch.where(x.amax() > 50, torch.ones_like(eye) - 1e-7 * eye, eye)
        return self.head(self.dropout(x.flatten(1).clamp(max=3.0))) + 1e-3 * jitter.cholesky(matrix, "a matrix").sum()


def test_an_epoch_that_needs_a_larger_jitter_is_made_anew_for_its_member_alone(together):
    def two(at=None):
        torch.manual_seed(0)
        return [build(0, network=Singular()), build(1, network=Singular(), at=at)]

    at = {(number, 0): lambda batch: (batch[0] + 100, batch[1]) for number in (1, 2)}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        members = two(at)
        histories = fit_members(members, say=refuse, **short())
    assert any(each.category is JitterWarning for each in caught)
    assert together == [2] * 6
    assert members[0].train.passes == 3
    assert members[1].train.passes == 4  # the second epoch twice
    assert [len(history.steps) for history in histories] == [6, 6]
    undisturbed = two()
    fit_members(undisturbed, say=refuse, **short())
    assert_close(undisturbed[0], members[0], rtol=0, atol=0)


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path):
    def three(**places):
        return [build(seed, dropout=0.2, out=tmp_path / str(seed), **places) for seed in range(3)]

    whole = [build(seed, dropout=0.2) for seed in range(3)]
    fit_members(whole, say=refuse, **short(epochs=4))
    with pytest.raises(Stop):
        fit_members(three(at={(3, 1): stop}), say=refuse, **short(epochs=4))
    resumed = three()
    torch.manual_seed(99)
    histories = fit_members(resumed, resume=True, say=refuse, **short(epochs=4))
    for one, other in zip(whole, resumed, strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert [[record["step"] for record in history.steps] for history in histories] == [list(range(1, 9))] * 3


def test_members_that_are_behind_are_trained_until_all_stand_at_the_same_epoch(tmp_path, together):
    def three():
        return [build(seed, out=tmp_path / str(seed)) for seed in range(3)]

    begun = three()
    begun[2].train.at[(2, 1)] = stop
    with pytest.raises(Stop):
        fit_members(begun, say=refuse, **short(epochs=4))
    ahead = three()[0]
    ahead.train.at[(2, 1)] = stop
    with pytest.raises(Stop):
        fit_alone(ahead, resume=True, **short(epochs=4))
    together.clear()
    histories = fit_members(three(), resume=True, say=refuse, **short(epochs=4))
    assert together == [2, 2, 3, 3, 3, 3]
    assert [[record["epoch"] for record in history.epochs] for history in histories] == [[1, 2, 3, 4]] * 3
    together.clear()
    again = three()
    assert fit_members(again, resume=True, say=refuse, **short(epochs=4)) == histories
    assert together == []


def test_a_member_can_go_on_alone(tmp_path):
    members = [build(seed, out=tmp_path / str(seed), at={(2, 1): stop}) for seed in range(2)]
    with pytest.raises(Stop):
        fit_members(members, say=refuse, **short())
    history = fit_alone(build(1, out=tmp_path / "1"), resume=True, **short())
    assert [record["epoch"] for record in history.epochs] == [1, 2, 3]
    sizes = [(tmp_path / str(seed) / "last.pt").stat().st_size for seed in range(2)]
    assert max(sizes) < 1.1 * min(sizes)  # no checkpoint holds the others' weights


class Unlike(PyroModule):
    """A network with something that no name or shape of a weight shows."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.head, self.factor = nn.Linear(16, 3), factor

    def forward(self, x):
        return self.factor * self.head(x.flatten(1))


class Looking(Unlike):
    """A network that looks at a value, which no map over members can."""

    def forward(self, x):
        return super().forward(x) if x.sum() < 1e9 else x


class Buffered(Unlike):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        ((Unlike, lambda: Unlike(2.0)), "not what they are alone"),
        ((Looking, Looking), "data-dependent control flow"),
        ((Buffered, Buffered), "buffers"),
        ((lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), Unlike), "networks or guides differ"),
    ],
)
def test_members_that_are_not_alike_are_each_trained_as_alone(networks, words, together):
    def two():
        torch.manual_seed(0)
        return [build(seed, network=network()) for seed, network in enumerate(networks)]

    alone, said, members = two(), [], two()
    expected = [fit_alone(member, **short()) for member in alone]
    histories = fit_members(members, say=said.append, **short())
    assert len(said) == 1
    assert said[0].startswith("one member after another: ")
    assert words in said[0]
    assert together == []
    for one, other, first, second in zip(alone, members, expected, histories, strict=True):
        assert_close(one, other, rtol=0, atol=0)
        assert_same_records(first, second)


def test_batches_of_different_shapes_are_trained_one_after_another(together):
    def cut(batch):
        return tuple(part[:3] for part in batch)

    def two(at):
        return [build(seed, at=at if seed else None, dropout=0.1) for seed in range(2)]

    alone, members, said = two({(0, 0): cut}), two({(0, 0): cut}), []
    for member in alone:
        fit_alone(member, **short())
    fit_members(members, say=said.append, **short())
    assert together == []
    for one, other in zip(alone, members, strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert "stack" in said.pop()
    with at_mean():  # where it shows in the second epoch only
        alone, members = [build(seed) for seed in range(2)], [build(seed) for seed in range(2)]
        alone[1].train.at = {(2, 1): cut, (2, 0): cut}
        members[1].train.at = {(2, 1): cut, (3, 1): cut, (3, 0): cut}  # the epoch is another pass when made anew
        for member in alone:
            fit_alone(member, **short())
        histories = fit_members(members, say=said.append, **short())
    assert together == [2] * 4
    assert len(said) == 1
    assert said[0].startswith("one member after another from epoch 2 on: ")
    for one, other in zip(alone, members, strict=True):
        assert_close(one, other, **EXACT)
    assert [[record["step"] for record in history.steps] for history in histories] == [list(range(1, 7))] * 2


def test_looking_whether_members_are_alike_leaves_no_trace():
    def states(members):
        loaders = [member.train.generator.get_state() for member in members]
        return [torch.get_rng_state(), *loaders, *(value for member in members for value in weights(member).values())]

    members = [build(seed, dropout=0.1) for seed in range(2)]
    settings = TrainOptions()
    with ExitStack() as held:
        trainers = [
            begin(member.model, member.guide, member.train, None, settings=settings, out=None, resume=False, held=held)
            for member in members
        ]
        before = [state.clone() for state in states(members)]
        assert find_obstacle(trainers) is None
    assert all(torch.equal(*pair) for pair in zip(before, states(members), strict=True))


def test_members_share_neither_models_nor_folders(tmp_path):
    one, other = build(0, out=tmp_path), build(1, out=tmp_path)
    with pytest.raises(ValueError, match="of its own"):
        fit_members([one, other], **short())
    with pytest.raises(ValueError, match="of its own"):
        fit_members([build(0), build(0)] + [Member(model=one.model, guide=one.guide, train=one.train)] * 2, **short())
    with pytest.raises(ValueError, match="no members"):
        fit_members([], **short())
    assert not list(tmp_path.iterdir())
