"""SGPA's conditional variance against dense matrices, and its sign."""

import torch
from float64 import F64
from sampling import randn
from torch.testing import assert_close

from probattn.functional import sgpa

N, M = 5, 3


def test_conditional_variance_is_the_diagonal_and_stays_positive():
    points = 0.7 * randn(M + N, 3)
    whole = 1.3 * torch.exp(-0.5 * torch.cdist(points / 0.9, points / 0.9).square())
    k_bb, k_qb, k_qq = whole[:M, :M], whole[M:, :M], whole[M:, M:]
    tril = torch.linalg.cholesky(k_bb)
    variance = sgpa.conditional_variance(k_qq.diagonal(), sgpa.features(k_qb, tril))
    assert_close(variance, (k_qq - k_qb @ torch.linalg.inv(k_bb) @ k_qb.T).diagonal())
    on_beta = sgpa.features(k_bb, tril)
    for dtype in (F64, torch.float32):
        diagonal = k_bb.diagonal().to(dtype)
        share = sgpa.conditional_variance(diagonal, (1.001 * on_beta).to(dtype)) / diagonal
        assert ((share > 0) & (share < 2 * torch.finfo(dtype).eps ** 0.75)).all()
