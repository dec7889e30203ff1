"""Derives the backward pass of a cell's equations, and chooses what the forward pass saves for it."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from rnnkern._cells.graph import LEAVES, TRANSCENDENTAL, Node, in_order
from rnnkern._cells.trace import CellError, Traced


class Derived(NamedTuple):
    """The contents of a header. Gradients that are 0 are None."""

    traced: Traced
    joint: bool  # u and r are only used as u + r
    saved: tuple[Node, ...]
    reads_next: bool  # the backward reads the new state instead of saved values
    du: tuple[Node | None, ...]
    dr: tuple[Node | None, ...]
    dold: tuple[Node | None, ...]
    dparams: dict[int | tuple[int, int], Node]
    dnorms: tuple[tuple[Node | None, ...], ...]  # of the results of each norm
    # Contributions to du, dr and dold, given the gradient of the second product's operand.
    operand_du: tuple[Node | None, ...]
    operand_dr: tuple[Node | None, ...]
    operand_dold: tuple[Node | None, ...]


def derive(traced: Traced) -> Derived:
    """Differentiates the equations in reverse mode.

    The saved values are a minimum cut of the graph: the smallest set from which the backward pass can compute all that
    it needs without u, R h, or transcendental functions that the forward pass has evaluated. Values that the user named
    are saved in any case; the rest is then the smallest set, where transcendental functions may be evaluated again.
    """
    graph = traced.graph
    seeds: dict[Node, Node] = {}
    for k, value in enumerate(traced.next):
        seed = graph.make("grad", data=k)
        seeds[value] = graph.add(seeds[value], seed) if value in seeds else seed
    for k, norm in enumerate(traced.norms):
        for j, value in enumerate(norm.inputs):
            seed = graph.make("dinput", data=(k, j))
            seeds[value] = graph.add(seeds[value], seed) if value in seeds else seed
    gradients = graph.gradients(seeds)
    operand = {}
    if traced.operand is not None:
        operand = graph.gradients({traced.operand: graph.make("doperand")})

    def leaves(of: dict[Node, Node], kind: str, count: int) -> tuple[Node | None, ...]:
        return tuple(of.get(graph.make(kind, data=k)) for k in range(count))

    gates, recurrent, states = len(traced.gates), len(traced.recurrent), len(traced.states)
    results = [leaves(gradients, kind, n) for kind, n in (("u", gates), ("r", recurrent), ("old", states))]
    of_params = (graph.make("param", data=data) for data in traced.values_of_params())
    dparams = {node.data: gradients[node] for node in of_params if node in gradients}
    dnorms = tuple(
        tuple(gradients.get(graph.make("norm", *norm.inputs, data=(k, j))) for j in range(len(norm.inputs)))
        for k, norm in enumerate(traced.norms)
    )
    of_operand = (leaves(operand, "u", gates), leaves(operand, "r", recurrent), leaves(operand, "old", states))
    wanted = [node for part in (*results, dparams.values(), *dnorms, *of_operand) for node in part if node]
    needed = [*_read_of_forward(wanted), *_of_first_product(traced), *_between_norms(traced)]
    named, again = tuple((traced.save or {}).values()), traced.save is not None
    saved = (*named, *smallest_cut(needed, free=named, again=again))
    reads_next = False
    if saved and not again and len(traced.next) == 1 and traced.operand is None and not traced.norms:
        reads_next = not smallest_cut(needed, free=traced.next)
        saved = () if reads_next else saved
    read = in_order(needed, stop=named.__contains__)
    if unread := [name for name, node in (traced.save or {}).items() if node not in read]:
        raise CellError(f"{traced.name}: `save` names {unread}, which the backward pass does not need; leave it out")
    saved = _in_rows(traced, saved)
    return Derived(traced, _is_joint(traced), saved, reads_next, *results, dparams, dnorms, *of_operand)


def is_gradient(node: Node, known: dict[Node, bool]) -> bool:
    """Whether a node depends on a gradient."""
    for each in in_order([node], stop=known.__contains__):
        if each not in known:
            known[each] = each.op in ("grad", "doperand", "dinput") or any(known[a] for a in each.args)
    return known[node]


def _read_of_forward(wanted: list[Node]) -> list[Node]:
    """The values of the forward pass that the gradients depend on."""
    known: dict[Node, bool] = {}
    read = []
    for node in in_order(wanted):
        if is_gradient(node, known):
            read += [a for a in node.args if not is_gradient(a, known)]
    read += [node for node in wanted if not known[node]]  # gradients without a leaf of a gradient
    return list(dict.fromkeys(node for node in read if node.op != "const"))


def _of_first_product(traced: Traced) -> list[Node]:
    """With a second product: its operand, and the earlier values that the equations after it read."""
    if traced.operand is None:
        return []
    late = {n for n in in_order(traced.next) if is_late(traced, n)}
    read = [a for node in late for a in node.args if a not in late]
    read += [node for node in traced.next if node not in late]
    return [traced.operand, *(n for n in dict.fromkeys(read) if any(leaf.op == "r" for leaf in in_order([n])))]


def is_late(traced: Traced, node: Node) -> bool:
    """Whether `forward` computes a value, not `prepare`: it depends on the second product, a parameter or a norm."""
    nodes = in_order([node])
    return any(each.op in ("param", "norm") or (each.op == "r" and each.data >= traced.first) for each in nodes)


def _between_norms(traced: Traced) -> list[Node]:
    """The inputs of norms, and the transcendental functions that values after a norm read from before it."""
    if not traced.norms:
        return []
    inputs = [node for norm in traced.norms for node in norm.inputs]
    read = dict.fromkeys(inputs)
    for node in in_order((*traced.next, *inputs)):
        if node.op != "norm":
            later = traced.level(node)
            read |= dict.fromkeys(a for a in node.args if traced.level(a) < later and _is_costly(a))
    return [*read, *(node for node in traced.next if traced.level(node) < traced.levels and _is_costly(node))]


def _is_costly(node: Node) -> bool:
    if node.op == "norm":
        return False
    return any(each.op in TRANSCENDENTAL for each in in_order([node], stop=lambda a: a.op == "norm"))


def _in_rows(traced: Traced, saved: tuple[Node, ...]) -> tuple[Node, ...]:
    """The saved values with the products R h, and the inputs of each norm, next to one another where all are saved."""
    products = tuple(traced.graph.make("r", data=k) for k in range(len(traced.recurrent)))
    rows: list[Node] = []
    for values in ([products] if traced.norms else []) + [norm.inputs for norm in traced.norms]:
        if set(values) <= set(saved) - set(rows):
            rows += values
    return (*(node for node in saved if node not in rows), *rows)


def slot_of(saved: tuple[Node, ...], values: tuple[Node, ...]) -> int:
    """The number of the first of the values among the saved ones, if these have all, one after the other; or -1."""
    if not values or values[0] not in saved:
        return -1
    first = saved.index(values[0])
    return first if saved[first : first + len(values)] == values else -1


def _is_joint(traced: Traced) -> bool:
    if traced.gates != traced.recurrent:
        return False
    values = in_order((*traced.next, *([traced.operand] if traced.operand else [])))
    readers: dict[Node, set[Node]] = {}
    for node in values:
        for a in node.args:
            readers.setdefault(a, set()).add(node)
    direct = {*traced.next, traced.operand}
    for k in range(len(traced.gates)):
        u, r = (traced.graph.make(kind, data=k) for kind in ("u", "r"))
        both = traced.graph.make("add", u, r)
        if readers.get(u) != {both} or readers.get(r) != {both} or u in direct or r in direct:
            return False
    return True


def smallest_cut(needed: Iterable[Node], free: Iterable[Node] = (), again: bool = False) -> tuple[Node, ...]:
    """The smallest set of nodes from which, with the old state, the parameters and ``free``, all of ``needed`` can be
    computed without u, r and, unless ``again``, transcendental functions. Of several such sets, the one nearest to
    ``needed``.

    A maximum flow (Edmonds and Karp 1972) in a network where every node is an edge of capacity one.
    """
    free, needed = set(free), list(dict.fromkeys(needed))
    nodes = in_order(needed, stop=lambda node: node in free)
    # Node n is the edge (n, "in") -> (n, "out"); flow goes from values that cannot be recomputed to needed ones.
    capacity: dict = {}

    def connect(a, b, size):
        capacity.setdefault(a, {})[b] = size
        capacity.setdefault(b, {}).setdefault(a, 0)

    endless = len(nodes) + 1
    for node in nodes:
        if node in free or node.op in ("old", "param", "const"):
            continue
        connect((node, "in"), (node, "out"), 1)
        if node.op in ("u", "r") or (node.op in TRANSCENDENTAL and not again):
            connect("source", (node, "in"), endless)
        else:
            for a in node.args:
                connect((a, "out"), (node, "in"), endless)
        if node in needed:
            connect((node, "out"), "sink", endless)

    def path_from(start, forwards):
        """The vertices that more flow could reach from ``start``, or from which it could reach ``start``."""
        before, waiting = {start: None}, deque([start])
        while waiting:
            at = waiting.popleft()
            for to, back in capacity.get(at, {}).items():
                left = back if forwards else capacity[to][at]
                if left > 0 and to not in before:
                    before[to] = at
                    waiting.append(to)
        return before

    while "sink" in (before := path_from("source", True)):
        at = "sink"
        while (previous := before[at]) is not None:
            capacity[previous][at] -= 1
            capacity[at][previous] += 1
            at = previous
    reaching = path_from("sink", False)
    return tuple(n for n in nodes if (n, "out") in reaching and (n, "in") not in reaching and (n, "in") in capacity)


def computed_from(values: Iterable[Node], known: Iterable[Node]) -> list[Node]:
    """The nodes to evaluate for the values, in order, given ``known`` and the leaves."""
    known = set(known)
    values = list(values)
    return [n for n in in_order(values, stop=known.__contains__) if n not in known and n.op not in LEAVES]
