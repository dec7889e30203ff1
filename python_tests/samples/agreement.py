"""Comparison of an operator with its reference."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rnnkern.testing import FACTORS, Triple, assert_close, assert_close_over_draws

NUDGE = 1e-12
SCALED = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps


def draws(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Endless random samples: calls of a function that draws one."""
    while True:
        yield make(*args, **kwargs)


def changed(sample: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A sample whose real and complex numbers are changed; the new tensors are leaves."""

    def apply(x: Any) -> Any:
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        return change(x.detach()).requires_grad_(x.requires_grad)

    return tree_map(apply, sample)


def nudged(x: Tensor) -> Tensor:
    """Each number changed by a random part of up to 1e-12."""
    return x * (1 - NUDGE * torch.rand(x.shape, dtype=torch.float64, device=x.device))


def wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64, copy=True)


def narrow(x: Tensor) -> Tensor:
    return x.to(torch.complex64 if x.is_complex() else torch.float32)


def is_double(sample: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype in (torch.float64, torch.complex128) for x in tree_leaves(sample))


def numbered(actual: Iterable[Tensor], naive: Iterable[Tensor], truth: Iterable[Tensor]) -> dict[str, Triple]:
    """Results without names, for :func:`assert_close_over_draws`."""
    return {f"result {k}": three for k, three in enumerate(zip(actual, naive, truth, strict=True))}


def assert_same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Asserts that the results of one call, by name, are among those of another."""
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def with_gradients(results: Mapping[str, Tensor], leaves: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Results by name, and the gradients of leaves for random gradients of the results; zeros where none flow."""
    generator = torch.Generator().manual_seed(seed)
    flowing, upstream = [], []
    for y in results.values():
        drawn = torch.randn(y.shape, generator=generator, dtype=torch.complex128 if y.is_complex() else torch.float64)
        if y.requires_grad:
            flowing.append(y)
            upstream.append(drawn.to(y))
    gradients = [torch.zeros_like(x) for x in leaves.values()]
    if flowing:
        gradients = torch.autograd.grad(flowing, list(leaves.values()), upstream, materialize_grads=True)
    named = {name: y.detach() for name, y in results.items()}
    return named | {f"grad of {name}": g for name, g in zip(leaves, gradients, strict=True)}


def mostly(calls: Iterable[tuple[bool, dict[str, Triple]]]) -> Iterator[dict[str, Triple]]:
    """Results of the calls that took the same decisions as the reference, such as which events are selected. Where two
    scores are equal but for rounding they may differ, but seldom: the third time is an error."""
    others = 0
    for same, results in calls:
        if same:
            yield results
        else:
            others += 1
            assert others < 3, "other decisions than those of the reference"


def triples(op: Any, plain: Any, results: Callable[[Any, Any], Mapping[str, Tensor]], sample: Any) -> dict[str, Triple]:
    """By name, each result of the operator, of the reference in the same dtype, and of the reference in float64.

    In float64 the reference itself is the truth. Two things take the place of its error, because like rounding errors
    they depend on how ill-conditioned the call is: how far its results move if sample and results are nudged, and its
    error in float32, scaled. Only the latter shows the error of a sum that cancels inside the call."""
    actual = results(op, sample)
    truth = results(plain, changed(sample, wide))
    naive = results(plain, changed(sample, nudged) if is_double(sample) else sample)
    if is_double(sample):
        single = changed(sample, narrow)
        exact, rounded = results(plain, changed(single, wide)), results(plain, single)
        for name, x in [(name, x) for name, x in naive.items() if x.dtype.to_real() == torch.float64]:
            error = (rounded[name] - exact[name]).detach().to(x).nan_to_num(0, 0, 0)
            naive[name] = nudged(x.detach()) + SCALED * error
    return {name: (value, naive[name], truth[name]) for name, value in actual.items()}


def agree(op: Any, plain: Any, results: Any, samples: Iterable[Any], name: str = "", scale: float = 0.0) -> None:
    """Asserts that results and gradients are those of the reference by the closeness rule.

    Args:
        op, plain: the operator and its reference.
        results: ``results(op, sample)`` returns results and gradients by name.
        samples: calls, tensors in named tuples, tuples and dicts: of :func:`draws`, as many as needed are taken; a
            list of particular ones is judged as a whole.
        name: of the calls, for the message.
        scale: as in :func:`rnnkern.testing.assert_close`.
    """
    name = name and f"{name}: "
    all_of_them = isinstance(samples, list)
    first = next(samples := iter(samples))
    compared = (triples(op, plain, results, sample) for sample in itertools.chain([first], samples))
    if not is_double(first):
        assert_close_over_draws(list(compared) if all_of_them else compared, name, scale)
        return
    for call in compared if all_of_them else [next(compared)]:  # far more accurate than a nudge: one says enough
        for what, triple in call.items():
            assert_close(*triple, f"{name}{what}", FACTORS[torch.float64], scale)
