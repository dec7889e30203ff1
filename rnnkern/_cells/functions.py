"""Maps PyTorch's elementwise functions, by name, to operations of a graph.

The first argument of each is the tracer's ``make``. Values and gradients at kinks are those of PyTorch.
"""

import math
import numbers
import re
from collections.abc import Callable
from typing import Any

from rnnkern._cells.graph import COMPARISONS

FUNCTIONS: dict[str, Callable[..., Any]] = {}
NOT_ELEMENTWISE = frozenset(
    re.findall(
        r"\w+",
        "sum mean prod max min norm matmul mm bmm linear cat stack view reshape item numpy tolist "
        "amax amin std var cumsum einsum dropout sort topk argmax chunk split size dim",
    )
)
_BATCH = "rnnkern.layer_norm and rnnkern.rms_norm normalize each sequence over its units"
_SOFTMAX = "torch.sigmoid weighs each unit by itself; a softmax over the output of the layer can follow it"
_UNITS = "use rnnkern.layer_norm or rnnkern.rms_norm, over the units of one value or of all gates"
OVER_UNITS: dict[str, tuple[str, str]] = {
    **{name: (f"`{name}`, a norm over the batch", _BATCH) for name in ("batch_norm", "instance_norm")},
    **{name: (f"`{name}` over units", _SOFTMAX) for name in ("softmax", "log_softmax", "softmin")},
    **{name: (f"`{name}`", _UNITS) for name in ("layer_norm", "rms_norm", "group_norm", "normalize")},
}
"""Functions of PyTorch over several units, and what to do in their place."""


def _known(*names: str):
    def register(function):
        for name in (*names, function.__name__.strip("_")):
            FUNCTIONS[name] = function
        return function

    return register


def _plain(op: str, arity: int, *names: str) -> None:
    def unary(make, input):
        return make(op, input)

    def binary(make, input, other):
        return make(op, input, other)

    FUNCTIONS.update(dict.fromkeys((op, *names), unary if arity == 1 else binary))


for _op in ("neg", "abs", "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "sign"):
    _plain(_op, 1, {"neg": "negative", "abs": "absolute"}.get(_op, _op))
for _op in ("mul", "maximum", "minimum", *COMPARISONS):
    _plain(_op, 2)
FUNCTIONS |= {
    "multiply": FUNCTIONS["mul"],
    "greater": FUNCTIONS["gt"],
    "less": FUNCTIONS["lt"],
    "pos": lambda make, input: input,
}
for _op, _name in (("and", "logical_and"), ("or", "logical_or")):
    _plain(_op, 2, _name)
_plain("not", 1, "logical_not", "invert", "bitwise_not")


_EXPRESSIONS = {
    "add": lambda make, input, other, *, alpha=1: make("add", input, make("mul", other, alpha)),
    "sub subtract": lambda make, input, other, *, alpha=1: make("sub", input, make("mul", other, alpha)),
    "rsub": lambda make, input, other: make("sub", other, input),
    "div truediv divide true_divide": lambda make, input, other: make("div", input, other),
    "rtruediv": lambda make, input, other: make("div", other, input),
    "ne": lambda make, input, other: make("not", make("eq", input, other)),
    "where": lambda make, condition, input, other: make("select", condition, input, other),
    "square": lambda make, input: make("mul", input, input),
    "reciprocal": lambda make, input: make("div", 1, input),
    "rsqrt": lambda make, input: make("div", 1, make("sqrt", input)),
    "clamp_min": lambda make, input, min: clamp(make, input, min),
    "clamp_max": lambda make, input, max: clamp(make, input, None, max),
    "relu": lambda make, input: make("relu", input),
    "relu6": lambda make, input: hardtanh(make, input, 0.0, 6.0),
    "hardsigmoid": lambda make, input: hardtanh(make, make("add", make("div", input, 6), 0.5), 0.0, 1.0),
    "logsigmoid log_sigmoid": lambda make, input: make(
        "sub", make("minimum", input, 0), make("log1p", make("exp", make("neg", make("abs", input))))
    ),
    "silu": lambda make, input: make("mul", input, make("sigmoid", input)),
    "softsign": lambda make, input: make("div", input, make("add", make("abs", input), 1)),
}
FUNCTIONS |= {name: function for names, function in _EXPRESSIONS.items() for name in names.split()}


@_known("pow")
def power(make, input, exponent):
    if not isinstance(exponent, numbers.Real):
        exponent._tracer.fail("a power whose exponent is a value", "use torch.exp(exponent * torch.log(base))")
    if isinstance(input, numbers.Real):
        return make("exp", make("mul", exponent, math.log(input)))
    if exponent < 0:
        return make("div", 1, power(make, input, -exponent))
    whole, rest = divmod(exponent, 1)
    if exponent == 0.5:
        return make("sqrt", input)
    if rest or whole > 64:
        return make("pow", input, data=float(exponent))
    result, square_, whole = None, input, int(whole)
    while whole:
        if whole % 2:
            result = square_ if result is None else make("mul", result, square_)
        square_, whole = make("mul", square_, square_), whole // 2
    return make("mul", input, 0) + 1 if result is None else result


@_known("clip")
def clamp(make, input, min=None, max=None):
    """At the bounds the gradient is passed on, as in PyTorch."""
    result = input
    if min is not None:
        result = make("select", make("lt", result, min), min, result)
    if max is not None:
        result = make("select", make("gt", result, max), max, result)
    return result


@_known()
def leaky_relu(make, input, negative_slope=0.01):
    if negative_slope > 0:
        return make("leaky_relu", input, data=float(negative_slope))
    return make("select", make("gt", input, 0), input, make("mul", input, negative_slope))


@_known()
def elu(make, input, alpha=1.0):
    if alpha > 0:
        return make("elu", input, data=float(alpha))
    return make("select", make("gt", input, 0), input, make("mul", make("expm1", input), alpha))


@_known()
def hardtanh(make, input, min_val=-1.0, max_val=1.0):
    return make("hardtanh", input, data=(float(min_val), float(max_val)))


@_known()
def softplus(make, input, beta=1.0, threshold=20.0):
    scaled = make("mul", input, beta)
    linear = make("gt", scaled, threshold)
    inside = make("select", linear, 0, scaled)  # prevents overflow in the unused branch
    return make("select", linear, input, make("div", make("log1p", make("exp", inside)), beta))


@_known()
def gelu(make, input, *, approximate="none"):
    if approximate != "tanh":
        input._tracer.fail('`gelu` with approximate="none"', 'write F.gelu(x, approximate="tanh")')
    cubic = make("mul", make("mul", make("mul", input, input), input), 0.044715)
    inner = make("mul", make("add", input, cubic), math.sqrt(2 / math.pi))
    return make("mul", make("mul", input, 0.5), make("add", make("tanh", inner), 1))


_OPERATORS = {"and", "or", "not", "pos", "invert", "bitwise_not", "rsub", "truediv", "rtruediv", "power"}
NAMES = FUNCTIONS.keys() - _OPERATORS
