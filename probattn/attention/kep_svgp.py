"""Kernel-eigen pair sparse variational Gaussian process attention."""

from typing import Literal

import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn import priors
from probattn.attention import merge as merges
from probattn.attention import projection as projections
from probattn.attention.base import Laws, ProbabilisticAttention
from probattn.attention.options import check_choice, check_positive, dropout_rate
from probattn.attention.softmax import SoftmaxMean
from probattn.functional import dtypes, kep_svgp, ksvd, padding, subspace
from probattn.functional.ksvd import Scores
from probattn.placement import aligned_with_plates, left_of_examples, outside_examples
from probattn.sites import Sites

PENALTIES = {"example": ksvd.penalty, "authors": ksvd.penalty_of_mean}


class KEPSVGPAttention(ProbabilisticAttention):
    """KEP-SVGP attention (Chen et al., ICML 2024): two GP branches on the singular vectors of the
    attention kernel.

    The program of one layer: scores E, R by KSVD (eq. 10); **u_d ~ N(0, Λ²)** for each head and
    output d, shared by both branches; F^e = E Λ⁻¹ u and F^r = R Λ⁻¹ u, which have the law (16);
    merged by (19); one linear map from all heads' outputs to ``dim`` (the composition of the
    paper's s → d map for each head and the output projection).

    Sites: ``u``, latent, global, event ``(head, output, inducing index)``; ``ksvd``, a local factor
    −η (J/n)² (eq. 11); ``residual``, latent, local, N(0, I), the noise of that option, whose
    posterior is its prior. Parameter ``log_residual_amplitude``: log a ``(head,)``.

    Parameter ``log_scale``: log λ ``(head, inducing index)``, Λ = diag(λ) > 0. The law of F under
    the prior does not depend on it: F = E v, v ~ N(0, I). Without ``eta`` nothing identifies it
    with singular values of the attention kernel, and with it one equation for each head and example
    does; :meth:`spectrum` returns the values themselves.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        rank: s, the number of singular triplets and of outputs of each head, at most the head
            width; None: 10 as in the papers, or the head width if that is smaller.
        merge: ``"add"`` (any length), ``"concat"`` or ``"concat_lowrank"`` (both need ``tokens``).
        pair: the branches that are merged: ``"er"``, or the symmetric ``"ee"`` or ``"rr"`` (Table
            5); J has both.
        projection: ``"data"``, the papers' W_{e|X} = f(X)ᵀ W_e; ``"plain"``, W_e and W_r
            themselves; or ``"svd"``, two steps of subspace iteration from a learned W_e. E and R
            then *approximate* the leading singular directions and values of K_att (E Eᵀ is 7 to 33
            % off the truncated decomposition at the initial weights). Nothing is left to fit then:
            no site ``ksvd``, and Λ is constant.
        tokens: the number of tokens, if it is fixed; any other number is then an error.
        multiple: f(X) has at most ``rank · multiple`` rows.
        prior: a prior of :mod:`probattn.priors` or its name; N(0, Λ²) by default.
        eta: weight η of the KSVD penalty, which fits learned projections.
        penalty: ``"example"`` squares J/n of each head and example; ``"authors"`` is the form of
            the authors' code.
        scale: initial λ.
        learn_scale: learn Λ.
        residual: initial a > 0 of noise ε ~ N(0, a² diag(r₁ + r₂)), independent over tokens and
            outputs, added to the merged F (W₁ does not act on it). r is the variance outside each
            branch's scores (see :func:`~probattn.functional.subspace.residual_variances`): diag((I
            − P) K_att K_attᵀ (I − P)), P the projection on the columns of E; with ``"svd"``
            diag(K_att K_attᵀ − E Eᵀ). None: no noise.
        mean: mean of the process: ``"zero"``, or ``"softmax"``, with which the output is softmax
            attention, by the same queries and keys, plus ``amplitude`` times the GP's. The KSVD
            penalty then fits W_e, W_r and Λ alone: no gradient of it reaches the queries, the keys
            and what is below them.
        amplitude: initial factor of the GP's output, learned, positive; only with
            ``mean="softmax"``.
        dropout: dropout rate of the softmax mean's probabilities in training, in [0, 1); only with
            ``mean="softmax"``.
        bias: give query, key and the softmax mean's value a bias.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    signed = ("merge", "pair", "projection", "prior")

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int | None = None,
        merge: Literal["add", "concat", "concat_lowrank"] = "add",
        pair: Literal["er", "ee", "rr"] = "er",
        projection: Literal["data", "plain", "svd"] = "data",
        tokens: int | None = None,
        multiple: int = 10,
        prior: priors.Prior | str | None = None,
        eta: float = 1.0,
        penalty: Literal["example", "authors"] = "example",
        scale: float = 1.0,
        learn_scale: bool = True,
        residual: float | None = None,
        mean: Literal["zero", "softmax"] = "zero",
        amplitude: float = 0.1,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        rank = min(10, self.head_dim) if rank is None else rank
        check_choice("pair", pair, ("er", "ee", "rr"))
        check_choice("penalty", penalty, PENALTIES)
        check_choice("mean", mean, ("zero", "softmax"))
        check_positive(scale=scale, amplitude=amplitude, residual=residual)
        if not eta >= 0:
            raise ValueError(f"need eta ≥ 0, got {eta}")
        self.rank = rank
        self.tokens = tokens
        self.query_key = nn.Linear(dim, 2 * dim, bias=bias)
        self.projection = projections.resolve(
            projection, heads, self.head_dim, rank, tokens=tokens, multiple=multiple
        )
        self.pair = pair
        self.eta = eta
        self.prior = priors.resolve(prior)
        self.merge = merges.resolve(merge, tokens, rank)
        self.ksvd_penalty = PENALTIES[penalty]
        self.solves = projection == "svd"
        learned = learn_scale and not self.solves
        self.log_scale = self.log_of(scale, heads, rank, learned=learned)
        self.log_residual_amplitude = None if residual is None else self.log_of(residual, heads)
        self.out = nn.Linear(heads * rank, dim, bias=mean == "zero")
        self.mean = None if mean == "zero" else SoftmaxMean(dim, bias=bias, amplitude=amplitude)
        rate = dropout_rate(dropout)
        self.dropout = None if mean == "zero" else rate

    def checked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check x, its mask, and the number of tokens if that is fixed; return x with zeros at
        padding."""
        x = super().checked(x, mask)
        if self.tokens not in (None, x.shape[-2]):
            raise ValueError(
                f"this layer was built for {self.tokens} tokens, got {x.shape[-2]}; where the "
                'length varies, use merge="add" without tokens, or pad and mask'
            )
        return x

    @property
    def scale(self) -> Tensor:
        """Λ > 0, ``(heads, rank)``; with draws on the left where ``log_scale`` is a random
        variable."""
        if not isinstance(self, PyroModule):
            return self.log_scale.exp()
        with outside_examples():
            return aligned_with_plates(self.log_scale, event_dim=2).exp()

    def sites(self) -> Sites:
        """Return the prior of ``u`` at the current Λ."""
        return self.sites_at(self.scale)

    def sites_at(self, scale: Tensor) -> Sites:
        """Return the prior of ``u`` at λ ``(..., heads, rank)``, the same for every output."""
        scale = scale.unsqueeze(-2).expand(*scale.shape[:-1], self.rank, -1)
        return {"u": priors.at(self.prior, scale, event_dim=3)}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments, result and errors as in the base class."""
        x, scale = self.checked(x, mask), self.scale  # read once, since it may be a random variable
        return self.run(x, mask, self.sites_at(scale), scale=left_of_examples(scale, event_dim=2))

    def has_local_sites(self) -> bool:
        """Return True with the noise of ``residual``."""
        return self.log_residual_amplitude is not None

    def local_sites(self, x: Tensor, mask: Tensor | None) -> dict[str, Laws]:
        """Return the law N(0, I) of the noise of ``residual``, ``(..., H, N, s)``."""
        return {"residual": self.unit_noise(x, x.shape[-2])} if self.has_local_sites() else {}

    def scores(self, x: Tensor, mask: Tensor | None = None) -> Scores:
        """Return E and R ``(..., H, N, s)``, zero at padding, and their weights ``(..., H, d, s)``
        (eq. 10)."""
        return self.scores_of(self.queries_and_keys(x), x, mask)

    def queries_and_keys(self, x: Tensor) -> Tensor:
        """Return queries and keys ``(2, ..., H, N, d)``."""
        return self.split_heads(self.query_key(x), 2)

    def scores_of(
        self,
        query_key: Tensor,
        x: Tensor,
        mask: Tensor | None,
    ) -> Scores:
        """Return :meth:`scores` of given queries and keys ``(2, ..., H, N, d)`` of x."""
        weights = self.projection(x, mask, query_key)
        real, _ = padding.real_and_count(mask, x)
        scores = padding.rows(ksvd.scores(query_key, weights), real)
        return *scores, *weights

    def unit_noise(self, x: Tensor, tokens: int) -> Laws:
        """Return N(0, I) with events ``(H, tokens, s)`` for each example of x, as prior and
        posterior."""
        zeros = dtypes.at_least_float32(x).new_zeros(*x.shape[:-2], self.heads, tokens, self.rank)
        law = dist.Normal(zeros, zeros.new_ones(()), validate_args=False).to_event(3)
        return law, law

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return K_att = φ_q(X) φ_k(X)ᵀ ``(..., H, N, N)``, zero in the columns of padded keys."""
        query, key = ksvd.cosine_features(self.queries_and_keys(self.checked(x, mask)))
        return padding.columns(query @ key.mT, mask)

    def spectrum(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the singular values of K_att on the columns of E, of each example,
        ``(..., H, s)``, descending.

        They are those of Hᵀ K_att, H an orthonormal basis of E, at most those of K_att; with
        ``projection="svd"`` they are those of E itself, near the leading ones of K_att.
        """
        query_key = self.queries_and_keys(self.checked(x, mask))
        _, _, w_e, _ = self.scores_of(query_key, x, mask)
        with self.precise():
            gram = subspace.grams(subspace.features(query_key, mask))
            return subspace.singular_values(gram, dtypes.at_least_float32(w_e))

    def penalty(
        self,
        scores: Scores,
        scale: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Return η times the loss of (11) for each example, ``(..., batch)``.

        Args:
            scores: those of :meth:`scores`.
            scale: Λ ``(H, s)``.
            mask: as for the layer.
        """
        lengths = scores[0].shape[-2] if mask is None else mask.sum(-1, keepdim=True)
        e, r, w_e, w_r = map(dtypes.at_least_float32, scores)
        with dtypes.exact(scale.device.type):
            return self.eta * self.ksvd_penalty((e, r, w_e, w_r), scale, lengths)

    def compute(
        self,
        x: Tensor,
        mask: Tensor | None,
        *,
        scale: Tensor,
        u: Tensor,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output, and the log factor ``ksvd``, −η (J/n)², of each example."""
        query_key = self.queries_and_keys(x)
        e, r, w_e, w_r = scores = self.scores_of(query_key, x, mask)
        values = kep_svgp.function_values(self.merge(*self.branches(e, r)), scale, u)
        if residual is not None and self.log_residual_amplitude is not None:
            with self.precise():
                amplitude = self.log_residual_amplitude.exp().unsqueeze(-1)
                # √(r₁ + r₂), (..., H, N)
                deviation = subspace.residual_scale(
                    query_key, mask, w_e, w_r, self.pair, solved=self.solves
                )
                values = values + (amplitude * deviation).unsqueeze(-1) * residual
        output = self.from_heads(values)
        if self.mean is not None:
            rate = self.dropout if self.training else 0.0
            output = self.mean(output, query_key, x, mask, rate)
            if torch.is_grad_enabled():  # the penalty then trains W_e, W_r and Λ alone
                scores = self.scores_of(query_key.detach(), x.detach(), mask)
        if self.solves:
            return output, {}
        return output, {"ksvd": -self.penalty(scores, scale, mask)}

    def branches(self, e: Tensor, r: Tensor) -> list[Tensor]:
        """Return the scores of the two branches that are merged."""
        return [e if branch == "e" else r for branch in self.pair]
