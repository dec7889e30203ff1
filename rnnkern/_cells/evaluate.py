"""Writes the equations of a cell as a Python function on tensors, and as a step of the reference."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern._cells.graph import COMPARISONS, Node, in_order
from rnnkern._cells.norms import normalized
from rnnkern._cells.trace import Traced

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", **COMPARISONS}
_ON_TENSORS = {"maximum": "maximum", "minimum": "minimum", "and": "logical_and", "or": "logical_or", "select": "where"}
"""PyTorch's names of functions that need tensors where others take numbers."""


def equations_of(traced: Traced) -> Callable[..., tuple[Any, ...]]:
    """``equations(u, r, old, param)``, with u and r as in the user's function and sequences of the states and of the
    parameters. It computes what the kernels compute, whatever the user's function has become since."""
    names: dict[Node, str] = {}
    normalised: set[int] = set()
    lines = ["def equations(u, r, old, param):"]

    def add(values: Iterable[Node]) -> None:
        for node in in_order(values, stop=names.__contains__):
            if node.op == "const":
                names[node] = repr(node.data) if abs(node.data) < float("inf") else f'float("{node.data}")'
            elif node not in names:
                if node.op == "norm" and (k := node.data[0]) not in normalised:
                    normalised.add(k)
                    norm, values = traced.norms[k], ", ".join(names[a] for a in node.args)
                    lines.append(f"    norm{k} = normalized({norm.kind!r}, {norm.eps!r}, {values})")
                names[node] = f"x{len(names)}"
                lines.append(f"    {names[node]} = {_expression(traced, node, names)}")

    add([traced.operand] if traced.operand else [])
    add(traced.next)
    lines.append(f"    return {', '.join(names[node] for node in traced.next)},")
    scope = {"torch": torch, "F": F, "full": _full, "normalized": normalized}
    exec(compile("\n".join(lines), f"<equations of {traced.name}>", "exec"), scope)
    return scope["equations"]


def _full(value: float, like: Any) -> Any:
    """A number where a function needs a tensor; placeholders of a trace take numbers everywhere."""
    return torch.full_like(like, value) if isinstance(like, Tensor) else value


def _expression(traced: Traced, node: Node, names: dict[Node, str]) -> str:
    args = [names[a] for a in node.args]
    match node.op:
        case "u" | "r":
            name = (traced.gates if node.op == "u" else traced.recurrent)[node.data]
            text = f"{node.op}[{name}]" if name.isdigit() else f"{node.op}.{name}" if name else node.op
            late = node.op == "r" and node.data >= traced.first
            return f"{text}({names[traced.operand]})" if late else text
        case "norm":
            return f"norm{node.data[0]}[{node.data[1]}]"
        case "param" if isinstance(node.data, tuple):
            return f"param[{node.data[0]}].chunk({traced.rows[node.data[0]]})[{node.data[1]}]"
        case "old" | "param":
            return f"{node.op}[{node.data}]"
        case "neg":
            return f"-{args[0]}"
        case "not":
            return f"torch.logical_not({args[0]})"
        case "pow":
            return f"{args[0]} ** {node.data!r}"
        case "leaky_relu" | "elu":
            return f"F.{node.op}({args[0]}, {node.data!r})"
        case "hardtanh":
            return f"F.hardtanh({args[0]}, *{node.data!r})"
    if node.op in _INFIX:
        return f"{args[0]} {_INFIX[node.op]} {args[1]}"
    if node.op in _ON_TENSORS:
        constant = [a.op == "const" for a in node.args]
        if node.op != "select" or all(constant[1:]):
            args = [f"full({text}, old[0])" if c else text for text, c in zip(args, constant, strict=True)]
        return f"torch.{_ON_TENSORS[node.op]}({', '.join(args)})"
    return f"torch.{node.op}({args[0]})"


class _Tensors:
    """`u` or `r` with tensors: a tensor for each gate, or a function of the operand for gates of a second product."""

    def __init__(self, gates: Mapping[str, Any]) -> None:
        self.__dict__.update(gates)

    def __getitem__(self, index: int) -> Any:
        return self.__dict__[str(index)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__dict__.values())

    def __add__(self, other: "_Tensors") -> "_Tensors":
        return _Tensors({name: value + other.__dict__[name] for name, value in self.__dict__.items()})

    def _like(self, values: Sequence[Any]) -> "_Tensors":
        """Other values of the same gates."""
        return _Tensors(dict(zip(self.__dict__, values, strict=True)))


def step_of(traced: Traced, equations: Callable) -> Callable[..., tuple[Tensor, ...]]:
    """Converts ``equations(u, r, old, param)`` to the form of the cells of rnnkern.reference."""
    gates, recurrent, first = traced.gates, traced.recurrent, traced.first

    def step(u: Tensor, product: Callable, state: tuple[Tensor, ...], *params: Tensor) -> tuple[Tensor, ...]:
        parts: list[Any] = list(product(state[0], 0, first).chunk(first, dim=-1)) if first else []
        products: list[Tensor] = []

        def of(k: int) -> Callable[[Tensor], Tensor]:
            def multiplied(operand: Tensor) -> Tensor:
                if not products:
                    products.extend(product(operand, first, len(recurrent)).chunk(len(recurrent) - first, dim=-1))
                return products[k]

            return multiplied

        parts += map(of, range(len(recurrent) - first))
        if gates == ("",):
            given = (u, parts[0] if parts else None)
        else:
            of_u = dict(zip(gates, u.chunk(len(gates), dim=-1), strict=True))
            given = (_Tensors(of_u), _Tensors(dict(zip(recurrent, parts, strict=True))))
        new = equations(*given, state, params)
        # Results that only depend on parameters or constants are the same for all sequences.
        pairs = zip(new, state, strict=True)
        return tuple(x.expand_as(s) if isinstance(x, Tensor) else torch.full_like(s, x) for x, s in pairs)

    return step
