"""Exact CGP against GPyTorch: two regressions, from the keys to X_o and from X_o to the queries."""

import gpytorch
import torch
from float64 import randn64
from gpytorch import kernels, settings
from gpytorch.distributions import MultivariateNormal
from torch.testing import assert_close

from probattn.functional.cgp import CGP

HEADS, TOKENS, WIDTH, COLUMNS = 3, 7, 4, 2


class Regression(gpytorch.models.ExactGP):
    def __init__(self, x, y, noise, variance):
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise.expand_as(y))
        super().__init__(x.unsqueeze(1).expand(*y.shape, -1), y, likelihood)
        rbf = kernels.RBFKernel(batch_shape=(HEADS, 1)).double().initialize(lengthscale=1.0)
        self.kernel = kernels.ScaleKernel(rbf, batch_shape=(HEADS, 1)).double()
        self.kernel.outputscale = variance

    def forward(self, x):
        return MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))

    def at(self, x):
        law = self.eval()(x.unsqueeze(1).expand(-1, self.train_targets.shape[1], -1, -1))
        return law.mean, law.covariance_matrix[:, 0]


def test_mean_covariances_and_evidence_are_those_of_two_regressions():
    torch.manual_seed(0)
    query, key, latent = 0.7 * randn64(3, HEADS, TOKENS, WIDTH)
    value = randn64(HEADS, TOKENS, COLUMNS)
    scales = (0.4 * torch.randn(2, HEADS)).double().exp()
    sigma2 = (0.3 * torch.randn(HEADS)).double().exp()
    inputs = {"query": query, "key": key, "latent": latent, "value": value, "real": None}
    law = CGP(**inputs, scales=scales, noise=sigma2, count=TOKENS)
    (sq, sk) = scales[..., None, None]
    noise = sigma2[:, None, None]
    eye = torch.eye(TOKENS, dtype=torch.float64)
    one = torch.ones(HEADS, 1, dtype=torch.float64)
    with torch.no_grad(), settings.fast_computations(False, False, False), settings.debug(False):
        # A GP at a scale of 1 sees z_k / σ_k with noise σ² / σ_k²; z_q is σ_q times what the second
        # one predicts.
        z, given_key = Regression(key, law.observed_key.mT / sk, noise / sk**2, one).at(latent)
        mean, of_query = Regression(latent, z, noise, one).at(query)
        units, _ = Regression(latent, eye.expand(HEADS, -1, -1), noise, one).at(query)
        of_key = Regression(latent, z, noise, one).at(key)[1]
        of_keys = Regression(key, law.observed_key.mT, noise, sk[..., 0] ** 2)
        observed = of_keys.likelihood(of_keys(*of_keys.train_inputs))
        evidence = observed.log_prob(of_keys.train_targets).sum(-1)
    assert_close(law.mean.mT, sq * mean)
    predictive = sq**2 * (of_query + units.mT @ (given_key + noise * eye) @ units) + noise * eye
    covariances = {law.query_covariance: sq**2 * of_query + noise * eye, law.predictive: predictive}
    covariances |= {law.key_covariance: sk**2 * of_key + noise * eye}
    x = randn64(HEADS, TOKENS)
    for ours, theirs in covariances.items():
        expected = MultivariateNormal(torch.zeros_like(x), theirs).log_prob(x)
        assert_close(ours.log_density(x.unsqueeze(-1)), expected)
    assert_close(law.log_marginal() - law.predictive.log_peak(COLUMNS), evidence)
