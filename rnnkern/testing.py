"""Comparison of a kernel's result with a reference: which error is acceptable. And the memory that a call needs."""

import os
from collections.abc import Callable, Iterable
from weakref import WeakSet

import torch
from torch import Tensor

from rnnkern import _extension

FACTORS = {torch.float32: 4.0, torch.bfloat16: 2.0, torch.float16: 2.0, torch.float64: 4.0}
"""For each dtype, the error that a kernel may have as a multiple of the error of plain PyTorch."""

GROSS = 1000.0
"""Multiple of the naive error that cannot be explained by chance."""


def assert_close(actual: Tensor, naive: Tensor, truth: Tensor, name: str = "", factor: float | None = None) -> None:
    """Asserts that a result is about as accurate as plain PyTorch in the same dtype, both compared with float64.

    The root mean square error and the largest error may each be ``FACTORS[dtype]`` times those of plain PyTorch (the
    naive errors). Above 1,000 elements, the same holds for the direction (the sine of the angle to the truth) and the
    bias (the mean signed error): they detect small errors that all have the same sign, which pass the first two tests.

    A naive error can be small by chance. It is therefore replaced by a floor if it is smaller: for the root mean
    square, the rounding error of a result, ``eps`` times its largest element; for the largest error, three times the
    root mean square; for the bias, one eighth of it, as 64 independent errors would have (the errors within a sequence
    are not independent).

    Args:
        actual: the kernel's result.
        naive: the reference's result in the dtype of ``actual``.
        truth: the reference's result in float64, from the same inputs.
        name: name of the compared value, for the message.
        factor: replaces ``FACTORS[dtype]``, for results that are computed in lower precision than their dtype.

    Raises:
        AssertionError: shape, dtype or device differ, NaN or infinity occur in different places, or an error is too
            large.
    """
    assert actual.shape == truth.shape == naive.shape, f"{name}: shapes {actual.shape}, {naive.shape}, {truth.shape}"
    assert actual.dtype == naive.dtype, f"{name}: expected dtype {naive.dtype}, got {actual.dtype}"
    assert actual.device == naive.device, f"{name}: expected device {naive.device}, got {actual.device}"
    if actual.numel() == 0:
        return
    a, n, t = (x.detach().double().flatten().cpu() for x in (actual, naive, truth))
    same = torch.where(n.isfinite(), a.isfinite(), (a == n) | (a.isnan() & n.isnan()))
    assert same.all(), f"{name}: {int((~same).sum())} of {a.numel()} elements are not finite where plain PyTorch's are"
    a, n, t = (x[n.isfinite() & t.isfinite()] for x in (a, n, t))
    if a.numel() == 0:
        return
    factor, eps = factor or FACTORS[actual.dtype], torch.finfo(actual.dtype).eps

    def judge(what: str, error: float, naive_error: float, floor: float) -> None:
        bound = factor * max(naive_error, floor)
        assert error <= bound, (
            f"{name}: {what} {error:.3g} exceeds {bound:.3g} = {factor:g} * max(naive {naive_error:.3g}, {floor:.3g})"
        )

    scale = t.abs().max().item()
    rms, naive_rms = (_rms(x - t) for x in (a, n))
    floor = max(naive_rms, eps * scale)
    judge("root mean square error", rms, naive_rms, eps * scale)
    judge("largest error", (a - t).abs().max().item(), (n - t).abs().max().item(), 3 * floor)
    if a.numel() > 1000 and scale > 0:
        rounding = 64 * torch.finfo(torch.float64).eps  # rounding error of the sine itself
        judge("sine of the angle to the truth", _sine(a, t), _sine(n, t), max(eps, rounding))
        judge("bias", abs((a - t).mean().item()), abs((n - t).mean().item()), floor / 8)


def assert_close_over_draws(draws: Iterable[tuple[Tensor, Tensor, Tensor]], name: str = "") -> None:
    """Applies :func:`assert_close` to results with few elements, pooled over many random calls.

    For a single such call, the naive error may be small by chance: of two correct results with one element, one error
    is more than four times the other in one of three cases. A single call is therefore only limited to :data:`GROSS`
    times the naive error, or as many roundings of its largest element, which detects wrong results but not inexact
    ones. The factor of the dtype applies to all calls together, each normalized by the larger of its two errors. This
    detects a result that is worse in most calls, and no single call decides.

    Args:
        draws: triples (actual, naive, truth) as in :func:`assert_close`.
        name: name of the compared value, for the message.

    Raises:
        AssertionError: as in :func:`assert_close`.
    """
    errors: tuple[list[Tensor], list[Tensor]] = ([], [])
    dtype = torch.float32
    for k, (actual, naive, truth) in enumerate(draws):
        assert_close(actual, naive, truth, f"{name} of call {k}", GROSS)
        dtype, eps = actual.dtype, torch.finfo(actual.dtype).eps
        known = naive.isfinite() & truth.isfinite()
        t = truth[known].double()
        if t.numel() == 0:
            continue
        pair = [x[known].double() - t for x in (actual, naive)]
        unit = max(*map(_rms, pair), eps * t.abs().max().item())
        for pool, x in zip(errors, pair, strict=True):
            pool.append(x / unit if unit > 0 else x)
    if errors[0]:
        all_errors, all_naive = (torch.cat(pool) for pool in errors)
        rms, bound = _rms(all_errors), FACTORS[dtype] * _rms(all_naive)
        assert rms <= bound, f"{name}: of {len(errors[0])} calls, pooled error {rms:.3g} exceeds {bound:.3g}"


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _sine(x: Tensor, truth: Tensor) -> float:
    along = torch.dot(x, truth) / torch.dot(truth, truth)
    return ((x - along * truth).norm() / x.norm().clamp_min(1e-300)).item()


def as_reals(x: Tensor) -> Tensor:
    """Complex numbers as pairs of real numbers, for :func:`assert_close`."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


# ---- memory


class _Saved:
    """A tensor that autograd saved, for as long as its graph lives."""

    def __init__(self, x: Tensor) -> None:
        self.tensor = x.detach()


def saved_bytes(fn: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Measures the memory that autograd saves in a call for the backward pass, on any device.

    Each storage counts once and as a whole, also if several tensors share it or one is a view of a part. What was saved
    for parts of the graph that no longer exist when the call returns does not count; so keep in ``fn``'s result what
    the backward pass will start from.

    Two kinds of memory are not seen: tensors inside a tuple that ``torch.utils.checkpoint`` passes on, and the graph of
    an orthogonal weight that is computed once per optimizer step.

    Args:
        fn: a call without arguments, such as ``lambda: model(x)``.
        besides: tensors whose storages do not count, such as the input. Leaves that require a gradient, such as
            parameters, and views of them never count.

    Returns:
        Number of bytes.

    >>> x = torch.randn(1000, 3)
    >>> linear = torch.nn.Linear(3, 8)
    >>> rnnkern.testing.saved_bytes(lambda: linear(x).tanh())  # x and the result of tanh
    44000
    >>> rnnkern.testing.saved_bytes(lambda: linear(x).tanh(), besides=[x])
    32000
    """
    saved: WeakSet[_Saved] = WeakSet()
    known = {x.untyped_storage().data_ptr() for x in besides}

    def pack(x: Tensor) -> _Saved:
        base = x if x._base is None else x._base
        if base.is_leaf and base.requires_grad:
            known.add(x.untyped_storage().data_ptr())
        kept = _Saved(x)
        saved.add(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        result = fn()
    storages = [kept.tensor.untyped_storage() for kept in saved]
    found = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in known}
    del result
    return sum(found.values())


def peak_bytes(fn: Callable[[], object]) -> int:
    """Measures the peak memory of a call beyond the memory in use before it.

    Counts everything that PyTorch's allocators provide: tensors, the workspaces of oneDNN and cuDNN, and the buffers
    that rnnkern keeps for its next call, which are released before. Code, stacks and fragmentation are not included. On
    a CPU the number is exact and repeatable. If CUDA is in use, the current device is measured too, and the larger of
    the two numbers is returned.

    Args:
        fn: a call without arguments, such as ``lambda: model(x)[0].sum().backward()``.

    Returns:
        Number of bytes.

    >>> rnnkern.testing.peak_bytes(lambda: torch.ones(1000).neg().exp().tanh())  # two tensors of 4,000 bytes at a time
    8000
    """
    _extension.release_memory()  # cached buffers would not be counted
    cuda = torch.cuda.is_initialized()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        fn()
    if cuda:
        torch.cuda.synchronize()
    on_cuda = torch.cuda.max_memory_allocated() - before if cuda else 0
    held = peak = 0
    for event in sorted(_memory_events(profile), key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return max(peak, on_cuda)


def _memory_events(profile: torch.autograd.profiler.profile) -> list:
    cpu = torch.autograd.DeviceType.CPU
    return [e for e in profile.kineto_results.events() if e.name() == "[memory]" and e.device_type() == cpu]
