"""Writes the functions of a cell with norms, in the form that csrc/cells/cell.h describes.

A norm needs a whole row, so the equations run in passes over it. A norm has a level: the number of norms, one after the
other, that its inputs depend on. Forward pass k computes the inputs of norms of level k, and the last one the new
state. The backward runs in the opposite order: pass k, with the gradients of the inputs of norms of higher levels,
computes those of the results of norms of level k, and pass -1 what is left. A result is computed in the first pass that
can, but dL/dold, which takes the place of dL/dnext, not before the last pass that reads that.
"""

from collections.abc import Iterable, Mapping

from rnnkern._cells.derive import Derived, is_late, slot_of
from rnnkern._cells.expressions import expression, leaf
from rnnkern._cells.graph import LEAVES, LOGICAL, Node, in_order

Result = tuple[str, Node | None]
"""A statement with ``{}`` for the value, and the value; None is 0."""
READ = {
    "u": "at.u({})", "r": "at.r({})", "old": "at.old({})", "param": "at.param({}, {})", "norm": "at.norm({}, {})",
    "grad": "at.grad({})", "dinput": "at.dinput({}, {})",
}  # fmt: skip


def facts(derived: Derived) -> list[str]:
    """The constants of a cell with norms."""
    traced, saved = derived.traced, derived.saved
    norms = [
        f"{{{n.level}, {len(n.inputs)}, {slot_of(saved, n.inputs)}, {str(n.kind == 'layer_norm').lower()}, {n.eps!r}}}"
        for n in traced.norms
    ]
    return [
        f"  static constexpr int norms = {len(norms)}, levels = {traced.levels}, r_slot = {_r_slot(derived)};",
        f"  static constexpr NormFacts norm_facts[] = {{{', '.join(norms)}}};",
        f"  static constexpr int8_t param_rows[most_params] = {{{', '.join(map(str, traced.rows))}}};",
    ]


def functions(derived: Derived) -> list[str]:
    """The definitions of all functions."""
    last = derived.traced.levels
    passes = range(last)
    results, saved = _gradients(derived), {node: _saved(derived, node) for node in derived.saved}
    return [
        *_function("forward", {k: _body(*_forward(derived, k)) for k in (*passes, last)}),
        *_function("inputs", {k: _body(_inputs(derived, k), saved) for k in passes}),
        *_function("backward", {k: _body(results[k], saved) for k in (*reversed(passes), -1)}),
        *_function("tangent", {k: _body(_tangents(derived, k), saved) for k in (*passes, last)}),
    ]


def _r_slot(derived: Derived) -> int:
    """Where the saved values have R h, or -1."""
    traced = derived.traced
    if traced.operand is not None:
        return -1
    return slot_of(derived.saved, tuple(traced.graph.make("r", data=k) for k in range(len(traced.recurrent))))


def _inputs(derived: Derived, k: int) -> list[Result]:
    """The inputs of norms of level k, except those that are next to one another among the saved values."""
    norms = [(n, norm.inputs) for n, norm in enumerate(derived.traced.norms) if norm.level == k]
    computed = [(n, inputs) for n, inputs in norms if slot_of(derived.saved, inputs) < 0]
    return [(f"at.set_input({n}, {j}, {{}})", node) for n, inputs in computed for j, node in enumerate(inputs)]


def _forward(derived: Derived, k: int) -> tuple[list[Result], dict[Node, str]]:
    """The results of a pass, and the values that it finds."""
    traced = derived.traced
    early = {node for node in derived.saved if traced.operand is not None and not is_late(traced, node)}
    results, found = [], {}
    for slot, node in enumerate(derived.saved):
        level = traced.level(node)
        if node in early or (level < k and node.op not in ("u", "r")):
            found[node] = _saved(derived, node)
        elif level == k and not (node.op == "r" and _r_slot(derived) >= 0):
            results.append((f"at.set_saved({slot}, {{}})", node))
    if k < traced.levels:
        return results + _inputs(derived, k), found
    return results + [(f"at.set_next({s}, {{}})", node) for s, node in enumerate(traced.next)], found


def _gradients(derived: Derived) -> dict[int, list[Result]]:
    """The results of each pass of the backward."""
    norms, last = derived.traced.norms, derived.traced.levels - 1
    results: dict[int, list[Result]] = {k: [] for k in range(-1, last + 1)}

    def leaves(node: Node | None, op: str) -> list[Node]:
        return [each for each in in_order([node] if node else [], stop=lambda a: a.op == "norm") if each.op == op]

    def first_pass(node: Node | None) -> int:
        return min((norms[each.data[0]].level - 1 for each in leaves(node, "dinput")), default=last)

    for n, nodes in enumerate(derived.dnorms):
        results[norms[n].level] += [(f"at.set_dnorm({n}, {j}, {{}})", node) for j, node in enumerate(nodes)]
    for kind, nodes in (("u", () if derived.joint else derived.du), ("r", derived.dr)):
        for g, node in enumerate(nodes):
            results[first_pass(node)].append((f"at.set_d{kind}({g}, {{}})", node))
    for data, node in derived.dparams.items():
        results[first_pass(node)].append((f"at.add_dparam({_indices('param', data)}, {{}})", node))
    reading = [k for k, found in results.items() if any(leaves(node, "grad") for _, node in found)]
    of_old = min([*map(first_pass, derived.dold), *reading])
    results[of_old] += [(f"at.set_grad({s}, {{}})", node) for s, node in enumerate(derived.dold)]
    return results


def _tangents(derived: Derived, k: int) -> list[Result]:
    """The tangents of the inputs of norms of level k or, after the last one, of the new state."""
    traced = derived.traced
    if k < traced.levels:
        norms = [(n, norm.inputs) for n, norm in enumerate(traced.norms) if norm.level == k]
        inputs = [(n, j, x) for n, inputs in norms for j, x in enumerate(inputs)]
        return [(f"at.set_tangent({n}, {j}, {{}})", _tangent(derived, x)) for n, j, x in inputs]
    return [(f"at.set_next({s}, {{}})", _tangent(derived, node)) for s, node in enumerate(traced.next)]


def _tangent(derived: Derived, of: Node) -> Node | None:
    """The sum of the tangents of the leaves and norms that a value depends on, times its derivatives by them."""
    graph, total = derived.traced.graph, None
    for node, slope in graph.gradients({of: graph.const(1.0)}).items():
        if node.op in ("u", "r", "old", "param", "norm"):
            term = graph.make("mul", slope, graph.make("tangent", data=(node.op, node.data)))
            total = term if total is None else graph.add(total, term)
    return total


def _saved(derived: Derived, node: Node) -> str:
    """The expression of a saved value; conditions are saved as 1 or 0."""
    text = f"at.saved({derived.saved.index(node)})"
    return f"({text} > V(0))" if node.op in LOGICAL else text


def _indices(kind: str, data: int | tuple[int, int]) -> str:
    return f"{data}, 0" if kind == "param" and not isinstance(data, tuple) else str(data).strip("()")


def _read(node: Node) -> str:
    """The expression that reads a leaf or the result of a norm."""
    kind, data = node.data if node.op == "tangent" else (node.op, node.data)
    text = READ[kind].replace("(", "_tangent(") if node.op == "tangent" else READ[kind]
    return text.replace("{}, {}", "{}").format(_indices(kind, data))


def _body(results: Iterable[Result], found: Mapping[Node, str]) -> list[str]:
    """The statements of a pass."""
    results = list(results)
    names: dict[Node, str] = {}
    lines = []
    for node in in_order([n for _, n in results if n], stop=lambda n: n in found or n.op == "norm"):
        if node.op == "const":
            continue
        text = found.get(node) or (_read(node) if node.op in LEAVES or node.op == "norm" else expression(node, names))
        names[node] = f"x{len(names)}"
        lines.append(f"const {'auto' if node.op in LOGICAL else 'V'} {names[node]} = {text};")
    for statement, node in results:
        value = "V(0)" if node is None else names.get(node) or leaf(node)
        if node is not None and node.op in LOGICAL:
            value = f"select({value}, V(1), V(0))"
        lines.append(f"{statement.format(value)};")
    return lines


def _function(name: str, bodies: Mapping[int, list[str]]) -> list[str]:
    lines = ["", "  template <int pass, class V, class Row>", f"  RNNKERN_CELL void {name}(Row& at) {{"]
    for k, body in bodies.items():
        if body:
            lines += [f"    if constexpr (pass == {k}) {{", *(f"      {line}" for line in body), "    }"]
    return [*lines, "  }"]
