"""Compares a kernel's result with a reference by a rule for which error is acceptable, and measures memory."""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from rnnkern import _extension
from rnnkern._torch_private import address_of

FACTORS = {torch.float32: 4.0, torch.bfloat16: 2.0, torch.float16: 2.0, torch.float64: 4.0}
"""For each dtype, the error that a kernel may have as a multiple of the error of plain PyTorch."""

FEW = 100
"""Number of elements below which the naive error of a single call may be small by chance."""

GROSS = 1000.0
"""Multiple of the naive error that cannot be explained by chance."""

DRAWS = 64
"""The most random calls that :func:`assert_close_over_draws` looks at."""

Triple = tuple[Tensor, Tensor, Tensor]
"""A result as the kernel and as plain PyTorch compute it, and the truth."""


def assert_close(
    actual: Tensor,
    naive: Tensor,
    truth: Tensor,
    name: str = "",
    factor: float | None = None,
    scale: float = 0.0,
) -> None:
    """Asserts that a result is about as accurate as plain PyTorch in the same dtype, both compared with the truth.

    The root mean square error and the largest error may each be ``FACTORS[dtype]`` times those of plain PyTorch (the
    naive errors). Above 1,000 elements, the same holds for the direction (the sine of the angle to the truth) and the
    bias (the mean signed error): they detect small errors that all have the same sign, which pass the first two tests.

    A naive error can be small by chance. It is therefore replaced by a floor if it is smaller: for the root mean
    square, the rounding error of a result, ``eps`` times its largest element; for the largest error, three times the
    root mean square; for the bias, one eighth of it, as 64 independent errors would have (the errors within a sequence
    are not independent). Of fewer than :data:`FEW` elements even that says little: unless ``factor`` is given, their
    errors may be :data:`GROSS` times the naive error, and of up to three elements a tenth of the largest. This refuses
    wrong values, but not inexact ones, which :func:`assert_close_over_draws` finds.

    Args:
        actual: the kernel's result.
        naive: the reference's result in the dtype of ``actual``.
        truth: the reference's result in float64, from the same inputs; for ``actual`` in float64, a result that was
            computed with more digits.
        name: name of the compared value, for the message.
        factor: replaces ``FACTORS[dtype]``, for results that are computed in lower precision than their dtype.
        scale: rounding errors are relative to this, if it is larger than the largest element of the truth: the size of
            the terms of a sum that cancels.

    Raises:
        AssertionError: shape, dtype or device differ, NaN or infinity occur in other places than in ``naive`` (where
            that overflows on the way to a number that the dtype has, both are right; where the truth exceeds half of
            the largest number, an infinity counts as that number), or an error is too large.
        ValueError: nothing bounds the error: in float64, the naive result is the truth; or the naive error and the
            scale are both zero.
    """
    found = _errors(actual, naive, truth, name, scale)
    _refuse_its_own_truth([found], name)
    _judge(found, name, factor, few=factor is None and found.elements < FEW)


def assert_close_over_draws(draws: Iterable[Mapping[str, Triple]], name: str = "", scale: float = 0.0) -> None:
    """Applies the rule of :func:`assert_close` to the results of random calls, pooled until chance no longer decides.

    Of two correct results with one element, one error is more than four times the other in one of three cases; and the
    errors of many elements may all come from a single ill-conditioned number. Therefore the factor of the dtype applies
    to the geometric mean, over the calls, of the ratio of the kernel's error to the naive error. It is taken when every
    result has :data:`FEW` elements in all, or after 8 calls. If it is too large, the number of calls is doubled, up to
    :data:`DRAWS`: chance fades, an error does not. Nor does a rare call decide in which rounding chose the other side
    of a kink.

    Args:
        draws: for each call, the triples (actual, naive, truth) of :func:`assert_close` by name. From an iterator, as
            many are taken as needed; a list is judged as a whole. Of fewer calls and elements than that, each is held
            to the bound of :func:`assert_close` for few elements.
        name: name of the calls, for the message.
        scale: as in :func:`assert_close`.

    Raises:
        AssertionError, ValueError: as in :func:`assert_close`.
        ValueError: a call with :data:`FEW` elements has the same truth as the one before it.
    """
    pools: dict[str, list[_Errors]] = {}
    before: Mapping[str, Triple] = {}
    whole = isinstance(draws, Sequence)
    for k, draw in enumerate(draws if whole else itertools.islice(draws, DRAWS), 1):
        found = {what: _errors(*triple, f"{name}{what} of call {k}", scale) for what, triple in draw.items()}
        again = draw.keys() == before.keys() and all(torch.equal(x[2], before[what][2]) for what, x in draw.items())
        if again and sum(x.elements for x in found.values() if x.scale) >= FEW:  # fewer may be equal by chance
            raise ValueError(f"{name}call {k} has the truth of call {k - 1}: a pool of the same call decides nothing")
        before = draw
        for what, errors in found.items():
            pools.setdefault(what, []).append(errors)
        if not whole and k.bit_count() == 1 and all(map(_decides, pools.values())) and not _wrong(pools, name):
            return
    wrong = _wrong(pools, name)
    assert not wrong, wrong
    for what, pool in pools.items():
        for k, found in enumerate([] if _decides(pool) else pool, 1):
            _judge(found, f"{name}{what} of call {k}", None, few=True)


class _Errors(NamedTuple):
    """The errors of a result: for each measure, the kernel's, the naive one and the floor."""

    elements: int
    factor: float
    scale: float
    measures: dict[str, tuple[float, float, float]]
    own_truth: bool
    """Whether, in float64, the naive result is the truth."""


def _errors(actual: Tensor, naive: Tensor, truth: Tensor, name: str, scale: float) -> _Errors:
    assert actual.shape == truth.shape == naive.shape, f"{name}: shapes {actual.shape}, {naive.shape}, {truth.shape}"
    assert actual.dtype == naive.dtype, f"{name}: expected dtype {naive.dtype}, got {actual.dtype}"
    assert actual.device == naive.device, f"{name}: expected device {naive.device}, got {actual.device}"
    dtype = actual.dtype.to_real()
    a, n, t = (as_reals(x.detach()).double().flatten().cpu() for x in (actual, naive, truth))
    most = torch.finfo(dtype).max
    large = a.isinf() & n.isfinite() & (a.sign() == t.sign()) & (t.abs() > most / 2)  # an error decides if it overflows
    a = torch.where(large, t.sign() * t.abs().clamp(min=most), a)  # an infinity counts as the largest number
    lost = ~n.isfinite() & (t.abs() <= most)  # plain PyTorch overflows on the way
    same = torch.where(n.isfinite(), a.isfinite(), lost | (a == n) | (a.isnan() & n.isnan()))
    differ = f"{int((~same).sum())} of {a.numel()} elements differ from plain PyTorch's in NaN or infinity"
    assert same.all(), f"{name}: {differ}"
    n = torch.where(lost, t, n)  # what the kernel has there counts as an error
    a, n, t = (x[a.isfinite() & n.isfinite() & t.isfinite()] for x in (a, n, t))
    own_truth = dtype == torch.float64 and torch.equal(n, t) and not scale
    if a.numel() == 0:
        return _Errors(actual.numel(), FACTORS[dtype], 0.0, {}, own_truth)
    eps, scale = torch.finfo(dtype).eps, max(t.abs().max().item(), scale)
    rms, naive_rms = (_rms(x - t) for x in (a, n))
    floor = max(naive_rms, eps * scale)
    if floor == 0 and rms > 0:
        raise ValueError(f"{name}: the naive error and the truth are zero; `scale` must say which error is small")
    measures = {
        "root mean square error": (rms, naive_rms, eps * scale),
        "largest error": ((a - t).abs().max().item(), (n - t).abs().max().item(), 3 * floor),
    }
    if a.numel() > 1000 and t.any():
        rounding = 64 * torch.finfo(torch.float64).eps  # rounding error of the sine itself
        measures["sine of the angle to the truth"] = _sine(a, t), _sine(n, t), max(eps, rounding)
        measures["bias"] = abs((a - t).mean().item()), abs((n - t).mean().item()), floor / 8
    return _Errors(a.numel(), FACTORS[dtype], scale, measures, own_truth)


def _judge(found: _Errors, name: str, factor: float | None, few: bool) -> None:
    for what, (error, naive_error, floor) in itertools.islice(found.measures.items(), 2 if few else None):
        allowed = factor or found.factor
        if few and max(naive_error, floor) > 0:
            tenth = found.scale / 10 if found.elements <= 3 else 0.0
            allowed = max(GROSS, tenth / max(naive_error, floor))
        bound = allowed * max(naive_error, floor)
        assert error <= bound, (
            f"{name}: {what} {error:.3g} exceeds {bound:.3g} = {allowed:g} * max(naive {naive_error:.3g}, {floor:.3g})"
        )


def _refuse_its_own_truth(pool: list[_Errors], name: str) -> None:
    if all(found.own_truth for found in pool) and any(error for f in pool for error, *_ in f.measures.values()):
        raise ValueError(f"{name}: the naive result in float64 is the truth itself; a truth needs more digits")


def _decides(pool: list[_Errors]) -> bool:
    return len(pool) >= 8 or sum(found.elements for found in pool) not in range(1, FEW)


def _wrong(pools: dict[str, list[_Errors]], name: str) -> str:
    """The first result whose ratio of errors is too large, or an empty text."""
    for what, pool in pools.items():
        if not _decides(pool):
            continue
        _refuse_its_own_truth(pool, f"{name}{what}")
        for measure in dict.fromkeys(measure for found in pool for measure in found.measures):
            errors = [found.measures[measure] for found in pool if measure in found.measures]
            logs = [math.log(max(error, floor) / max(naive, floor)) for error, naive, floor in errors if error or floor]
            ratio = math.exp(sum(logs) / max(len(logs), 1))
            if ratio > pool[0].factor:
                calls = f"in the geometric mean of {len(logs)} calls"
                return f"{name}{what}: {measure} exceeds {pool[0].factor:g} times the naive one: {ratio:.3g} {calls}"
    return ""


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _sine(x: Tensor, truth: Tensor) -> float:
    along = torch.dot(x, truth) / torch.dot(truth, truth)
    return ((x - along * truth).norm() / x.norm().clamp_min(1e-300)).item()


def as_reals(x: Tensor) -> Tensor:
    """Complex numbers as pairs of real numbers."""
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
    known = {address_of(x) for x in besides}

    def pack(x: Tensor) -> _Saved:
        base = x if x._base is None else x._base
        if base.is_leaf and base.requires_grad:
            known.add(address_of(x))
        kept = _Saved(x)
        saved.add(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        result = fn()
    found = {address_of(kept.tensor): kept.tensor.untyped_storage().nbytes() for kept in saved}
    del result
    return sum(size for address, size in found.items() if address not in known)


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
