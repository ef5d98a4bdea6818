"""``refine``: all samples, or all members, for the least confident inputs after the first."""

import math

import pytest
import torch
from known_predictives import F64, build
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import Ensemble, PosteriorPredictive, predict
from probattn.models import Classifier, Supervised, TextTransformer, ViT, last
from probattn.models.likelihoods import Gaussian

SAMPLES, SHARE = 5, 0.3
KEP_SVGP = KEPSVGPAttention.partial(rank=2)


def expected_probs(draws, share):
    """Mean of all samples for the least confident examples of the first, which others keep."""
    n = draws.shape[1]
    rows = draws[0].amax(-1).argsort()[: math.ceil(share * n)]
    probs = draws[0].clone()
    probs[rows] = draws[:, rows].mean(0)
    return probs, rows.sort().values


def images():
    return torch.randn(11, 1, 4, 4, dtype=F64)


def classifier(attention, kind=ViT):
    """A ViT of two blocks for three classes, and its guide."""
    network = kind(
        image_size=4,
        patch_size=2,
        channels=1,
        classes=3,
        dim=4,
        depth=2,
        heads=2,
        mlp_dim=6,
        attention=attention,
    )
    model = Classifier(network, num_data=9).double()
    return model, guides.for_model(model)


def vit():
    return *classifier(last(1, KEP_SVGP, of=2)), images()


def network_without_blocks():
    return *build(), torch.randn(11, 5, 3, dtype=F64)


def network_in_all_layers():
    return *classifier(KEP_SVGP), images()


class Doubled(ViT):
    """A network with a ``forward`` of its own."""

    def forward(self, images):
        return 2 * super().forward(images)


class Twice(ViT):
    """A network with ``outputs_of`` its own."""

    def outputs_of(self, states, mask=None):
        return 2 * super().outputs_of(states, mask)


def network_with_a_forward_of_its_own():
    return *classifier(last(1, KEP_SVGP, of=2), Doubled), images()


def network_with_outputs_of_its_own():
    return *classifier(last(1, KEP_SVGP, of=2), Twice), images()


MODELS = (
    vit,
    network_without_blocks,
    network_in_all_layers,
    network_with_a_forward_of_its_own,
    network_with_outputs_of_its_own,
)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("vectorize", [True, False])
def test_the_least_confident_share_has_all_samples_and_the_others_the_first(make, vectorize):
    model, guide, x = make()
    options = {"num_samples": SAMPLES, "seed": 3, "vectorize": vectorize}
    whole = predict(model, guide, x, keep_draws=True, **options)
    probs, rows = expected_probs(whole.draws, SHARE)
    refined = predict(model, guide, x, refine=SHARE, **options)
    torch.testing.assert_close(refined.probs, probs)
    assert torch.equal(refined.samples_used, 1 + (SAMPLES - 1) * torch.isin(torch.arange(11), rows))
    several = refined.samples_used > 1
    for field in ("expected_entropy", "energy", "mutual_information"):
        expected = getattr(whole, field)[several]
        torch.testing.assert_close(getattr(refined, field)[several], expected, msg=field)
    once = refined.mutual_information[~several]
    torch.testing.assert_close(once, torch.zeros_like(once))


@pytest.mark.parametrize("make", MODELS)
def test_with_a_share_of_one_all_examples_have_all_samples(make):
    model, guide, x = make()
    whole = predict(model, guide, x, num_samples=SAMPLES, seed=3)
    refined = predict(model, guide, x, num_samples=SAMPLES, seed=3, refine=1.0)
    torch.testing.assert_close(refined.probs, whole.probs)
    assert (refined.samples_used == SAMPLES).all()


def test_batches_share_the_samples_and_each_has_its_own_share():
    model, guide, x = vit()
    loader = list(DataLoader(TensorDataset(x, torch.arange(11) % 3), batch_size=4))
    whole = predict(model, guide, x, num_samples=SAMPLES, seed=3, keep_draws=True)
    refined = predict(model, guide, loader, num_samples=SAMPLES, seed=3, refine=SHARE)
    expected = [expected_probs(draws, SHARE)[0] for draws in whole.draws.split(4, 1)]
    torch.testing.assert_close(refined.probs, torch.cat(expected))
    assert torch.equal(refined.labels, torch.arange(11) % 3)


def test_texts_keep_their_padding():
    network = TextTransformer(
        torch.nn.Embedding(7, 4),
        max_length=6,
        classes=3,
        dim=4,
        depth=2,
        heads=2,
        mlp_dim=6,
        attention=last(1, KEP_SVGP, of=2),
    )
    model = Classifier(network, num_data=9).double()
    guide = guides.for_model(model)
    mask = torch.arange(6) < torch.randint(2, 7, (8, 1))
    batch = [(torch.randint(1, 7, (8, 6)), torch.randint(3, (8,)), mask)]
    whole = predict(model, guide, batch, num_samples=SAMPLES, seed=3, keep_draws=True)
    refined = predict(model, guide, batch, num_samples=SAMPLES, seed=3, refine=SHARE)
    torch.testing.assert_close(refined.probs, expected_probs(whole.draws, SHARE)[0])


def test_posterior_samples_are_those_of_the_whole():
    model, guide, x = vit()
    samples = {name: torch.randn(SAMPLES, *shape(guide, name), dtype=F64) for name in guide.sites}
    whole = predict(model, samples, x, num_samples=SAMPLES, keep_draws=True)
    refined = predict(model, samples, x, num_samples=SAMPLES, refine=SHARE)
    torch.testing.assert_close(refined.probs, expected_probs(whole.draws, SHARE)[0])


def shape(guide, name):
    return guide()[name].shape


def test_the_blocks_below_the_first_stochastic_one_run_once():
    model, guide, x = vit()
    seen = []
    model.network.blocks[0].register_forward_hook(lambda block, x, y: seen.append(len(x[0])))
    predict(model, guide, x, num_samples=SAMPLES, refine=SHARE)
    assert sum(seen) == len(x)


def test_all_members_predict_the_least_confident_share_of_the_first():
    (*first_member, x), *rest = [vit() for _ in range(3)]
    members = [first_member, *(member[:2] for member in rest)]
    predictors = [PosteriorPredictive(*member, num_samples=1) for member in members]
    loader = list(DataLoader(TensorDataset(x, torch.arange(11) % 3), batch_size=4))
    torch.manual_seed(0)
    first = predictors[0].predict(loader).probs
    rows = first.amax(-1).argsort()[: math.ceil(SHARE * 11)].sort().values
    others = [predictor.predict(x[rows]).probs for predictor in predictors[1:]]
    expected = first.index_copy(0, rows, torch.stack([first[rows], *others]).mean(0))
    torch.manual_seed(0)
    answer = Ensemble(predictors, refine=SHARE).predict(loader)
    torch.testing.assert_close(answer.probs, expected)
    assert (answer.samples_used == 3).sum() == len(rows)
    torch.manual_seed(0)
    torch.testing.assert_close(Ensemble(predictors, refine=SHARE).predict_batch(x).probs, expected)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, math.nan])
def test_a_share_outside_its_range_is_an_error(share):
    model, guide, x = vit()
    with pytest.raises(ValueError, match="share"):
        predict(model, guide, x, refine=share)


def test_one_sample_numbers_and_kept_draws_are_errors():
    model, guide, x = vit()
    with pytest.raises(ValueError, match="two samples"):
        predict(model, guide, x, num_samples=1, refine=SHARE)
    with pytest.raises(ValueError, match="keep_draws"):
        predict(model, guide, x, keep_draws=True, refine=SHARE)
    numbers = Supervised(model.network, Gaussian(), num_data=9).double()
    with pytest.raises(ValueError, match="probs"):
        predict(numbers, guides.for_model(numbers), x, refine=SHARE)
