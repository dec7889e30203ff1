"""Functions that rnnkern.cell does not support raise an error where the cell is defined, which names the line and a
remedy."""

import re

import pytest
import torch
import torch.nn.functional as F

import rnnkern
from rnnkern import CellError, cell


def condition(u, r, h):
    return u if h > 0 else r


def in_place(u, r, h):
    h += u + r
    return h


def in_place_method(u, r, h):
    return (u + r + h).tanh_()


def in_place_option(u, r, h):
    return F.relu(u + r + h, inplace=True)


def reduction(u, r, h):
    return (u + r).mean() * h


def product(u, r, h):
    return u + r @ h


weight = torch.ones(3, requires_grad=True)


def closure(u, r, h):
    return u + r + weight * h


constant = torch.ones(3)


def other_tensor(u, r, h):
    return u + r + h * constant


def unknown(u, r, h):
    return torch.erfinv(u + r + h)


def number(u, r, h):
    return u + r * float(h)


def index(u, r, h):
    return u + r[0] + h


def size(u, r, h):
    return u + r + h / h.shape[0]


def states(u, r, h, c):
    return u + r + h + c


def unused_state(u, r, h, c):
    return u + r, u


def unused_gate(u, r, h):
    return u + h


def unused_parameter(u, r, h, *, leak):
    return u + r + h


def exponent(u, r, h):
    return u + r**h


def gelu(u, r, h):
    return F.gelu(u + r + h)


def name_of_a_weight(u, r, h, *, weight_hh):
    return u + r + weight_hh * h


def constant_text(u, r, h, *, mode="fast"):
    return u + r


def arguments(u, r, *states):
    return u + r


REFUSED = {
    condition: "a condition that depends on the values of a tensor; use torch.where",
    in_place: "an in-place operation; write `a = a + b`",
    in_place_method: "an in-place operation; use torch.tanh",
    in_place_option: "an in-place operation; use torch.relu",
    reduction: "`mean` is not elementwise; the function computes one unit",
    product: "a matrix product; R h is `r`",
    closure: "a tensor from outside the function, which requires a gradient; make it a keyword-only argument",
    other_tensor: r"a tensor from outside the function of shape (3,); make it a keyword-only argument",
    unknown: "`erfinv` is not supported; use abs, ",
    number: "a value was converted to a Python number",
    index: "an index; the function computes one unit",
    size: "`.shape` of a value",
    states: "the function takes 2 states (h, c) and returns 1; return every new state",
    unused_state: "the state 'c' is not used",
    unused_gate: "the recurrent gate is not used",
    unused_parameter: "the parameter 'leak' is not used",
    exponent: "a power whose exponent is a value; use torch.exp",
    gelu: '`gelu` with approximate="none"; write F.gelu(x, approximate="tanh")',
    name_of_a_weight: "the parameter 'weight_hh' has the name of a layer's weight; give it another name",
    constant_text: "the default of `mode` must be a number, got 'fast'",
    arguments: "`*args` or `**kwargs` in the signature",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_a_function_is_refused_with_its_line(function):
    with pytest.raises(CellError, match=re.escape(REFUSED[function])) as raised:
        cell(function)
    found = re.match(rf"{function.__name__} \({re.escape(__file__)}, line (\d+)\)", str(raised.value))
    first = function.__code__.co_firstlineno
    assert first <= int(found[1]) <= first + 2


def test_gates_are_refused():
    with pytest.raises(CellError, match=r"`u` has no gate 'x'; it has u\.f, u\.n"):
        cell(lambda u, r, h: u.x + r.f, gates="fn")
    with pytest.raises(CellError, match="the gate 'n' is not used"):
        cell(lambda u, r, h: u.f + r.f + r.n, gates="fn")
    for names in ({"gates": "ff"}, {"gates": ()}, {"gates": "fn", "recurrent": "ff"}):
        with pytest.raises(CellError, match="`gates` and `recurrent` must be different names"):
            cell(lambda u, r, h: u.f + r.f, **names)
    for gates in (("_f", "n"), ("a b",), "f."):
        with pytest.raises(CellError, match="a gate must have a name like `f`"):
            cell(lambda u, r, h: u.f + r.f, gates=gates)
    with pytest.raises(CellError, match=r"`init` names \['leak'\], and the parameters are \(\)"):
        cell(lambda u, r, h: u + r, init={"leak": (0, 1)})


def saves(u, r, h, *, leak, dt=0.5):
    a = u + r
    n = torch.tanh(a)
    return leak * h + dt * n


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x", "`save` names 'x', which is not a value of the function; it has u, r, h, leak, a, n"),
        ("dt", "`save` names 'dt', which is not a value of the function"),
        ("h", "`save` names 'h', which the backward pass has in any case; leave it out"),
        ("leak", "`save` names 'leak', which the backward pass has in any case"),
        ("a", r"saves: `save` names ['a'], which the backward pass does not need; leave it out"),
    ],
)
def test_what_cannot_be_saved_is_refused(name, message):
    with pytest.raises(CellError, match=re.escape(message)):
        cell(saves, save=("n", name))


def test_a_name_may_be_saved_once():
    with pytest.raises(CellError, match="`save` must name different variables, got 'nn'"):
        cell(saves, save="nn")


def test_second_products_are_refused():
    with pytest.raises(CellError, match="a second product with another operand"):
        cell(lambda u, r, h: r.a(u.a * h) + r.b(u.b + h), gates="ab")
    with pytest.raises(CellError, match="`recurrent` names gates of the second product before others; name them last"):
        cell(lambda u, r, h: u.a + r.a(u.b + r.b), gates="ab")
    with pytest.raises(CellError, match="depends on a parameter"):
        cell(lambda u, r, h, *, p: u.a + u.b + r.b(p * (h + r.a)), gates="ab")
    with pytest.raises(CellError, match="reads a later gate of `u`"):
        cell(lambda u, r, h: u.a + r.a + r.b(u.b * h), gates="ab")


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


def test_many_gates_in_one_product_run_as_a_loop():
    @rnnkern.cell(gates=13)
    def wide(u, r, h):
        return torch.tanh(sum(u[k] * r[k] for k in range(13))) + 0 * h

    choice = rnnkern.ops.explain(
        rnnkern.ops.recurrence, wide, torch.zeros(1, 1, 13), torch.zeros(13, 1), [torch.zeros(1, 1)]
    )
    assert choice.implementation == "reference"
    assert "at most 12 gates" in choice.reason
