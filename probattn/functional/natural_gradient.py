"""Natural-gradient steps of Gaussians in mean and Cholesky factor."""

import torch
from torch import Tensor


def natural_step(
    tril: Tensor,
    grad_loc: Tensor,
    grad_tril: Tensor,
    length: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Take the covariance's natural-gradient step on a loss from N(m, L Lᵀ); return the mean's
    direction and the new L.

    In natural parameters the step is θ − length · ∂loss/∂η (Hensman, Rattray & Lawrence, 2012;
    Salimbeni, Eleftheriadis & Hensman, 2018): S'⁻¹ = S⁻¹ + 2 length ∂loss/∂S and m' = m − length d
    along d = S' ∂loss/∂m. For −ELBO with a closed-form KL and a conjugate likelihood, length 1
    reaches the optimum of one Gaussian whose rest of the model is fixed. Of several that step
    together, the covariances do, each given the means of all; the means need a length below 1 (see
    :class:`~probattn.inference.objective.natural_gradient.NaturalGradientDescent`). It is computed
    without an inverse of L: S' = L M⁻¹ Lᵀ, M = I + X, X = length (Φ + Φᵀ), Φ the lower triangle of
    Lᵀ ∂loss/∂L with half its diagonal.

    With noisy gradients M need not be positive definite. Where it is not, or where a step of length
    < 1 would reduce the precision in any direction below (1 − length) / 2 of what it was (a
    log-concave likelihood's exact gradient leaves 1 − length), M is I + X + X²/2, which agrees to
    first order and is never below 1/2 (Lin, Schmidt & Khan, 2020, "Handling the positive-definite
    constraint in the Bayesian learning rule").

    Args:
        tril: L, lower-triangular with positive diagonal, ``(..., s, s)``.
        grad_loc, grad_tril: gradients of m ``(..., s)`` and L.
        length: of the step; 1 is a full step on the loss whose gradients are given.

    Returns:
        d ``(..., s)`` and the Cholesky factor of S'.
    """
    # In m and L of the ordinary families, and without state, so that a guide may change between
    # Adam and these steps.
    eye = torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device)
    length = torch.as_tensor(length, dtype=tril.dtype, device=tril.device)
    # Φ + Φᵀ, and X
    product = (tril.mT @ grad_tril).tril()
    symmetric = product + product.mT - product.diagonal(dim1=-2, dim2=-1).diag_embed()
    change = length * symmetric
    # M, where M − (1 − length) / 2 I is positive definite
    exact = eye + change
    least = ((1 - length) / 2).clamp(min=0)
    _, failed = torch.linalg.cholesky_ex(exact - least * eye)
    bounded = exact + change @ change / 2
    ratio = torch.where(failed[..., None, None] == 0, exact, bounded)
    # M = Wᵀ W with W lower-triangular, from the Cholesky factor of M with its rows and columns
    # reversed, and L W⁻¹
    reverse = torch.linalg.cholesky_ex(ratio.flip(-2, -1))[0]
    w = reverse.mT.flip(-2, -1)
    factor = torch.linalg.solve_triangular(w, tril, upper=False, left=False)
    direction = factor @ (factor.mT @ grad_loc.unsqueeze(-1))
    return direction.squeeze(-1), factor
