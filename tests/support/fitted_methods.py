"""Methods on the posterior predictive of a model, fitted in one call."""

from probattn.inference import SVDKL, Laplace, MCDropout, PosteriorPredictive
from probattn.inference.methods.features import features


def posterior_predictive(model, guide, *, num_samples=10):
    return PosteriorPredictive(model, guide, num_samples=num_samples)


def features_of(model, guide, data, *, num_samples=1):
    return features(posterior_predictive(model, guide, num_samples=num_samples), data)


def laplace(model, guide, train, *, num_samples=10, **options):
    return Laplace(posterior_predictive(model, guide, num_samples=num_samples), **options).fit(
        train
    )


def sv_dkl(model, guide, train, *, num_samples=10, **options):
    return SVDKL(posterior_predictive(model, guide, num_samples=num_samples), **options).fit(train)


def mc_dropout(model, guide, *, num_samples=10, rate=None):
    return MCDropout(posterior_predictive(model, guide, num_samples=num_samples), rate=rate)
