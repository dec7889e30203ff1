"""Writes the C++ header of a cell, in the form of csrc/cells, from which kernels are compiled."""

import re

from rnnkern._cells import rows
from rnnkern._cells.derive import Derived, computed_from, is_late
from rnnkern._cells.expressions import expression, leaf
from rnnkern._cells.graph import LOGICAL, Node


def header_of(derived: Derived, type_name: str, name: str) -> str:
    """The text of the header.

    Args:
        type_name: the name of the C++ type.
        name: the name of the cell.
    """
    traced = derived.traced
    gates, recurrent = len(traced.gates), len(traced.recurrent)
    two = traced.operand is not None
    numbers = (traced.first if two else recurrent, gates, len(traced.states), len(traced.params), len(derived.saved))
    lines = [
        "// Derived from the equations of a Python function; csrc/cells/cell.h has the contract.", "",
        '#include "cells/cell.h"', "", "namespace rnnkern {", "",
        f"struct {type_name} : CellFacts<{', '.join(map(str, numbers))}, {str(derived.joint).lower()}> {{",
        f'  static constexpr const char* name = "{name}";',
        f"  static constexpr int recurrent = {recurrent};",
        f"  static constexpr bool two_products = {str(two).lower()};",
    ]  # fmt: skip
    if traced.norms:
        lines += rows.facts(derived)
    late = {node for node in derived.saved if two and is_late(traced, node)}
    early = [node for node in derived.saved if two and node not in late]
    if two:
        lines += _function(
            derived, "prepare(const V* u, const V* r, const V* old, V* save, V& operand)",
            {**{f"save[{_slot(derived, n)}]": n for n in early}, "operand": traced.operand}, {},
        )  # fmt: skip
    read = {node: _kept(derived, node) for node in early}
    written = [node for node in derived.saved if node not in early]
    if traced.norms:
        lines += rows.functions(derived)
        return "\n".join(
            [*lines, *(_prepare_backward(derived) if two else []), "};", "", "}  // namespace rnnkern", ""]
        )
    lines += _function(
        derived, "forward(const V* u, const V* r, const V* old, const V* params, V* next, V* save)",
        {**{f"save[{_slot(derived, n)}]": n for n in written}, **{f"next[{k}]": n for k, n in enumerate(traced.next)}},
        read,
    )  # fmt: skip
    read = {node: _kept(derived, node) for node in derived.saved}
    if derived.reads_next:
        read = {traced.next[0]: "next[0]"}
    results: dict[str, Node | None] = {}
    for k in range(gates):
        results[f"du[{k}]"] = derived.du[k]
    for k in range(recurrent):
        results[f"dr[{k}]"] = derived.dr[k]
    for k, node in enumerate(derived.dold):
        results[f"grad[{k}]"] = node
    for k, node in derived.dparams.items():
        results[f"dparams[{k}] +"] = node
    text = "backward(const V* save, const V* old, const V* next, const V* params, V* grad, V* du, V* dr, V* dparams)"
    lines += _function(derived, text, results, read)
    if two:
        lines += _prepare_backward(derived)
    return "\n".join([*lines, "};", "", "}  // namespace rnnkern", ""])


def _prepare_backward(derived: Derived) -> list[str]:
    traced = derived.traced
    read = {node: _kept(derived, node) for node in derived.saved}
    results: dict[str, Node | None] = {"operand": traced.operand}
    for k, node in enumerate(derived.operand_dold):
        results[f"grad[{k}] +"] = node
    for k in range(traced.first):
        results[f"dr[{k}] +"] = derived.operand_dr[k]
    for k in range(min(traced.first, len(traced.gates))):
        results[f"du[{k}]" if derived.joint else f"du[{k}] +"] = derived.operand_du[k]
    text = "prepare_backward(const V* save, const V* old, V doperand, V* grad, V* du, V* dr, V& operand)"
    return _function(derived, text, results, read, joint=derived.joint)


def _slot(derived: Derived, node: Node) -> int:
    return derived.saved.index(node)


def _kept(derived: Derived, node: Node) -> str:
    """The expression of a saved value; conditions are saved as 1 or 0."""
    text = f"save[{_slot(derived, node)}]"
    return f"({text} > V(0))" if node.op in LOGICAL else text


def _function(derived: Derived, signature: str, results: dict[str, Node | None], read: dict[Node, str],
              joint: bool = False) -> list[str]:  # fmt: skip
    """A function that stores nodes in ``results``, by target, or "target +" to add. ``read`` names available values."""
    values = [node for node in results.values() if node is not None]
    steps = computed_from(values, read)
    names: dict[Node, str] = dict(read)
    lines = ["", "  template <class V>", f"  RNNKERN_CELL void {signature} {{"]
    for number, node in enumerate(steps):
        names[node] = f"x{number}"
        kind = "auto" if node.op in LOGICAL else "V"
        lines.append(f"    const {kind} {names[node]} = {expression(node, names)};")
    for place, node in results.items():
        value = "V(0)" if node is None else names[node] if node in names else leaf(node)
        target = place.removesuffix(" +")
        if node is not None and node.op in LOGICAL:
            value = f"select({value}, V(1), V(0))"
        if place.endswith("+"):
            if node is None:
                continue
            value = f"{target} + {value}"
        if joint and target.startswith("du["):
            value = target.replace("du", "dr")
        lines.append(f"    {target} = {value};")
    body = "\n".join(lines)
    body = re.sub(r"(?<=[(, ])(const V\* |V\* |V )(\w+)(?=[,)])", lambda m: _parameter(m, body), body)
    return [*body.split("\n"), "  }"]


def _parameter(match: re.Match, body: str) -> str:
    """Removes the name of an unused parameter."""
    used = len(re.findall(rf"\b{match[2]}\b", body)) > 1
    return match[0] if used else match[1].rstrip()
