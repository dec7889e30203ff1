"""For random calls of the other operators, drawn by Hypothesis, kernel and reference agree. Those of the recurrence are
in test_properties.py."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from python_tests.ops.drawn import FEW, batch_sizes_of, laid_out, machine, spread
from python_tests.ops.relevancy_sample import everything, random_call, same_selection, with_leaves
from python_tests.ops.sab_calls import outcomes
from python_tests.ops.test_sab import draw as random_sab_call
from python_tests.samples import filtered
from python_tests.samples.agreement import changed, nudged
from python_tests.tiers import LEVELS
from rnnkern import ops, reference
from rnnkern.testing import GROSS, assert_close


class Call(NamedTuple):
    """``operator(**leaves, **options)``."""

    operator: Callable
    leaves: dict[str, Tensor]
    options: dict[str, Any]

    def to(self, dtype: torch.dtype) -> "Call":
        """In another dtype with the same memory layout, as new leaves."""
        return self._replace(leaves={name: as_dtype(x, dtype) for name, x in self.leaves.items()})

    def contiguous(self) -> "Call":
        leaves = {name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in self.leaves.items()}
        return self._replace(leaves={name: x.requires_grad_() for name, x in leaves.items()})

    def results(self) -> dict[str, Tensor]:
        """Values, and gradients of everything differentiable for transposed upstream gradients."""
        found = self.operator(**self.leaves, **self.options)
        outputs = [y for y in (found if isinstance(found, tuple) else (found,)) if y is not None]
        generator = torch.Generator().manual_seed(1)
        upstream = [torch.randn(y.shape[::-1], generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]
        upstream = [g.permute(*reversed(range(g.dim()))) for g in upstream]
        flowing = [(y, g) for y, g in zip(outputs, upstream, strict=True) if y.requires_grad]
        leaves = list(self.leaves.values())
        grads = gradients(flowing, leaves)
        values = {f"output {k}": y.detach() for k, y in enumerate(outputs)}
        return values | {f"d {name}": g for name, g in zip(self.leaves, grads, strict=True)}


def gradients(flowing, leaves):
    """Returns zeros for leaves without a gradient, as in a recurrence without steps."""
    if not flowing:
        return [torch.zeros_like(x) for x in leaves]
    outputs, upstream = zip(*flowing, strict=True)
    return torch.autograd.grad(outputs, leaves, upstream, materialize_grads=True)


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In a dtype with the same strides and the same values between elements; complex numbers in double or single
    precision."""
    if x.is_complex():
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    size = x.untyped_storage().nbytes() // x.element_size()
    whole = x.as_strided((size,), (1,), 0).to(dtype, copy=True)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_()


# ---- strategies


SEEDS = st.integers(0, 2**31)
COMPLEX = st.sampled_from([torch.float64, torch.float64, torch.complex128])
FEW_SIZES = st.integers(0, 3)


def rows_of(draw, most_steps):
    """Leading sizes of a sequence, packed or not, and the other arguments that define its layout."""
    T, B = draw(st.integers(0, most_steps)), draw(st.integers(0, 5))
    sizes = draw(st.none() | batch_sizes_of(T, B))
    reset = torch.rand(B, T).t() < 0.3 if draw(st.booleans()) else None
    layout = {"batch_sizes": sizes, "reset": reset, "reverse": draw(st.booleans())}
    return B, (T, B) if sizes is None else (int(sizes.sum()),), layout


def scan(draw):
    B, rows, options = rows_of(draw, 9)
    C, dtype = draw(st.integers(1, 40)), draw(COMPLEX)
    leaves = {
        "a": draw(laid_out(*draw(st.sampled_from([(C,), (*rows, C)])), scale=0.6, dtype=dtype)),
        "x": draw(laid_out(*rows, C, dtype=dtype)), "state": draw(laid_out(B, C, dtype=dtype)),
    }  # fmt: skip
    if options["batch_sizes"] is None and draw(st.booleans()):
        del leaves["state"]
    return Call(ops.linear_scan, leaves, options | {"return_sequence": draw(st.booleans())})


def gather(draw):
    B, T, M, K, n = (
        draw(FEW_SIZES),
        draw(st.integers(0, 7)),
        draw(st.integers(1, 9)),
        draw(FEW_SIZES),
        draw(st.integers(1, 40)),
    )
    groups = [(n,)] + ([(1, n), (B, n)] if B else [])
    leaves = {
        "q": draw(laid_out(B, T, n)), "u": draw(laid_out(B, M, n)), "h": draw(laid_out(B, M, n)),
        "v": draw(laid_out(*draw(st.sampled_from(groups)))),
    }  # fmt: skip
    idx = draw(spread(torch.randint(-1, M, (B, T, K)).double())).int()
    options = {"idx": idx, "alignment": draw(st.sampled_from(["additive", "dot"]))}
    return Call(ops.gather_attention, leaves, options)


def givens(draw):
    style = draw(st.sampled_from(["tunable", "butterfly"]))
    N = draw(st.integers(1, 40) if style == "tunable" else st.sampled_from([1, 2, 8, 32]))
    batch = tuple(draw(st.lists(st.integers(0, 2), max_size=1)))
    leaves = {"angles": draw(laid_out(*batch, draw(st.integers(0, 5)), N // 2, scale=3.0))}
    options = {"style": style, "size": N}
    if draw(st.booleans()):
        leaves["x"] = draw(laid_out(*batch, draw(FEW_SIZES), N))
        del options["size"]
    return Call(ops.givens_product, leaves, options)


def rotating(draw):
    B, rows, options = rows_of(draw, 6)
    dtype, style = draw(COMPLEX), draw(st.sampled_from(["tunable", "butterfly"]))
    N = draw(st.integers(1, 40) if style == "tunable" else st.sampled_from([1, 2, 8, 32]))
    turns = (draw(st.integers(0, 5)), N // 2)
    leaves = {
        "u": draw(laid_out(*rows, N, dtype=dtype)), "state": draw(laid_out(B, N, dtype=dtype)),
        "angles": draw(laid_out(*turns, scale=3.0)), "modrelu_bias": draw(laid_out(N, scale=0.1)),
    }  # fmt: skip
    if dtype.is_complex:
        named = {"phases": turns, "diagonal_phases": (N,)}
        leaves |= {name: draw(laid_out(*sizes)) for name, sizes in named.items() if draw(st.booleans())}
    return Call(ops.givens_recurrence, leaves, options | {"style": style})


def filtering(draw):
    B, rows, options = rows_of(draw, 40)
    C, beta = draw(st.integers(1, 40)), draw(st.none() | st.floats(0, 0.9))
    state = [draw(laid_out(B, C))]
    if beta is not None:
        state.append(draw(spread(draw(laid_out(B, C)).square())))
    leaves = {"u": draw(laid_out(*rows, C)), **dict(zip(("v0", "q0"), state, strict=False))}
    options |= {"mu": draw(st.floats(0, 0.9)), "s": draw(st.floats(0.1, 2)), "beta": beta}
    return Call(partial(filtered, ops.moment_filter), leaves, options)


def square(draw, dtype, scale):
    N = draw(st.sampled_from([0, 1, 2, 3, 5, 16, 17, 33]))
    return laid_out(*draw(st.lists(FEW_SIZES, max_size=2)), N, N, scale=scale / max(N, 1) ** 0.5, dtype=dtype)


def householder(draw):
    N, dtype = draw(st.integers(1, 20)), draw(COMPLEX)
    batch = draw(st.lists(FEW_SIZES, max_size=1))
    return Call(ops.householder_product, {"V": draw(laid_out(*batch, N, draw(st.integers(0, N)), dtype=dtype))}, {})


def exponential(draw):
    A = draw(square(draw, draw(COMPLEX), draw(st.sampled_from([0.01, 1.0, 4.0]))))
    return Call(ops.skew_exp, {"A": A}, {"form": draw(st.sampled_from(["exp", "expm1"]))})


def cayley(draw):
    A = draw(square(draw, draw(COMPLEX), 1.0))
    return Call(ops.cayley, {"A": A}, {})


def nearest(draw):
    B = draw(square(draw, draw(COMPLEX), 0.05))
    return Call(ops.project_orthogonal, {"B": draw(spread(B + torch.eye(B.shape[-1], dtype=B.dtype)))}, {})


def schur(draw):
    P = draw(square(draw, torch.float64, 1.0))
    batch, N = P.shape[:-2], P.shape[-1]
    leaves = {"P": P, "theta": draw(laid_out(*batch, N // 2)), "gamma": draw(laid_out(*batch, (N + 1) // 2))}
    return Call(ops.schur_weight, leaves | {"T": draw(laid_out(*P.shape))}, {})


KINDS = {
    "linear_scan": scan, "gather_attention": gather, "givens_product": givens, "householder_product": householder,
    "givens_recurrence": rotating, "moment_filter": filtering,
    "skew_exp": exponential, "cayley": cayley, "schur_weight": schur, "project_orthogonal": nearest,
}  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
FEWER = {"givens_recurrence": DTYPES[:1], "moment_filter": DTYPES[:2]}
"""Dtypes of operators that do not test all. For tiny |z| the direction, and so the recurrence, depends on chance in
less than double precision; the filter has float32 states for 16-bit sequences. Other dtypes are covered by tests of
these operators."""
CASES = [(kind, dtype) for kind in KINDS for dtype in FEWER.get(kind, DTYPES)]
MACHINE = {"level": st.sampled_from(LEVELS), "threads": st.integers(1, 3)}


@pytest.mark.parametrize(("kind", "dtype"), CASES)
@FEW
@given(data=st.data(), seed=SEEDS, **MACHINE)
def test_any_call_gives_the_references_numbers(kind, dtype, data, seed, level, threads):
    torch.manual_seed(seed)
    call = KINDS[kind](data.draw).to(dtype)
    near = call._replace(leaves=changed(call.leaves, nudged)) if dtype == torch.float64 else call
    with ops.use("reference"):
        truth, naive = (like.contiguous().results() for like in (call.to(torch.float64), near))
    with machine(level, threads):
        found = call.results()
    agree(found, naive, truth)


def agree(found, naive, truth):
    """A large multiple of the naive error is allowed, because a single call says little; other tests pool many. In
    float64 the naive results are the reference's for nudged arguments."""
    for name, wanted in truth.items():
        assert_close(found[name], naive[name], wanted, name, GROSS, scale=1.0)


@FEW
@given(data=st.data(), seed=SEEDS, **MACHINE)
def test_any_layout_of_a_relevancy_recurrence(data, seed, level, threads):
    torch.manual_seed(seed)
    call = random_call(random.Random(seed))
    call = with_leaves(call, spread_all(data.draw, call.leaves()))
    truth, naive = (
        everything(reference.relevancy_recurrence, like)
        for like in (call, with_leaves(call, changed(call.leaves(), nudged)))
    )
    with machine(level, threads):
        found = everything(ops.relevancy_recurrence, call)
    assert same_selection(found, truth)
    agree(found, naive, {name: wanted for name, wanted in truth.items() if wanted.is_floating_point()})


@FEW
@given(data=st.data(), seed=SEEDS, **MACHINE)
def test_any_layout_of_a_sab_recurrence(data, seed, level, threads):
    call = random_sab_call(seed)
    call = call._replace(leaves=spread_all(data.draw, call.leaves))
    truth, attended = outcomes(reference.sab_recurrence, call)
    naive, _ = outcomes(reference.sab_recurrence, call._replace(leaves=changed(call.leaves, nudged)))
    with machine(level, threads):
        found, attended_by_kernel = outcomes(ops.sab_recurrence, call)
    assert torch.equal(attended_by_kernel[1], attended[1])
    agree(found, naive, truth)


def spread_all(draw, leaves):
    return {name: draw(spread(x.detach())).requires_grad_() for name, x in leaves.items()}
