"""Unsupported functions raise an error where the cell is defined, which names the line and a remedy."""

import re

import pytest
import torch
import torch.nn.functional as F

import rnnkern
from rnnkern import CellError, cell

weight, constant = torch.ones(3, requires_grad=True), torch.ones(3)


def in_place(u, r, h):
    h += u + r
    return h


def saves(u, r, h, *, leak, dt=0.5):
    a = u + r
    n = torch.tanh(a)
    return leak * h + dt * n


FUNCTIONS = [
    (in_place, "an in-place operation; write `a = a + b`"),
    (lambda u, r, h: u if h > 0 else r, "a condition that depends on the values of a tensor; use torch.where"),
    (lambda u, r, h: (u + r + h).tanh_(), "an in-place operation; use torch.tanh"),
    (lambda u, r, h: F.relu(u + r + h, inplace=True), "an in-place operation; use torch.relu"),
    (lambda u, r, h: (u + r).mean() * h, "`mean` is not elementwise; the function computes one unit"),
    (lambda u, r, h: u + r @ h, "a matrix product; R h is `r`"),
    (lambda u, r, h: u + r + weight * h, "which requires a gradient; make it a keyword-only argument"),
    (lambda u, r, h: u + r + h * constant, "a tensor from outside the function of shape (3,); make it a keyword-only"),
    (lambda u, r, h: torch.erfinv(u + r + h), "`erfinv` is not supported; use abs, "),
    (lambda u, r, h: u + r * float(h), "a value was converted to a Python number"),
    (lambda u, r, h: u + r[0] + h, "an index; the function computes one unit"),
    (lambda u, r, h: u + r + h / h.shape[0], "`.shape` of a value"),
    (lambda u, r, h, c: u + r + h + c, "the function takes 2 states (h, c) and returns 1; return every new state"),
    (lambda u, r, h, c: (u + r, u), "the state 'c' is not used"),
    (lambda u, r, h: u + h, "the recurrent gate is not used"),
    (lambda u, r, h, *, leak: u + r + h, "the parameter 'leak' is not used"),
    (lambda u, r, h: u + r**h, "a power whose exponent is a value; use torch.exp"),
    (lambda u, r, h: F.gelu(u + r + h), '`gelu` with approximate="none"; write F.gelu(x, approximate="tanh")'),
    (lambda u, r, h, *, weight_hh: u + r + weight_hh * h, "the parameter 'weight_hh' has the name of a layer's weight"),
    (lambda u, r, h, *, mode="fast": u + r, "the default of `mode` must be a number, got 'fast'"),
    (lambda u, r, *states: u + r, "`*args` or `**kwargs` in the signature"),
    (lambda u, r, h: F.batch_norm(u + r + h, h, h), "`batch_norm`, a norm over the batch; rnnkern.layer_norm and"),
    (lambda u, r, h: torch.softmax(u + r + h, -1), "`softmax` over units; torch.sigmoid weighs each unit by itself"),
    (lambda u, r, h: rnnkern.rms_norm(u + r + h, eps=-1.0), "`rms_norm` with eps = -1.0; eps must be at least 0"),
    (lambda u, r, h: F.layer_norm(u + r + h, (3,)), "`layer_norm`; use rnnkern.layer_norm or rnnkern.rms_norm"),
    (
        lambda u, r, h, *, p: u + r + rnnkern.layer_norm(p),
        "a value that is the same for all sequences; normalize it out",
    ),
]


@pytest.mark.parametrize(("function", "message"), FUNCTIONS)
def test_a_function_is_refused_with_its_line(function, message):
    with pytest.raises(CellError, match=re.escape(message)) as raised:
        cell(function)
    found = re.match(rf"{function.__name__} \({re.escape(__file__)}, line (\d+)\)", str(raised.value))
    assert 0 <= int(found[1]) - function.__code__.co_firstlineno <= 2


def two(u, r, h):
    return u.f + r.f


def four_norms(u, r, h):
    for _ in range(4):
        h = rnnkern.layer_norm(h + u + r)
    return h


def one_for_both(u, r, h, *, p):
    return rnnkern.layer_norm(u + r, p).a + rnnkern.layer_norm(u.b, p)


OPTIONS = [
    (lambda u, r, h: u.x + r.f, {"gates": "fn"}, "`u` has no gate 'x'; it has u.f, u.n"),
    (lambda u, r, h: u.f + r.f + r.n, {"gates": "fn"}, "the gate 'n' is not used"),
    (two, {"gates": "ff"}, "`gates` and `recurrent` must be different names"),
    (two, {"gates": ()}, "`gates` and `recurrent` must be different names"),
    (two, {"gates": "fn", "recurrent": "ff"}, "`gates` and `recurrent` must be different names"),
    (two, {"gates": ("_f", "n")}, "a gate must have a name like `f`"),
    (two, {"gates": "f."}, "a gate must have a name like `f`"),
    (lambda u, r, h: u + r, {"init": {"leak": (0, 1)}}, "`init` names ['leak'], and the parameters are ()"),
    (saves, {"save": "x"}, "`save` names 'x', which is not a value of the function; it has u, r, h, leak, a, n"),
    (saves, {"save": ("dt",)}, "`save` names 'dt', which is not a value of the function"),
    (saves, {"save": "h"}, "`save` names 'h', which the backward pass has in any case; leave it out"),
    (saves, {"save": ("leak",)}, "`save` names 'leak', which the backward pass has in any case"),
    (saves, {"save": "na"}, "`save` names ['a'], which the backward pass does not need; leave it out"),
    (saves, {"save": "nn"}, "`save` must name different variables, got 'nn'"),
    (lambda u, r, h: r.a(u.a * h) + r.b(u.b + h), {"gates": "ab"}, "a second product with another operand"),
    (lambda u, r, h: u.a + r.a(u.b + r.b), {"gates": "ab"}, "names gates of the second product before others"),
    (lambda u, r, h, *, p: u.a + u.b + r.b(p * (h + r.a)), {"gates": "ab"}, "depends on a parameter"),
    (lambda u, r, h: u.a + r.a + r.b(u.b * h), {"gates": "ab"}, "reads a later gate of `u`"),
    (
        lambda u, r, h: u.a + u.b + r.b(rnnkern.layer_norm(h + r.a)),
        {"gates": "ab"},
        "the operand of a second product depends on a norm; normalize values after the second product",
    ),
    (
        lambda u, r, h: u.a + u.b + rnnkern.layer_norm(r).a + r.b(h + r.a),
        {"gates": "ab"},
        "a norm over the gates of two products; normalize values of the gates one by one",
    ),
    (four_norms, {}, "a fourth norm; a cell has at most 3"),
    (one_for_both, {"gates": "ab"}, "the parameter 'p' is used for all gates and for one value; use two"),
    (
        lambda u, r, h, *, p: rnnkern.layer_norm(u, p).a + rnnkern.layer_norm(r, p).b,
        {"gates": "abc", "recurrent": "ab"},
        "one weight for norms over 3 and over 2 gates; use two parameters",
    ),
    (lambda u, r, h: rnnkern.layer_norm(u + r, 2.0).a, {"gates": "ab"}, "the weight of a norm over all gates; make it"),
    (lambda u, r, h: rnnkern.layer_norm(u + r).a, {"gates": "ab", "recurrent": "a"}, "u + r needs the same gates"),
    (lambda u, r, h: torch.tanh(u).a + r.a, {"gates": "ab"}, "a function of all gates of `u`; rnnkern.layer_norm and"),
    (lambda u, r, h: (u * 2).a + r.a, {"gates": "ab"}, "a function of all gates of `u`"),
    (lambda u, r, h: rnnkern.rms_norm(u + r).c, {"gates": "ab"}, "`rms_norm` has no gate 'c'; it has rms_norm.a,"),
]


@pytest.mark.parametrize(("function", "options", "message"), OPTIONS)
def test_gates_and_what_is_saved_are_refused(function, options, message):
    with pytest.raises(CellError, match=re.escape(message)):
        cell(function, **options)


def test_without_a_compiler_the_function_runs_as_a_loop(monkeypatch, tmp_path):
    @cell
    def never_compiled(u, r, h):
        return torch.tanh(u + r + 0.123 * h)

    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path))
    u, R, h0 = torch.randn(2, 1, 3), torch.randn(3, 3), torch.zeros(1, 3)
    with pytest.warns(rnnkern.PerformanceWarning, match="was not compiled.*install a C.*compiler"):
        h, _ = rnnkern.ops.recurrence(never_compiled, u, R, (h0,))
    torch.testing.assert_close(h[0], torch.tanh(u[0]))
    assert "was not compiled" in rnnkern.explain(rnnkern.ops.recurrence, never_compiled, u, R, (h0,)).reason
    with pytest.raises(RuntimeError, match="was not compiled"):
        never_compiled.compile()


def test_heads_of_a_cell_with_norms():
    with pytest.raises(ValueError, match="num_heads must be 1 for a cell with norms, got 2"):
        rnnkern.nn.Recurrent(rnnkern.cells.dreamer_gru, 3, 4, num_heads=2)


def test_many_gates_in_one_product_run_as_a_loop():
    @rnnkern.cell(gates=13)
    def wide(u, r, h):
        return torch.tanh(sum(u[k] * r[k] for k in range(13))) + 0 * h

    u, R, state = torch.zeros(1, 1, 13), torch.zeros(13, 1), [torch.zeros(1, 1)]
    choice = rnnkern.ops.explain(rnnkern.ops.recurrence, wide, u, R, state)
    assert choice.implementation == "reference"
    assert "at most 12 gates" in choice.reason
