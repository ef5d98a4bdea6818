"""Detectors and their metrics against arithmetic done by hand, scikit-learn, pytorch-ood, and their own properties."""

import math
from itertools import product

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_ood.detector import EnergyBased, Entropy, MaxSoftmax
from pytorch_ood.detector import KLMatching as TheirKLMatching
from pytorch_ood.metrics import OODMetrics

from probattn.inference.metrics import ood
from probattn.inference.prediction.result import Prediction

DETECTORS = ["kl_matching", "max_softmax", "entropy", "energy", "mutual_information"]


def of(*rows, **fields):
    return Prediction(probs=torch.tensor(rows, dtype=torch.float64), **fields)


def from_logits(logits):
    """Return the prediction of one draw."""
    probs = logits.softmax(1)
    return Prediction(
        probs=probs,
        expected_entropy=torch.special.entr(probs).sum(1),
        energy=-logits.logsumexp(1),
        labels=torch.zeros(len(logits), dtype=torch.long),
    )


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def random_scores(seed, n=700, m=400):
    """Overlapping scores on both sides of 0, with ties."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(-1, 1, n).round(2), rng.normal(0, 1.5, m).round(2)
    return torch.tensor(inside), torch.tensor(outside)


def brute_force(inside, outside):
    """Every metric by its definition, in exact pairs and thresholds."""
    inside, outside = inside.tolist(), outside.tolist()
    wins = sum((b > a) + 0.5 * (b == a) for a, b in product(inside, outside))

    def precision(positive, negative):
        """Average precision where a lower value is more likely positive."""
        total = 0.0
        for value in positive:
            found, false = sum(p <= value for p in positive), sum(q <= value for q in negative)
            total += found / (found + false)
        return total / len(positive)

    def fpr95(positive, negative):
        accepting = [t for t in positive if sum(p <= t for p in positive) * 100 >= 95 * len(positive)]
        return sum(q <= min(accepting) for q in negative) / len(negative)

    minus = [-a for a in inside], [-b for b in outside]
    return {
        "auroc": wins / len(inside) / len(outside),
        "aupr_in": precision(inside, outside),
        "aupr_out": precision(minus[1], minus[0]),
        "fpr95_in": fpr95(inside, outside),
        "fpr95_out": fpr95(minus[1], minus[0]),
    }


# Exact in binary, with many ties, on both sides of [0, 1].
values = st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=1, max_size=40).map(lambda v: tensor(*v))
property_test = settings(max_examples=60, deadline=None)


# --- Detectors


def score(name, prediction):
    """The scores of one detector."""
    return ood.scores(prediction, fitted_on=prediction)[name]


class TestDetectorsByHand:
    SURE, UNSURE = (0.7, 0.2, 0.1), (0.4, 0.3, 0.3)

    def test_max_softmax(self):
        assert score("max_softmax", of(self.SURE, self.UNSURE)).tolist() == pytest.approx([0.3, 0.6])

    def test_entropy(self):
        expected = [-sum(p * math.log(p) for p in row) for row in (self.SURE, self.UNSURE)]
        assert score("entropy", of(self.SURE, self.UNSURE)).tolist() == pytest.approx(expected)
        assert score("entropy", of((1.0, 0.0))).item() == 0

    def test_energy_and_mutual_information_are_the_predictions(self):
        prediction = of(self.SURE, self.UNSURE, energy=tensor(-3, 2), expected_entropy=tensor(0.5, 0.25))
        assert score("energy", prediction).tolist() == [-3, 2]
        entropies = score("entropy", prediction)
        assert score("mutual_information", prediction).tolist() == pytest.approx(
            (entropies - tensor(0.5, 0.25)).tolist()
        )

    def test_kl_matching(self):
        # Classes 0 and 2 are predicted; their mean posteriors are (.7, .2, .1) and (.1, .3, .6).
        valid = of((0.8, 0.1, 0.1), (0.6, 0.3, 0.1), (0.1, 0.3, 0.6), labels=torch.tensor([1, 1, 1]))
        prediction = of((0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3))
        point, even = ood.kl_matching(prediction, fitted_on=valid).tolist()
        assert point == pytest.approx(0, abs=1e-12)
        divergences = [sum(math.log(1 / 3 / d) / 3 for d in row) for row in ((0.7, 0.2, 0.1), (0.1, 0.3, 0.6))]
        assert even == pytest.approx(min(divergences))

    def test_kl_matching_of_zeros_is_finite_and_large(self):
        valid = Prediction(probs=torch.tensor([[1.0, 0.0, 0.0]]))
        prediction = Prediction(probs=torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]))
        same, other = ood.kl_matching(prediction, fitted_on=valid).tolist()
        assert same == 0
        assert other == pytest.approx(-math.log(torch.finfo(torch.float32).tiny) - math.log(2))

    def test_draws_that_are_alike_share_no_information(self):
        probs = (3 * torch.randn(500, 10)).softmax(1).expand(10, -1, -1)
        prediction = Prediction(probs=probs.mean(0), expected_entropy=torch.special.entr(probs).sum(-1).mean(0))
        assert prediction.mutual_information.max() > 0  # rounding
        assert score("mutual_information", prediction).max() == 0

    @pytest.mark.parametrize("apart", [0.5, 0.004])
    def test_draws_that_differ_do(self, apart):
        # Two draws of (½ ± apart, ½ ∓ apart): their mean is even, and each lacks about 2·apart² nats of ln 2.
        one = tensor(0.5 + apart, 0.5 - apart)
        own = torch.special.entr(one).sum()
        prediction = Prediction(probs=torch.full((1, 2), 0.5), expected_entropy=own.float().unsqueeze(0))
        assert score("mutual_information", prediction).item() == pytest.approx(math.log(2) - own.item(), abs=2e-7)


class TestDetectorsAgainstPytorchOOD:
    LOGITS, VALID = (3 * torch.randn(n, 6, generator=torch.Generator().manual_seed(n)) for n in (300, 200))

    @pytest.mark.parametrize(
        ("key", "theirs"), [("max_softmax", MaxSoftmax), ("entropy", Entropy), ("energy", EnergyBased)]
    )
    def test_plain_ones(self, key, theirs):
        ours = score(key, from_logits(self.LOGITS))
        expected = theirs(None).predict_logits(self.LOGITS).double()
        # Theirs is −confidence: the same order, one lower.
        torch.testing.assert_close(ours, expected + (key == "max_softmax"), atol=2e-6, rtol=0)

    def test_kl_matching_without_and_with_a_class_that_is_never_predicted(self):
        for column in (None, 2):
            valid = self.VALID.clone()
            if column is not None:
                valid[:, column] = -20
            expected = TheirKLMatching(None).fit_logits(valid).predict_logits(self.LOGITS).double()
            ours = ood.kl_matching(from_logits(self.LOGITS), fitted_on=from_logits(valid))
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


class TestScores:
    PREDICTION = from_logits(torch.randn(20, 4))

    def test_are_those_of_every_detector_in_order(self):
        found = ood.scores(self.PREDICTION, fitted_on=self.PREDICTION)
        assert list(found) == DETECTORS
        assert {score.dtype for score in found.values()} == {torch.float64}

    def test_what_the_prediction_lacks_is_left_out(self):
        bare = Prediction(probs=self.PREDICTION.probs)
        assert list(ood.scores(bare, fitted_on=bare)) == ["kl_matching", "max_softmax", "entropy"]
        # One of the two has it: nothing to compare.
        both = ood.evaluate(self.PREDICTION, bare, fitted_on=bare)
        assert list(both) == ["kl_matching", "max_softmax", "entropy"]
        assert list(ood.evaluate(bare, self.PREDICTION, fitted_on=bare)) == ["kl_matching", "max_softmax", "entropy"]

    def test_no_gradient_is_kept(self):
        logits = torch.randn(3, 4, requires_grad=True)
        found = ood.scores(from_logits(logits), fitted_on=self.PREDICTION)
        assert not any(score.requires_grad for score in found.values())

    @pytest.mark.parametrize(
        ("probs", "message"),
        [
            (None, "n, classes"),
            (torch.full((2, 3, 4), 0.25), "n, classes"),
        ],
    )
    def test_other_predictions_are_refused(self, probs, message):
        with pytest.raises(ValueError, match=message):
            ood.scores(Prediction(probs=probs), fitted_on=self.PREDICTION)

    def test_values_that_are_not_finite_are_refused(self):
        with pytest.raises(ValueError, match="NaN"):
            ood.evaluate(Prediction(probs=torch.full((3, 4), math.nan)), self.PREDICTION, fitted_on=self.PREDICTION)


# --- Metrics


class TestMetricsByHand:
    def test_apart(self):
        expected = {"auroc": 1, "aupr_in": 1, "aupr_out": 1, "fpr95_in": 0, "fpr95_out": 0}
        assert ood.detection_metrics(tensor(-3, -2), tensor(5, 6, 7)) == expected

    def test_the_wrong_way_round(self):
        found = ood.detection_metrics(tensor(1, 2), tensor(-1, -2))
        # In order of suspicion: in, in, out, out.
        assert found == pytest.approx(
            {"auroc": 0, "aupr_in": (1 / 3 + 2 / 4) / 2, "aupr_out": (1 / 3 + 2 / 4) / 2, "fpr95_in": 1, "fpr95_out": 1}
        )

    def test_mixed_with_a_tie(self):
        # Scores: 1 in, 2 in and out, 3 out, 4 in. Of six pairs the outside wins 1 + ½ and 2; 3½ of 6.
        found = ood.detection_metrics(tensor(1, 2, 4), tensor(2, 3))
        assert found == pytest.approx(
            {
                "auroc": 3.5 / 6,
                "aupr_in": (1 + 2 / 3 + 3 / 5) / 3,
                "aupr_out": (1 / 2 + 2 / 4) / 2,
                "fpr95_in": 1,  # to accept all three, 4 must be accepted
                "fpr95_out": 2 / 3,  # to reject both, 2 must be rejected
            },
            abs=1e-7,
        )

    def test_which_class_is_positive(self):
        # One of 100 in-distribution inputs looks strange, and 30 of 100 strange ones look known.
        inside, outside = torch.zeros(100), torch.ones(100)
        inside[0], outside[:30] = 2, 0
        found = ood.detection_metrics(inside, outside)
        assert found["fpr95_in"] == pytest.approx(0.30)
        assert found["fpr95_out"] == 1

    @pytest.mark.parametrize(("n", "accepted"), [(20, 19), (19, 19), (40, 38), (41, 39), (100, 95), (1, 1)])
    def test_95_per_cent_are_enough_and_less_are_not(self, n, accepted):
        # Strange inputs stand half a step above each known one.
        inside = torch.arange(n).double()
        assert ood.detection_metrics(inside, inside + 0.5)["fpr95_in"] == pytest.approx((accepted - 1) / n)
        assert ood.detection_metrics(-inside - 0.5, -inside)["fpr95_out"] == pytest.approx((accepted - 1) / n)

    def test_constant_scores_say_nothing(self):
        found = ood.detection_metrics(torch.full((3,), -7.0), torch.full((1,), -7.0))
        assert found == {"auroc": 0.5, "aupr_in": 0.75, "aupr_out": 0.25, "fpr95_in": 1, "fpr95_out": 1}


class TestPrecision:
    @pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9, 1e300])
    def test_scores_of_any_size_keep_their_order(self, scale):
        # A sigmoid would round 1e-9 and 2e-9 to one score, and 30 and 40 to 1.
        found = ood.detection_metrics(scale * tensor(-4, -3, 1), scale * tensor(-2, 2, 3))
        assert found["auroc"] == pytest.approx(8 / 9)

    def test_neighbours_in_float64_are_told_apart(self):
        above = math.nextafter(30.0, 31.0)
        assert ood.detection_metrics(tensor(30.0), tensor(above))["auroc"] == 1
        assert ood.detection_metrics(tensor(above), tensor(30.0))["auroc"] == 0

    def test_many_scores_are_told_apart(self):
        # A hundred thousand ranks, of which neighbours change places.
        order = torch.arange(100_000).double()
        found = ood.detection_metrics(order[1::2], order[0::2])
        assert found["auroc"] == pytest.approx(0.5 - 0.5 / 50_000, abs=2e-7)


class TestMetricsAgainst:
    @pytest.mark.parametrize("seed", range(4))
    def test_scikit_learn(self, seed):
        inside, outside = random_scores(seed)
        both = torch.cat([inside, outside]).numpy()
        is_out = np.repeat([0, 1], [len(inside), len(outside)])
        found = ood.detection_metrics(inside, outside)
        assert found["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(is_out, both), abs=1e-12)
        assert found["aupr_out"] == pytest.approx(sklearn.metrics.average_precision_score(is_out, both), abs=1e-12)
        assert found["aupr_in"] == pytest.approx(sklearn.metrics.average_precision_score(1 - is_out, -both), abs=1e-12)
        for key, positive, score in (("fpr95_out", is_out, both), ("fpr95_in", 1 - is_out, -both)):
            fpr, tpr, _ = sklearn.metrics.roc_curve(positive, score, drop_intermediate=False)
            assert found[key] == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)

    @pytest.mark.parametrize("seed", range(4))
    def test_pytorch_ood(self, seed):
        """Its FPR95TPR is our fpr95_out. Its AUPRs join the points of the same curves by lines, ours by steps."""
        inside, outside = random_scores(seed)
        outside = outside + 1e-3 * torch.arange(len(outside))  # fewer ties: lines and steps then nearly agree
        labels = torch.cat([torch.zeros(len(inside)), -torch.ones(len(outside))]).long()
        theirs = OODMetrics().update(torch.cat([inside, outside]), labels).compute()
        found = ood.detection_metrics(inside, outside)
        assert found["auroc"] == pytest.approx(theirs["AUROC"], abs=1e-12)
        assert found["fpr95_out"] == pytest.approx(theirs["FPR95TPR"], abs=1e-12)
        assert found["aupr_out"] == pytest.approx(theirs["AUPR-OUT"], abs=3e-3)
        assert found["aupr_in"] == pytest.approx(theirs["AUPR-IN"], abs=3e-3)
        assert abs(theirs["AUPR-OUT"] - theirs["AUPR-IN"]) > 0.02  # so that the two cannot be confused

    @property_test
    @given(values, values)
    def test_the_definitions(self, inside, outside):
        assert ood.detection_metrics(inside, outside) == pytest.approx(brute_force(inside, outside), abs=1e-12)


class TestProperties:
    @property_test
    @given(values, values, st.sampled_from([lambda s: 1e-9 * s, lambda s: s**3 - 5, torch.exp, torch.atan]))
    def test_only_the_order_counts(self, inside, outside, monotone):
        assert ood.detection_metrics(monotone(inside), monotone(outside)) == ood.detection_metrics(inside, outside)

    @property_test
    @given(values, values)
    def test_swapping_the_roles(self, inside, outside):
        there, back = ood.detection_metrics(inside, outside), ood.detection_metrics(outside, inside)
        assert back["auroc"] == pytest.approx(1 - there["auroc"], abs=1e-12)
        # With the sign turned too, known and strange have changed names only.
        mirrored = ood.detection_metrics(-outside, -inside)
        names = {"auroc": "auroc", "aupr_in": "aupr_out", "aupr_out": "aupr_in"}
        names |= {"fpr95_in": "fpr95_out", "fpr95_out": "fpr95_in"}
        assert {names[key]: value for key, value in mirrored.items()} == pytest.approx(there, abs=1e-12)

    @property_test
    @given(values, values, st.randoms())
    def test_the_order_of_the_inputs_does_not_count(self, inside, outside, random):
        shuffled = inside[random.sample(range(len(inside)), len(inside))]
        assert ood.detection_metrics(shuffled, outside.flip(0)) == pytest.approx(
            ood.detection_metrics(inside, outside), abs=1e-12
        )


@pytest.mark.parametrize("outside", [tensor(1, math.nan), tensor(math.inf, 0)])
def test_scores_that_are_not_finite_are_refused(outside):
    with pytest.raises(ValueError, match="contains"):
        ood.detection_metrics(tensor(1, 2), outside)


# --- Together


def test_evaluate_is_the_metrics_of_the_scores():
    inside, outside, valid = (from_logits(scale * torch.randn(200, 5)) for scale in (4, 1, 4))
    found = ood.evaluate(inside, outside, fitted_on=valid)
    assert list(found) == [key for key in DETECTORS if key != "mutual_information"]
    for key in found:
        pair = (ood.scores(prediction, fitted_on=valid)[key] for prediction in (inside, outside))
        assert found[key].items() > ood.detection_metrics(*pair).items()
    # Flat logits are strange to a network that is sure of what it knows.
    assert all(found[key]["auroc"] > 0.8 for key in ("max_softmax", "entropy", "energy"))
    assert found["kl_matching"]["auroc"] > 0.6


def test_mutual_information_is_judged_where_anything_was_drawn():
    """Two members that disagree on the one input or the other; without members there is none to judge."""
    one, other = (from_logits(3 * torch.randn(50, 4)) for _ in range(2))
    mixed = Prediction(
        probs=(one.probs + other.probs) / 2, expected_entropy=(one.expected_entropy + other.expected_entropy) / 2
    )
    for inside, outside, expected in ((one, mixed, 1.0), (mixed, one, 0.0), (mixed, mixed, 0.5)):
        found = ood.evaluate(inside, outside, fitted_on=one)
        assert found["mutual_information"]["auroc"] == expected
    assert "mutual_information" not in ood.evaluate(one, other, fitted_on=one)


def test_metrics_favour_the_better_detector():
    good, bad = (
        ood.detection_metrics(tensor(1, 2, 3), tensor(3, 4, 5)),
        ood.detection_metrics(tensor(1, 4, 5), tensor(2, 3, 3)),
    )
    for key in good:
        better, worse = (bad, good) if key.startswith("fpr95") else (good, bad)
        assert better[key] > worse[key], key


@pytest.mark.parametrize("seed", range(5))
def test_aurc_with_unknowns_is_the_mean_risk_over_coverages(seed):
    generator = torch.Generator().manual_seed(seed)
    inside, outside = torch.rand(9, generator=generator), torch.rand(6, generator=generator)
    correct = torch.rand(9, generator=generator) < 0.7
    inputs = [*zip(inside.tolist(), (~correct).tolist(), strict=True), *((score, True) for score in outside.tolist())]
    accepted = sorted(inputs)
    risks = [sum(wrong for _, wrong in accepted[:k]) / k for k in range(1, len(inputs) + 1)]
    assert ood.aurc_with_unknowns(inside, outside, correct=correct) == pytest.approx(sum(risks) / len(risks))


def test_aurc_with_unknowns_of_a_perfect_detector_is_that_of_the_errors_it_must_make():
    correct = torch.ones(10, dtype=torch.bool)
    apart = ood.aurc_with_unknowns(torch.zeros(10), torch.ones(10), correct=correct)
    assert apart == pytest.approx(sum(k / (10 + k) for k in range(1, 11)) / 20, abs=0.03)
    assert ood.aurc_with_unknowns(torch.ones(10), torch.zeros(10), correct=correct) > 3 * apart
