"""The CPU engine with cells from another library, through the interface of csrc/cells/strip.h: without torch, with
three state tensors, with a gate without recurrent part, and without a recurrent weight."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from rnnkern import _extension

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "strips"
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-Icsrc", "-DRNNKERN_SIMD_LEVEL=plain"]

pytestmark = pytest.mark.skipif(not _extension.available, reason="no C++ compiler built rnnkern here")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strips")
    for name in ("cells", "engine"):
        command = ["c++", *FLAGS, SOURCES / f"{name}.cpp", "-o", folder / f"{name}.so"]
        subprocess.run(command, cwd=ROOT, check=True)
    return [ctypes.CDLL(str(folder / f"{name}.so")) for name in ("cells", "engine")]


def three_states(u, r, state, p):
    _, c, m = state
    (u_f, u_n, u_k), (r_f, r_n) = u.chunk(3, -1), r.chunk(2, -1)
    f, n = torch.sigmoid(u_f + r_f), torch.tanh(u_n + r_n)
    m = m / 2 + u_k
    c = f * c + (1 - f) * n + m
    return p * torch.tanh(c), c, m


def no_weight(u, r, state, p):
    return (state[0] / 2 + torch.tanh(u),)


CELLS = [(three_states, 3, 2, 3), (no_weight, 1, 0, 1)]


def loop(step, u, R, bias, p, state, reset, zoneout):
    outputs = []
    for x, cleared in zip(u, reset, strict=True):
        old = [s * ~cleared[:, None] for s in state]
        new = step(x, old[0] @ R.T + bias, old, p)
        state = [rate * a + (1 - rate) * b for rate, a, b in zip(zoneout, old, new, strict=True)]
        outputs.append(state[0])
    return torch.stack(outputs), state


def pointers(tensors):
    return (ctypes.c_void_p * max(len(tensors), 1))(*(x.data_ptr() for x in tensors))


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("team", [1, 3])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.sampled
def test_a_cell_of_another_library(libraries, which, team, rate):
    step, gates, recurrent, states = CELLS[which]
    T, B, H = 7, 5, 13
    torch.manual_seed(which)

    def draw(*sizes):
        return torch.randn(sizes, dtype=torch.float64)

    u, R, bias, p = draw(T, B, gates * H), draw(recurrent * H, H) / 4, draw(recurrent * H), draw(H)
    state, grad_h, grad_state = [draw(B, H) for _ in range(states)], draw(T, B, H), [draw(B, H) for _ in range(states)]
    reset = torch.rand(T, B) < 0.2
    zoneout = [rate / (1 + s) for s in range(states)]

    leaves = [x.clone().requires_grad_() for x in (u, R, bias, p, *state)]
    wanted_h, wanted_final = loop(step, *leaves[:4], leaves[4:], reset, zoneout)
    results = [wanted_h, *wanted_final]
    wanted = torch.autograd.grad(results, leaves, [grad_h, *grad_state], allow_unused=True)

    h, du, dR, dbias = torch.empty(T, B, H).double(), torch.empty_like(u), torch.empty_like(R), torch.empty_like(bias)
    final, dstate = ([torch.empty_like(s) for s in state] for _ in range(2))
    dbias_ih, dp = torch.empty(gates * H).double(), torch.empty(B, H).double()
    numbers, strips = (ctypes.create_string_buffer(256) for _ in range(2))
    cells, engine = libraries
    cells.describe(which, numbers, strips)
    here = [ctypes.c_void_p(x.data_ptr()) for x in (u, R, bias, p)]
    after = [ctypes.c_void_p(x.data_ptr()) for x in (du, dR, dbias, dbias_ih, dp)]
    engine.run_cell(
        numbers, strips, team, *map(ctypes.c_int64, (T, B, H)), *here, pointers(state),
        ctypes.c_void_p(reset.data_ptr()), (ctypes.c_double * states)(*zoneout), ctypes.c_void_p(grad_h.data_ptr()),
        pointers(grad_state), ctypes.c_void_p(h.data_ptr()), pointers(final), *after, pointers(dstate),
    )  # fmt: skip

    torch.testing.assert_close([h, *final], [x.detach() for x in results])
    torch.testing.assert_close([du, *dstate], [wanted[0], *wanted[4:]])
    torch.testing.assert_close(dbias_ih, wanted[0].sum((0, 1)))
    if recurrent:
        torch.testing.assert_close([dR, dbias, dp.sum(0)], list(wanted[1:4]))
