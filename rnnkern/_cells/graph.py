"""Holds the equations of a cell as a graph of scalar operations, and knows the derivative of each operation.

A node is a value of one unit at one step. Equal expressions share a node, and constants are folded.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Node(NamedTuple):
    """A value. Leaves are ``u`` and ``r`` (gates), ``old`` (states), ``param``, ``grad`` (gradients of the new states),
    ``doperand`` (the gradient of the operand of a second product), with their index in ``data``, and ``const``, with
    its value in ``data``. ``norm`` is result j of the k-th norm, (k, j) in ``data``, whose arguments are its inputs of
    the same unit; it depends on all other units too. ``dinput`` (k, j) is the gradient of its input j, and ``param``
    (k, j) is value j of a parameter that has one for each input of a norm. ``tangent`` (kind, data) is the tangent of
    the leaf or norm of that kind."""

    op: str
    args: tuple["Node", ...] = ()
    data: float | int | None = None

    # Expressions are deep and share parts. Graph makes each node once, so equality is identity.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{self.op}{'' if self.data is None else f' {self.data}'}>"


LEAVES = frozenset({"u", "r", "old", "param", "grad", "doperand", "dinput", "tangent", "const"})
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
LOGICAL = frozenset({*COMPARISONS, "and", "or", "not"})
TRANSCENDENTAL = frozenset({"tanh", "sigmoid", "exp", "expm1", "log", "log1p", "sin", "cos", "pow"})
"""Functions that the backward pass does not evaluate again."""

_COMMUTATIVE = frozenset({"add", "mul", "eq", "and", "or", "maximum", "minimum"})


def _divided(a: float, b: float) -> float:
    return a / b if b else math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def _guarded(function: Callable[[float], float]) -> Callable[[float], float]:
    def value(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if x == 0 else math.nan

    return value


FOLDED: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "neg": lambda a: -a,
    "abs": abs,
    "sqrt": _guarded(math.sqrt),
    "exp": _guarded(math.exp),
    "expm1": _guarded(math.expm1),
    "log": _guarded(math.log),
    "log1p": _guarded(math.log1p),
    "sin": _guarded(math.sin),
    "cos": _guarded(math.cos),
    "tanh": math.tanh,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)) if a > -700 else 0.0,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "not": lambda a: not a,
    "maximum": lambda a, b: a if a != a or a > b else b,
    "minimum": lambda a, b: a if a != a or a < b else b,
    "select": lambda c, a, b: a if c else b,
}
"""The values of operations on constants, which are folded."""
DERIVATIVES: dict[str, Callable[..., Node]] = {
    "neg": lambda make, g, x, y, one: make("neg", g),
    "abs": lambda make, g, x, y, one: make("mul", g, make("sign", x)),
    "sqrt": lambda make, g, x, y, one: make("div", g, make("add", y, y)),
    "exp": lambda make, g, x, y, one: make("mul", g, y),
    "expm1": lambda make, g, x, y, one: make("mul", g, make("add", y, one)),
    "log": lambda make, g, x, y, one: make("div", g, x),
    "log1p": lambda make, g, x, y, one: make("div", g, make("add", x, one)),
    "sin": lambda make, g, x, y, one: make("mul", g, make("cos", x)),
    "cos": lambda make, g, x, y, one: make("neg", make("mul", g, make("sin", x))),
    "tanh": lambda make, g, x, y, one: make("mul", g, make("sub", one, make("mul", y, y))),
    "sigmoid": lambda make, g, x, y, one: make("mul", make("mul", g, y), make("sub", one, y)),
}
"""The gradient of x, given the gradient g of y = f(x), for functions of one argument without constants."""


class Graph:
    """Makes nodes, and makes each only once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple, Node] = {}
        self._made: dict[Node, int] = {}  # their order, so that equal equations give equal headers

    def make(self, op: str, *args: Node, data: float | int | tuple | None = None) -> Node:
        """The node of an operation, simplified if finite results keep the same bits."""
        if op in FOLDED and all(a.op == "const" for a in args):
            return self.const(FOLDED[op](*(a.data for a in args)))
        simpler = self._simplified(op, args)
        if simpler is not None:
            return simpler
        if op in _COMMUTATIVE:
            args = tuple(sorted(args, key=self._made.__getitem__))
        key = (op, tuple(map(id, args)), repr(data))
        if key not in self._nodes:
            node = self._nodes[key] = Node(op, args, data)
            self._made[node] = len(self._made)
        return self._nodes[key]

    def _simplified(self, op: str, args: tuple[Node, ...]) -> Node | None:
        if op == "add":
            zero, other = args if _is(args[0], 0) else args[::-1]
            return other if _is(zero, 0) else None
        if op == "mul":
            for one, other in (args, args[::-1]):
                if _is(one, 1):
                    return other
                if _is(one, -1):
                    return self.make("neg", other)
        if (op == "sub" and _is(args[1], 0)) or (op == "div" and _is(args[1], 1)):
            return args[0]
        if op == "sub" and _is(args[0], 0):
            return self.make("neg", args[1])
        if op in ("neg", "not") and args[0].op == op:
            return args[0].args[0]
        if op == "select" and args[1] is args[2]:
            return args[1]
        if op == "select" and args[0].op == "const":
            return args[1] if args[0].data else args[2]
        return None

    def const(self, value: float) -> Node:
        return self.make("const", data=float(value))

    def add(self, a: Node, b: Node) -> Node:
        """a + b, as a subtraction if one of them is a negation."""
        for one, other in ((a, b), (b, a)):
            if other.op == "neg":
                return self.make("sub", one, other.args[0])
        return self.make("add", a, b)

    # ---- reverse mode

    def gradients(self, seeds: dict[Node, Node]) -> dict[Node, Node]:
        """The gradients of sum(value * seed) with respect to all nodes that the values depend on, except those without
        a gradient. They do not pass through norms, whose inputs must be among the values.

        Args:
            seeds: the gradient of each value.
        """
        total: dict[Node, Node] = {}

        def send(to: Node, gradient: Node | None) -> None:
            if gradient is not None and to.op != "const":
                total[to] = self.add(total[to], gradient) if to in total else gradient

        for value, seed in seeds.items():
            send(value, seed)
        for node in reversed(in_order(seeds)):
            gradient = total.get(node)
            if gradient is None or node.op in LEAVES or node.op == "norm":
                continue
            for to, passed in zip(node.args, self._passed(node, gradient), strict=True):
                send(to, passed)
        return total

    def _passed(self, node: Node, g: Node) -> tuple[Node | None, ...]:
        """The gradients of a node's arguments, given its gradient ``g``; at kinks those of PyTorch's autograd."""
        make, const = self.make, self.const
        one, zero = const(1.0), const(0.0)

        if node.op in LOGICAL or node.op == "sign":
            return (None,) * len(node.args)
        if node.op == "select":
            condition = node.args[0]
            return None, make("select", condition, g, zero), make("select", condition, zero, g)
        x = node.args[0]
        if node.op in DERIVATIVES:
            return (DERIVATIVES[node.op](make, g, x, node, one),)
        match node.op:
            case "add":
                return g, g
            case "sub":
                return g, make("neg", g)
            case "mul":
                return make("mul", g, node.args[1]), make("mul", g, x)
            case "div":
                divided = make("div", g, node.args[1])
                return divided, make("neg", make("mul", divided, node))
            case "maximum" | "minimum":
                y = node.args[1]
                wins = make("gt" if node.op == "maximum" else "lt", x, y)
                half = make("mul", g, const(0.5))
                mine = make("select", make("eq", x, y), half, make("select", wins, g, zero))
                return mine, make("select", make("eq", x, y), half, make("select", wins, zero, g))
            case "pow":
                below = make("pow", x, data=node.data - 1) if node.data != 1 else one
                return (make("mul", g, make("mul", const(node.data), below)),)
            case "relu":
                return (make("select", make("gt", node, zero), g, zero),)
            case "leaky_relu":
                return (make("select", make("gt", node, zero), g, make("mul", g, const(node.data))),)
            case "elu":
                steep = make("mul", g, make("add", node, const(node.data)))
                return (make("select", make("gt", node, zero), g, steep),)
            case "hardtanh":
                low, high = node.data
                inside = make("and", make("gt", node, const(low)), make("lt", node, const(high)))
                return (make("select", inside, g, zero),)
        raise AssertionError(node.op)


def _is(node: Node, value: float) -> bool:
    return node.op == "const" and node.data == value


def in_order(values: Iterable[Node], stop: Callable[[Node], bool] = lambda node: False) -> list[Node]:
    """The values and all nodes that they depend on, arguments first. Arguments of nodes for which ``stop`` is true are
    not followed."""
    seen: set[Node] = set()
    order: list[Node] = []
    waiting = [(value, False) for value in reversed(list(values))]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            if not stop(node):
                waiting += [(a, False) for a in reversed(node.args) if a not in seen]
    return order
