"""Subnormal numbers: CPU kernels of float32 and narrower take them for zero, those of float64 compute with them, and
every thread keeps its own setting."""

import ctypes
import math
import platform
import time

import pytest
import torch

from python_tests.samples import public_layers
from python_tests.samples.operators import OPERATORS, draw, results
from python_tests.tiers import each_level
from rnnkern import nn, ops
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


@pytest.mark.parametrize("name", public_layers.NAMES)
def test_layers_leave_the_setting(name, caller):
    layer = public_layers.layer(name)
    rows = (40,) if name.endswith(("Cell", "ODE")) else (40, public_layers.OBJECTS)
    x = torch.randn(*rows, public_layers.INPUT_SIZE)

    def train():
        y = layer(x)
        (y if isinstance(y, torch.Tensor) else y[0]).sum().backward()

    check_setting(train)


def test_an_error_leaves_the_setting(caller):
    u, R, h0 = torch.zeros(2, 3, 4), torch.zeros(4, 4), torch.zeros(3, 5)

    def fail():
        with pytest.raises(ValueError, match="state"):
            recurrence("tanh", u, R, (h0,))

    check_setting(fail)


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
def test_results_are_zero_in_float32(level, simd):
    simd(level)
    a = torch.full((5,), 0.5)
    h, last = linear_scan(a, torch.zeros(200, 1, 5), torch.ones(1, 5))
    assert torch.equal(h[:126, 0, 0], 0.5 ** torch.arange(1, 127.0))
    assert not h[126:].any()
    assert not last.any()


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


def least(calls, seconds=3.0):
    """The least time of each call. Other load only adds time."""
    times = dict.fromkeys(calls, math.inf)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - begun)
    return times


@pytest.mark.proof
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "ExpRNN", "RelRNN"])
def test_a_loss_on_the_last_step_costs_no_more(name, threads):
    threads(1)
    layer, x = getattr(nn, name)(64, 64), torch.randn(200, 8, 64)
    times = least({"last": lambda: layer(x)[0][-1].sum().backward(), "all": lambda: layer(x)[0].sum().backward()})
    assert times["last"] <= 1.1 * times["all"]


@pytest.mark.proof
@pytest.mark.parametrize("sizes", [(2000, 4), (20000, 1)])
def test_silence_after_an_impulse_costs_no_more(sizes, threads):
    threads(1)
    layer, noise = nn.LRU(64, 64, r_min=0.9, r_max=0.99), torch.randn(*sizes, 64)
    silence = torch.zeros_like(noise)
    silence[0] = 1
    with torch.no_grad():
        times = least({"silence": lambda: layer(silence), "noise": lambda: layer(noise)})
    assert times["silence"] <= 1.15 * times["noise"]
