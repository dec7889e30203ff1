"""Traces a user's function: runs it once with placeholders for its tensors, which record the graph of its equations."""

import contextlib
import inspect
import linecache
import numbers
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from rnnkern._cells.functions import FUNCTIONS, NAMES, NOT_ELEMENTWISE, OVER_UNITS
from rnnkern._cells.graph import Graph, Node, in_order

MOST_STATES = MOST_PARAMS = 8
"""The limits of csrc/cells/strip.h."""
MOST_NORMS = 3
WEIGHTS = frozenset({"weight_ih", "weight_hh", "bias_ih", "bias_hh"})
"""Names that parameters cannot have, because a layer's weights have them."""


class CellError(ValueError):
    """The function of a cell contains what kernels cannot express. The message has the file, line and remedy."""


class Norm(NamedTuple):
    """A norm over the units of several values."""

    kind: str  # "layer_norm" or "rms_norm"
    eps: float
    inputs: tuple[Node, ...]
    level: int  # the number of norms, one after the other, that the inputs depend on


def level_of(node: Node, norms: Sequence[Norm]) -> int:
    """The number of norms, one after the other, that a value depends on."""
    return max((norms[each.data[0]].level + 1 for each in in_order([node]) if each.op == "norm"), default=0)


class Traced(NamedTuple):
    """The equations of a cell."""

    graph: Graph
    gates: tuple[str, ...]
    recurrent: tuple[str, ...]  # gates with rows in R, those of a second product last
    states: tuple[str, ...]
    params: tuple[str, ...]
    rows: tuple[int, ...]  # number of values per unit of each parameter
    initial: dict[str, float]  # values of the parameters that are weights and biases of norms
    norms: tuple[Norm, ...]
    next: tuple[Node, ...]
    operand: Node | None  # of the second product
    first: int  # number of recurrent gates of the first product
    name: str
    save: dict[str, Node] | None  # values that the user wants saved, by variable

    def values_of_params(self) -> Iterator[int | tuple[int, int]]:
        """The ``data`` of the nodes of the parameters, in order."""
        for k, rows in enumerate(self.rows):
            yield from ((k, j) for j in range(rows)) if rows > 1 else (k,)

    def level(self, node: Node) -> int:
        """The number of norms, one after the other, that a value depends on."""
        return level_of(node, self.norms)

    @property
    def levels(self) -> int:
        """That of the new state."""
        return max((norm.level + 1 for norm in self.norms), default=0)


class _Tracer:
    """The state of one trace of a function."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name, self.code, self.graph = name, code, Graph()
        self.norms: list[Norm] = []
        self.rows: dict[int, int] = {}  # of the parameters that norms over gates have
        self.initial: dict[int, float] = {}  # of the weights and biases of norms

    def fail(self, what: str, remedy: str) -> NoReturn:
        frame = sys._getframe()
        while frame is not None and frame.f_code is not self.code:
            frame = frame.f_back
        line = frame.f_lineno if frame else self.code.co_firstlineno
        text = linecache.getline(self.code.co_filename, line).strip()
        shown = f": `{text}`" if text else ""
        raise CellError(f"{self.name} ({self.code.co_filename}, line {line}){shown}: {what}; {remedy}")

    def node(self, value: Any) -> Node:
        """The node of a placeholder or a number."""
        if isinstance(value, Value):
            return value._node
        if isinstance(value, numbers.Real):
            return self.graph.const(float(value))
        if isinstance(value, Tensor):
            if value.dim() == 0 and not value.requires_grad and not value.is_complex():
                return self.graph.const(value.item())
            self.fail(
                "a tensor from outside the function"
                + (", which requires a gradient" if value.requires_grad else f" of shape {tuple(value.shape)}"),
                "make it a keyword-only argument: the cell then has it as a parameter of shape (H,)",
            )
        return self.fail(f"a {type(value).__name__} in an equation", "use the arguments, numbers and constants")

    def make(self, op: str, *args: Any, data: Any = None) -> "Value":
        return Value(self, self.graph.make(op, *map(self.node, args), data=data))

    def norm(self, kind: str, inputs: Sequence["Value"], weight: Any, bias: Any, eps: float) -> list["Value"]:
        """The values of a norm over the units of all ``inputs``."""
        nodes = tuple(map(self.node, inputs))
        if any(not any(leaf.op in ("u", "r", "old") for leaf in in_order([node])) for node in nodes):
            self.fail(f"`{kind}` of a value that is the same for all sequences", "normalize it outside of the cell")
        if not float(eps) >= 0:
            self.fail(f"`{kind}` with eps = {eps}", "eps must be at least 0")
        norm = Norm(kind, float(eps), nodes, max(level_of(node, self.norms) for node in nodes))
        if norm not in self.norms:
            if len(self.norms) == MOST_NORMS:
                self.fail("a fourth norm", f"a cell has at most {MOST_NORMS}")
            self.norms.append(norm)
        k = self.norms.index(norm)
        results = [Value(self, self.graph.make("norm", *nodes, data=(k, j))) for j in range(len(nodes))]
        for name, op, initial, given in (("weight", "mul", 1.0, weight), ("bias", "add", 0.0, bias)):
            if given is not None:
                factors = self._of_each(name, initial, given, len(nodes))
                results = [self.make(op, y, x) for y, x in zip(results, factors, strict=True)]
        return results

    def _of_each(self, name: str, initial: float, given: Any, count: int) -> list[Any]:
        """The weight or bias of each of ``count`` values that are normalized together."""
        node = self.node(given)
        if node.op == "param":
            self.initial[node.data] = initial
        elif count > 1:
            self.fail(f"the {name} of a norm over all gates", "make it a parameter: a keyword-only argument")
        if count == 1:
            return [given]
        if self.rows.setdefault(node.data, count) != count:
            self.fail(f"one {name} for norms over {self.rows[node.data]} and over {count} gates", "use two parameters")
        return [Value(self, self.graph.make("param", data=(node.data, j))) for j in range(count)]


class Value:
    """A placeholder for an element of a tensor: one unit of one sequence at one step."""

    __slots__ = ("_node", "_tracer")

    def __init__(self, tracer: _Tracer, node: Node) -> None:
        self._tracer, self._node = tracer, node

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return apply(function.__name__, args, kwargs or {})  # torch.fn(...) with a placeholder among its arguments

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "dtype", "device", "T", "mT"):
            self._tracer.fail(f"`.{name}` of a value", "the function computes one unit, whose values have no sizes")
        return lambda *args, **kwargs: apply(name, (self, *args), kwargs)

    def is_complex(self) -> bool:
        return False

    def __bool__(self) -> NoReturn:
        self._tracer.fail("a condition that depends on the values of a tensor", "use torch.where(condition, a, b)")

    def _no_number(self, *args: Any) -> NoReturn:
        self._tracer.fail("a value was converted to a Python number", "use elementwise functions of torch")

    __float__ = __int__ = __index__ = __len__ = __iter__ = _no_number

    def __getitem__(self, index: Any) -> NoReturn:
        self._tracer.fail("an index", "the function computes one unit; a gate is `u.name`")

    def __matmul__(self, other: Any) -> NoReturn:
        self._tracer.fail("a matrix product", "R h is `r`; a second product is `r.gate(operand)`")

    __rmatmul__ = __matmul__


def _in_place(self: Value, other: Any) -> NoReturn:
    self._tracer.fail("an in-place operation", "write `a = a + b` in place of `a += b`")


def _tracer_of(args: Sequence[Any]) -> _Tracer:
    return next(a._tracer for a in args if isinstance(a, Value))


def apply(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """Applies the PyTorch function of that name to placeholders."""
    tracer = _tracer_of((*args, *kwargs.values()))
    name = name.strip("_") if name.startswith("__") else name
    if kwargs.pop("inplace", False) or (name.endswith("_") and name[:-1] in FUNCTIONS):
        tracer.fail("an in-place operation", f"use torch.{name.rstrip('_')}")
    if name not in FUNCTIONS:
        if name in NOT_ELEMENTWISE:
            tracer.fail(f"`{name}` is not elementwise", "the function computes one unit of one sequence at one step")
        if name in OVER_UNITS:
            tracer.fail(*OVER_UNITS[name])
        tracer.fail(f"`{name}` is not supported", f"use {', '.join(sorted(NAMES))}")
    try:
        bound = inspect.signature(FUNCTIONS[name]).bind(tracer.make, *args, **kwargs)
    except TypeError as error:
        tracer.fail(
            f"`{name}` with these arguments ({error})", "leave out arguments that an elementwise function does not need"
        )
    return FUNCTIONS[name](*bound.args, **bound.kwargs)


def _operator(name: str, swapped: bool = False):
    def method(self: Value, *others: Any) -> Any:
        if any(isinstance(other, (str, list, tuple)) for other in others):
            return NotImplemented
        return apply(name, (*others, self) if swapped else (self, *others), {})

    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "neg", "pos", "abs", "lt", "le", "gt", "ge", "eq", "ne", "invert"):
    setattr(Value, f"__{_name}__", _operator(_name))
for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Value, f"__r{_name}__", _operator(_name, swapped=True))
    setattr(Value, f"__i{_name}__", _in_place)
Value.__and__ = Value.__rand__ = _operator("and")
Value.__or__ = Value.__ror__ = _operator("or")
Value.__hash__ = object.__hash__


# ---- the arguments


class Gates:
    """`u` or `r`: a value for each gate, by name or, for gates without names, by number."""

    def __init__(self, tracer: _Tracer, kind: str, names: Sequence[str], make: Callable[[str], Any]) -> None:
        self._tracer, self._kind, self._names, self._make = tracer, kind, names, make

    def _gate(self, name: str) -> Any:
        if name not in self._names:
            known = ", ".join(f"{self._kind}.{n}" if n.isidentifier() else f"{self._kind}[{n}]" for n in self._names)
            self._tracer.fail(f"`{self._kind}` has no gate {name!r}", f"it has {known or 'none'}")
        return self._make(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._gate(name)

    def __getitem__(self, index: int) -> Any:
        return self._gate(str(index))

    def __add__(self, other: Any) -> "Gates":
        if not isinstance(other, Gates) or set(other._names) != set(self._names):
            self._tracer.fail(f"`{self._kind} + ...`", "u + r needs the same gates in u and r; other sums are of gates")
        return Gates(self._tracer, "u + r", self._names, lambda name: self._gate(name) + other._gate(name))

    def _of_gates(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._tracer.fail(
            f"a function of all gates of `{self._kind}`",
            "rnnkern.layer_norm and rnnkern.rms_norm take them together; other functions take a gate",
        )

    __sub__ = __mul__ = __truediv__ = __neg__ = __radd__ = __rsub__ = __rmul__ = __iter__ = _of_gates
    __torch_function__ = _of_gates

    def _normalized(self, kind: str, weight: Any, bias: Any, eps: float) -> "Gates":
        """The norm over the units of all gates."""
        found = self._tracer.norm(kind, [self._gate(name) for name in self._names], weight, bias, eps)
        values = dict(zip(self._names, found, strict=True))
        return Gates(self._tracer, kind, self._names, values.__getitem__)


class _Recurrent(Value):
    """A gate of `r`: a value that can be called for a second product."""

    __slots__ = ("_second",)

    def __call__(self, operand: Any) -> Value:
        return self._second(operand)


def trace(function: Callable, gates: Sequence[str], recurrent: Sequence[str],
          save: Sequence[str] | None = None) -> Traced:  # fmt: skip
    """Runs ``function(u, r, *states, *, ...)``.

    Args:
        gates: names of the gates of u, in order; ``("",)`` if u and r are single values.
        recurrent: names of the gates that have rows in R, in order.
        save: names of variables of the function.

    Raises:
        CellError: the function contains what kernels cannot express.
    """
    tracer = _Tracer(function.__name__, function.__code__)
    graph = tracer.graph
    states, params, constants = arguments_of(function, tracer)
    products: dict[str, Node] = {}  # gates of the second product, and its operand

    def of_u(name: str) -> Value:
        return Value(tracer, graph.make("u", data=gates.index(name)))

    def of_r(name: str) -> _Recurrent:
        value = _Recurrent(tracer, graph.make("r", data=recurrent.index(name)))

        def second(operand: Any) -> Value:
            node = tracer.node(operand)
            if any(other is not node for other in products.values()):
                tracer.fail("a second product with another operand", "all gates of a second product share one operand")
            products[name] = node
            return Value(tracer, value._node)

        value._second = second
        return value

    if gates == ("",):
        u, r = of_u(""), of_r("") if recurrent else None
    else:
        u, r = Gates(tracer, "u", gates, of_u), Gates(tracer, "r", recurrent, of_r)
    old = [Value(tracer, graph.make("old", data=k)) for k in range(len(states))]
    own = {name: Value(tracer, graph.make("param", data=k)) for k, name in enumerate(params)}
    with variables_of(function) as variables:
        result = function(u, r, *old, **own, **constants)
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(states):
        tracer.fail(
            f"the function takes {len(states)} states ({', '.join(states)}) and returns {len(results)}",
            "return every new state, in the order of the arguments",
        )
    rows = tuple(tracer.rows.get(k, 1) for k in range(len(params)))
    initial = {params[k]: value for k, value in tracer.initial.items()}
    traced = Traced(
        graph, tuple(gates), tuple(recurrent), states, params, rows, initial, tuple(tracer.norms),
        tuple(map(tracer.node, results)), next(iter(products.values()), None), len(recurrent) - len(products),
        function.__name__, None if save is None else {name: to_save(tracer, name, variables) for name in save},
    )  # fmt: skip
    check_products(tracer, traced, products)
    return traced


@contextlib.contextmanager
def variables_of(function: Callable) -> Iterator[dict[str, Any]]:
    """The function's variables as they are when it returns, once it has been called."""
    variables: dict[str, Any] = {}

    def at_return(frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and frame.f_code is function.__code__:
            variables.update(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(at_return)
    try:
        yield variables
    finally:
        sys.setprofile(before)


def to_save(tracer: _Tracer, name: str, variables: dict[str, Any]) -> Node:
    """The value of a variable that ``save`` names."""
    value = variables.get(name)
    if not isinstance(value, Value):
        known = ", ".join(n for n, v in variables.items() if isinstance(v, Value))
        tracer.fail(f"`save` names {name!r}, which is not a value of the function", f"it has {known}")
    if value._node.op in ("old", "param", "const"):
        tracer.fail(f"`save` names {name!r}, which the backward pass has in any case", "leave it out")
    return value._node


def arguments_of(function: Callable, tracer: _Tracer) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, float]]:
    """The names of the states, the names of the parameters, and the constants by name."""
    _, _, *rest = given = list(inspect.signature(function).parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in given):
        tracer.fail("`*args` or `**kwargs` in the signature", "name every state and parameter")
    states = tuple(p.name for p in rest if p.kind is not p.KEYWORD_ONLY)
    own = [p for p in rest if p.kind is p.KEYWORD_ONLY]
    constants = {p.name: p.default for p in own if p.default is not p.empty}
    for name, value in constants.items():
        if not isinstance(value, numbers.Real):
            tracer.fail(
                f"the default of `{name}` must be a number, got {value!r}", "without a default it is a parameter"
            )
    params = tuple(p.name for p in own if p.default is p.empty)
    if clash := WEIGHTS & set(params):
        tracer.fail(f"the parameter {min(clash)!r} has the name of a layer's weight", "give it another name")
    if not 1 <= len(states) <= MOST_STATES or len(params) > MOST_PARAMS:
        tracer.fail(
            f"{len(states)} states and {len(params)} parameters",
            f"a cell has 1 to {MOST_STATES} states after u and r, and at most {MOST_PARAMS} parameters",
        )
    return states, params, constants


def check_products(tracer: _Tracer, traced: Traced, products: dict[str, Node]) -> None:
    values = in_order((*traced.next, *products.values()))
    used = {kind: {node.data for node in values if node.op == kind} for kind in ("u", "r", "old", "param")}
    of_norms = {data[0] for data in used["param"] if isinstance(data, tuple)}
    if both := of_norms & used["param"]:
        tracer.fail(f"the parameter {traced.params[min(both)]!r} is used for all gates and for one value", "use two")
    used["param"] |= of_norms
    for kind, names, what in (
        ("u", traced.gates, "gate"), ("r", traced.recurrent, "recurrent gate"), ("old", traced.states, "state"),
        ("param", traced.params, "parameter"),
    ):  # fmt: skip
        for k, name in enumerate(names):
            # The first state may be read by R only.
            if k not in used[kind] and not (kind == "old" and k == 0):
                named = f"{what} {name!r}" if name else what
                remedy = "leave it out" + (", or name the gates of R by `recurrent=`" if kind == "r" else "")
                tracer.fail(f"the {named} is not used", remedy)
    for norm in traced.norms:
        parts = {node.data >= traced.first for node in norm.inputs if node.op == "r"}
        if len(norm.inputs) > 1 and len(parts) > 1:
            tracer.fail("a norm over the gates of two products", "normalize values of the gates one by one")
    if not products:
        return
    if tuple(products) != traced.recurrent[traced.first :] and set(products) != set(traced.recurrent[traced.first :]):
        tracer.fail("`recurrent` names gates of the second product before others", "name them last")
    operand = in_order([traced.operand])
    if any(node.op == "r" and node.data >= traced.first for node in operand):
        tracer.fail("the operand of a second product depends on a second product", "use at most two products in a row")
    if any(node.op == "norm" for node in operand):
        tracer.fail("the operand of a second product depends on a norm", "normalize values after the second product")
    if any(node.op == "param" for node in operand):
        tracer.fail("the operand of a second product depends on a parameter", "make it of u, r and the states")
    if any(node.op == "u" and node.data >= traced.first for node in operand):
        tracer.fail("the operand of a second product reads a later gate of `u`", "name the gates that it reads first")
