"""Writes operations of a graph as C++ expressions."""

from rnnkern._cells.graph import COMPARISONS, Node

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", **COMPARISONS}


def leaf(node: Node) -> str:
    """The C++ expression of a leaf."""
    if node.op == "const":
        return f"V({node.data!r})" if abs(node.data) != float("inf") and node.data == node.data else _special(node.data)
    if node.op == "doperand":
        return "doperand"
    return f"{'params' if node.op == 'param' else node.op}[{node.data}]"


def _special(value: float) -> str:
    text = '__builtin_nan("")' if value != value else "__builtin_inf()"
    return f"V({'-' if value < 0 else ''}{text})"


def _power(x: str, exponent: float) -> str:
    """A power, by multiplications and a square root if those suffice."""
    if exponent < 0:
        return f"V(1) / ({_power(x, -exponent)})"
    whole, rest = divmod(exponent, 1)
    if rest == 0.5 and whole <= 8:
        return " * ".join([x] * int(whole) + [f"sqrt({x})"])
    return f"exp(log({x}) * V({exponent!r}))"


def expression(node: Node, names: dict[Node, str]) -> str:
    """The C++ expression of one operation on named values."""
    args = [names.get(a) or leaf(a) for a in node.args]
    if node.op in _INFIX:
        return f"{args[0]} {_INFIX[node.op]} {args[1]}"
    match node.op:
        case "neg":
            return f"-{args[0]}"
        case "not":
            return f"!{args[0]}"
        case "relu":
            return f"select({args[0]} <= V(0), V(0), {args[0]})"
        case "leaky_relu":
            return f"select({args[0]} > V(0), {args[0]}, {args[0]} * V({node.data!r}))"
        case "elu":
            return f"select({args[0]} > V(0), {args[0]}, expm1({args[0]}) * V({node.data!r}))"
        case "pow":
            return _power(args[0], node.data)
        case "hardtanh":
            low, high = node.data
            inner = f"select({args[0]} > V({high!r}), V({high!r}), {args[0]})"
            return f"select({args[0]} < V({low!r}), V({low!r}), {inner})"
        case "sign":
            return f"select({args[0]} > V(0), V(1), select({args[0]} < V(0), V(-1), V(0)))"
        case "maximum" | "minimum":
            wins = ">" if node.op == "maximum" else "<"
            a, b = args
            return f"select({b} == {b}, select({a} {wins} {b}, {a}, select({a} == {a}, {b}, {a})), {b})"
    return f"{node.op}({', '.join(args)})"
