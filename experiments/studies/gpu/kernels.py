"""Kernels of libraries: factorisations inside a graph, and the backends of scaled dot-product attention."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from probattn.experiments.bench.timing import synchronise
from probattn.experiments.studies.gpu.stage import Answer, Scope, Stage, failed, measured

SIZES = ((4, 16), (400, 16), (400, 64), (1536, 64), (1, 64), (400, 128))
"""Numbers and sizes of the matrices that layers factorise."""
BACKENDS = {
    "chosen by PyTorch": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
REPEATS = 50


def solver_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for each number and size of matrices."""
    sizes = SIZES[:1] if scope.is_small else SIZES
    return {f"{count} of {n} × {n}": partial(_factorise, count, n, scope.device) for count, n in sizes}


def solver_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the factorisations that cannot be captured, or are wrong on other numbers than those of the capture."""
    switch = "set train.capture=false for SGPA, the CGPs and KEP-SVGP with svd or residual, which factorise matrices"
    found = [
        f"Cholesky factors of {case} matrices are not captured ({why}): {switch}"
        for case, why in failed(answers).items()
    ]
    for case, answer in measured(answers).items():
        if not answer["worst"] <= 1e-3:
            found.append(f"replayed Cholesky factors of {case} matrices are wrong by {answer['worst']:.1e}: {switch}")
        if answer["failed"] != [0]:
            found.append(f"replayed Cholesky factors of {case} matrices do not tell which of them failed: {switch}")
    return found


def _factorise(count: int, n: int, device: str) -> Answer:
    torch.manual_seed(0)

    def matrices(shift: float) -> Tensor:
        a = torch.randn(count, n, n, device=device)
        return a @ a.mT / n + shift * torch.eye(n, device=device)

    static, right = matrices(1.0), torch.randn(count, n, 32, device=device)

    def work() -> tuple[Tensor, ...]:
        factor, info = torch.linalg.cholesky_ex(static)
        solved = torch.linalg.solve_triangular(factor, right, upper=False)
        return factor, info, solved, torch.cholesky_solve(right, factor)

    replay, out = _captured(work) if device == "cuda" else _repeated(work)
    static.copy_(matrices(2.0))
    expected = work()
    replay()
    synchronise(device)
    pairs = zip(out, expected, strict=True)
    worst = max((one.double() - other.double()).abs().max().item() for one, other in pairs)
    static[0].mul_(-1.0)
    replay()
    failures = out[1].nonzero().flatten().tolist()
    return {"worst": worst, "failed": failures[:3], "ms": _milliseconds(replay, device)}


def _captured(work: Callable[[], tuple[Tensor, ...]]) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Return a replay of some work, and the tensors that it writes."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        out = work()
    return graph.replay, out


def _repeated(work: Callable[[], tuple[Tensor, ...]]) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Return on a CPU what :func:`_captured` returns on a GPU."""
    out = work()

    def replay() -> None:
        for static, value in zip(out, work(), strict=True):
            static.copy_(value)

    return replay, out


def attention_cases(scope: Scope) -> Mapping[str, Callable[[], Answer]]:
    """Return a case for each backend, type and length, with and without a mask."""
    backends = {"chosen by PyTorch": None} if scope.is_small else BACKENDS
    types = (torch.float32,) if scope.is_small else (torch.bfloat16, torch.float32)
    lengths = (16,) if scope.is_small else (64, 65, 72, 197, 512)
    return {
        f"{name}, {str(dtype).removeprefix('torch.')}, {length} tokens{', mask' if mask else ''}": partial(
            _attend, backend, dtype, length, mask, scope.device
        )
        for name, backend in backends.items()
        for dtype in types
        for length in lengths
        for mask in (False, True)
    }


def attention_problems(answers: Mapping[str, Answer]) -> list[str]:
    """Name the backends whose output or gradient is wrong; one that refuses its inputs is none."""
    switch = (
        "call torch.backends.cuda.enable_cudnn_sdp(False) for cudnn, enable_flash_sdp or enable_mem_efficient_sdp for "
        "the others"
    )
    found = [f"attention by {case} ends with an error ({why}): {switch}" for case, why in failed(answers).items()]
    for case, answer in measured(answers).items():
        if not answer["finite"]:
            found.append(f"attention by {case} has a gradient with NaN or Inf: {switch}")
        elif not answer["worst"] <= (0.1 if "bfloat16" in case else 1e-2):
            found.append(f"attention by {case} is wrong by {answer['worst']:.1e}: {switch}")
    return found


def _attend(backend: SDPBackend | None, dtype: torch.dtype, length: int, mask: bool, device: str) -> Answer:
    torch.manual_seed(0)
    size, heads, width = (2, 2, 4) if device == "cpu" else (128, 12, 32)
    parts = torch.randn(3, size, heads, length, width, device=device, dtype=dtype)
    real = (torch.arange(length, device=device) < length - length // 3).expand(size, 1, 1, length) if mask else None
    results = []
    for chosen in (SDPBackend.MATH, backend):
        inputs = parts.clone().requires_grad_()
        with nullcontext() if chosen is None else sdpa_kernel(chosen):
            try:
                out = F.scaled_dot_product_attention(*inputs, attn_mask=real)
            except RuntimeError as error:
                return {"skipped": str(error).splitlines()[0][:150]}
            out.float().square().sum().backward()
            results.append(torch.cat([out.detach().flatten(), inputs.grad.flatten()]).float())
            repeat = partial(_attention_step, inputs, real)
            milliseconds = _milliseconds(repeat, device) if chosen == backend else 0.0
    exact, found = results
    worst = (exact - found).abs().max() / exact.abs().max()
    return {"finite": bool(found.isfinite().all()), "worst": worst.item(), "ms": milliseconds}


def _attention_step(inputs: Tensor, mask: Tensor | None) -> None:
    F.scaled_dot_product_attention(*inputs, attn_mask=mask).sum().backward()


def _milliseconds(work: Callable[[], None], device: str) -> float:
    repeats = 1 if device == "cpu" else REPEATS
    work()
    synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronise(device)
    return 1e3 * (time.perf_counter() - started) / repeats


SOLVERS = Stage("solvers", "Are factorisations captured, and right on other numbers?", solver_cases, solver_problems)
ATTENTION = Stage("attention", "Which attention kernels are right, and how fast?", attention_cases, attention_problems)
