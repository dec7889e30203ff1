"""Subnormal numbers, over the table of operators: every thread keeps its own setting.

CPU kernels of float32 and narrower take them for zero, those of float64 compute with them."""

import ctypes
import math
import platform

import pytest
import torch

from python_tests.samples.operators import OPERATORS, draw, results
from python_tests.tiers import each_level
from rnnkern import ops
from rnnkern.ops import linear_scan, recurrence

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors compute with them")
SUBNORMAL = 1e-39


@pytest.fixture(params=[False, True], ids=["exact", "flushing"])
def caller(request, threads):
    """Both settings of the caller, with two threads."""
    threads(2)
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


def setting() -> tuple[int, list[bool]]:
    """This thread's MXCSR, without the flags of past exceptions, and which threads of PyTorch flush: they take over the
    setting of the thread that starts them."""
    environment = ctypes.create_string_buffer(32)
    assert ctypes.CDLL("libm.so.6").fegetenv(environment) == 0
    return int.from_bytes(environment[28:], "little") & ~0x3F, (torch.full((2, 1 << 16), SUBNORMAL) * 1).all(1).tolist()


def check_setting(call):
    before = setting()
    call()
    assert setting() == before


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_leave_the_setting(name, caller):
    sizes = {"linear_scan": (50, 40, 40), "moment_filter": (50, 40, 40), "skew_exp": (9, (64,))}.get(name, ())
    check_setting(lambda: results(getattr(ops, name), draw(name, *sizes, dtype=torch.float32)))


@each_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_and_inputs_are_zero(dtype, level, simd, threads):
    """On both threads, and in products of R."""
    simd(level)
    threads(2)
    tiny, zeros, R = torch.full((2, 64, 64), SUBNORMAL, dtype=dtype), torch.zeros(2, 64, 64, dtype=dtype), torch.eye(64)
    for u, h0 in ((tiny, zeros[0]), (zeros, tiny[0])):
        assert not recurrence("identity", u, R.to(dtype), (h0,))[0].any()


@each_level
def test_a_complex_state_vanishes(level, simd):
    """It would otherwise turn on a circle near 1e-38, and products of it would be subnormal. Two calls give the bits of
    one."""
    simd(level)
    a = torch.polar(torch.full((40,), 0.9), torch.linspace(0, 3, 40))
    x, h0 = torch.zeros(1200, 1, 40, dtype=torch.complex64), torch.ones(1, 40, dtype=torch.complex64)
    h, last = linear_scan(a, x, h0)
    larger_part = torch.view_as_real(h).abs().amax(-1)
    assert ((larger_part > 0.6 * 2**-116) | (larger_part == 0)).all()
    assert h[700].all()
    assert not last.any()
    first, between = linear_scan(a, x[:750], h0)
    assert torch.equal(torch.cat([first, linear_scan(a, x[750:], between)[0]]), h)


@each_level
def test_they_are_exact_in_float64(level, simd):
    simd(level)
    u, R = torch.full((2, 3, 16), 1e-310, dtype=torch.float64), torch.zeros(16, 16, dtype=torch.float64)
    assert torch.equal(recurrence("identity", u, R, (u[0],))[0], u)
    a = torch.full((5,), 0.5, dtype=torch.float64)
    h, _ = linear_scan(a, a.new_zeros(1100, 1, 5), a.new_ones(1, 5))
    assert h[:, 0, 0].tolist() == [math.ldexp(1.0, -k) for k in range(1, 1101)]
