"""Options of fit change what they should: weights of the loss, schedules, draws, precision, weight decay."""

import pytest
import torch
from pyro.distributions.kl import kl_divergence
from small_fit import STEPS, Regularised, assert_same, build, short, weights

from probattn import SoftmaxAttention, guides
from probattn.inference import fit
from probattn.inference.training.optimizers import scheduled_lr
from probattn.models.likelihoods import Gaussian


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


def test_the_kl_weight_num_data_is_the_number_of_training_examples():
    """The whole KL then stands beside the mean log-likelihood, as the closed form of the untouched guide says."""
    model, guide, train, _ = build()
    site = "network.attention.u"
    prior = model.network.attention.sites()["u"]
    whole = kl_divergence(guide.network.attention.u(prior), prior).item()
    histories = {}
    for weight in ("num_data", 8, 1.0):
        histories[weight] = fit(*build()[:3], **short(epochs=2, kl_weight=weight))
    first = {weight: history.steps[0] for weight, history in histories.items()}
    assert first["num_data"][f"kl/{site}"] == pytest.approx(whole, rel=1e-5)
    assert first[1.0][f"kl/{site}"] == pytest.approx(whole / 8, rel=1e-5)
    assert [step["loss"] for step in histories["num_data"].steps] == [step["loss"] for step in histories[8].steps]


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_learning_rate_follows_the_schedule(name):
    model, guide, train, _ = build()
    arguments = short(schedule=name, warmup_epochs=1, min_lr=1e-3)
    history = fit(model, guide, train, **arguments)
    expected = [scheduled_lr(step, options=arguments["options"], steps_per_epoch=3) for step in range(12)]
    assert [record["lr"] for record in history.steps] == pytest.approx(expected, rel=1e-12)


def test_weight_decay_leaves_the_guide_alone():
    results = []
    for decay in (0.0, 10.0):
        model, guide, train, _ = build()
        fit(model, guide, [next(iter(train))], **short(epochs=1, weight_decay=decay))
        results.append((weights(model), weights(guide)))
    assert_same(results[0][1], results[1][1])
    decayed = {name for name, value in results[0][0].items() if not torch.equal(value, results[1][0][name])}
    assert decayed >= {"0.network.embed.weight", "0.network.head.weight", "0.network.attention.out.weight"}


def test_samples_per_and_elbo_select_samples_and_kl():
    shapes = {}
    for samples_per in ("example", "batch"):
        for particles in (1, 2):
            model, guide, train, _ = build()

            def record(module, inputs, output, key=(samples_per, particles)):
                if module.training:  # not in the prediction before the first epoch
                    shapes.setdefault(key, output.shape)

            model.network.attention.out.register_forward_hook(record)
            fit(model, guide, train, **short(epochs=1, samples_per=samples_per, num_particles=particles))
    assert shapes["example", 1] == shapes["batch", 1] == (3, 4, 4)
    assert shapes["example", 2] == shapes["batch", 2] == (2, 3, 4, 4)
    for elbo in ("mean_field", "trace"):
        model, guide, train, _ = build()
        kl = [r["kl/network.attention.u"] for r in fit(model, guide, train, **short(epochs=1, elbo=elbo)).steps]
        model, guide, train, _ = build()
        exact = sum(
            torch.distributions.kl_divergence(guide.get_submodule(site)(prior), prior).item()
            for site, prior in guides.latent_sites(model)
        )
        assert (kl[0] == pytest.approx(exact / 8, rel=1e-5)) == (elbo == "mean_field")


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
