"""Random calls of relevancy_recurrence, and all their results and gradients by name."""

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.samples import agree
from rnnkern import reference
from rnnkern.ops import relevancy_recurrence
from rnnkern.reference import CELLS, RelevancyState

PASSED_ON = ("s", "c", "buffer", "relevant")


class Call(NamedTuple):
    """``relevancy_recurrence(*args, **kwargs)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def leaves(self) -> dict[str, Tensor]:
        _, u, R, state, attention = self.args
        found = {"u": u, "R": R, **dict(zip(("W_a", "U_a", "v"), attention, strict=True))}
        parts = state._asdict() if isinstance(state, RelevancyState) else dict(zip("sc", state, strict=False))
        found |= {name: x for name, x in parts.items() if name in PASSED_ON and x is not None}
        found |= {f"params[{k}]": x for k, x in enumerate(self.kwargs["params"])}
        scores = self.kwargs["relevance"]
        return found | ({"relevance": scores} if isinstance(scores, Tensor) and scores.requires_grad else {})

    def to(self, dtype: torch.dtype, requires_grad: bool = True) -> "Call":
        """The same values in a dtype, as new leaves."""

        def cast(x):
            if isinstance(x, RelevancyState):
                parts = {name: cast(y) for name, y in x._asdict().items()}
                for name in ("buffer_scores", "scores"):
                    parts[name] = parts[name].detach()
                return RelevancyState(**parts)
            if isinstance(x, (tuple, list)):
                return tuple(map(cast, x))
            if not isinstance(x, Tensor) or not x.is_floating_point():
                return x
            return x.detach().to(dtype, copy=True).requires_grad_(requires_grad)

        kwargs = {key: cast(value) for key, value in self.kwargs.items()}
        if isinstance(kwargs.get("relevance"), Tensor):
            kwargs["relevance"].requires_grad_(requires_grad and self.kwargs["relevance"].requires_grad)
        return Call(cast(self.args), kwargs)


def call_of(
    cell: str = "tanh",
    steps: int = 7,
    batch: int = 3,
    hidden: int = 4,
    *,
    buffer_size: int = 3,
    relevant_size: int = 2,
    packed: bool = False,
    reset: float = 0.0,
    carried: int = 0,
    combine: str = "half",
    alignment: str = "additive",
    relevance: str = "attention",
    heads: int = 1,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
) -> Call:
    """A call with values drawn from torch's generator.

    Packed lengths decrease from ``steps`` to 0. ``reset`` is the probability of a reset, ``carried`` the number of
    steps of an earlier call whose state is passed in. ``relevance`` may be "given" for a tensor of scores, or "learned"
    for one that receives a gradient; ``scale`` multiplies v. ``hidden`` is rounded up to a multiple of ``heads``.
    """
    gates, states, params = CELLS[cell].gates, CELLS[cell].states, CELLS[cell].params

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64)

    hidden = -(-hidden // heads) * heads
    size = 2 * hidden if combine == "concat" else hidden
    R, W_a = (draw(rows, size) / size**0.5 for rows in (gates * hidden, hidden))
    U_a, v = draw(hidden, hidden) / hidden**0.5, draw(hidden) * scale / hidden**0.5
    attention = (W_a, U_a, v if heads == 1 else v.view(heads, -1))
    state: Any = (draw(batch, size), *(draw(batch, hidden) for _ in range(states - 1)))
    options = {
        "buffer_size": buffer_size, "relevant_size": relevant_size, "combine": combine, "alignment": alignment,
        "params": tuple(0.3 * draw(hidden) for _ in params),
    }  # fmt: skip
    if carried:
        _, state = reference.relevancy_recurrence(
            cell, draw(carried, batch, gates * hidden), R, state, attention, **options,
            reset=torch.rand(carried, batch) < reset,
        )  # fmt: skip
    batch_sizes, rows = None, (steps, batch)
    if packed:
        lengths = torch.linspace(steps, 0, batch).round().long()
        batch_sizes = (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)
        rows = (int(batch_sizes.sum()),)
    options |= {"batch_sizes": batch_sizes, "reset": torch.rand(steps, batch) < reset if reset else None}
    options["relevance"] = relevance
    if relevance in ("given", "learned"):
        options["relevance"] = torch.rand(steps, batch, dtype=torch.float64, requires_grad=relevance == "learned")
    return Call((cell, draw(*rows, gates * hidden), R, state, attention), options).to(dtype)


def random_call(draw: random.Random) -> Call:
    """A call with a random configuration that the operator supports."""
    steps = draw.choice([0, 1, 2, 5, 8, 12])
    heads = draw.choice([1, 1, 2, 3])
    return call_of(
        draw.choice(["tanh", "relu", "modrelu", "lstm"]), steps, draw.choice([0, 1, 2, 3]),
        heads * draw.choice([1, 2, 3, 8, 9]), buffer_size=draw.choice([1, 2, 3, 5, max(steps, 1), steps + 4]),
        relevant_size=draw.choice([0, 0, 1, 2, 4]), packed=draw.random() < 0.3,
        reset=draw.choice([0.0, 0.0, 0.2, 1.0]), carried=draw.choice([0, 0, 1, 4, 9]),
        combine=draw.choice(["half", "sum", "concat"]), alignment=draw.choice(["additive", "dot"]),
        relevance=draw.choice(["attention", "attention", "fifo", "given", "learned"]), heads=heads,
    )  # fmt: skip


def everything(op: Any, call: Call, gradients: bool = True, seed: int = 0, parts: int = 0) -> dict[str, Tensor]:
    """Results, and the gradients of all leaves for random gradients of h or s and of the new state. With ``parts``
    these random gradients are multiples of 1 / ``parts``, which every dtype represents exactly."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for output in ("h", "s"):
        out, state, memory = op(*call.args, **call.kwargs, output=output, return_memory=True)
        results = {output: out} | {f"last {name}": x for name, x in state._asdict().items() if x is not None}
        if gradients:
            differentiable = [results[name] for name in (output, *(f"last {p}" for p in PASSED_ON)) if name in results]
            upstream = [torch.randn(y.shape, generator=draw, dtype=torch.float64) for y in differentiable]
            upstream = [(g * parts).round() / parts if parts else g for g in upstream]
            upstream = [g.to(y) for g, y in zip(upstream, differentiable, strict=True)]
            pairs = [(y, g) for y, g in zip(differentiable, upstream, strict=True) if y.requires_grad]
            leaves = call.leaves()
            outputs, upstream = zip(*pairs, strict=True)
            grads = torch.autograd.grad(outputs, list(leaves.values()), upstream, materialize_grads=True)
            found |= {f"{output}: grad of {name}": g for name, g in zip(leaves, grads, strict=True)}
        found |= results | {"weights": memory.weights, "ids": memory.ids}
    return {name: x.detach() for name, x in found.items()}


def same_selection(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether both selected the same events in the same slots."""
    return all(torch.equal(a[name], b[name]) for name in ("ids", "last ids", "last buffer_ids", "last time"))


def is_the_references(call: Call, gradients: bool = True) -> dict[str, Tensor]:
    """Compares the kernel's selection with the reference's, then all values by the closeness rule; returns them."""
    found, truth = (everything(op, call, gradients) for op in (relevancy_recurrence, reference.relevancy_recurrence))
    assert same_selection(found, truth), "other events were selected"

    def floats(op, call):
        return {name: x for name, x in everything(op, call, gradients).items() if x.is_floating_point()}

    # Gradients that cancel, as those of the scores of a single event, have the rounding errors of the others.
    scale = max(x.abs().max().item() for x in truth.values() if x.is_floating_point() and x.numel())
    agree(relevancy_recurrence, reference.relevancy_recurrence, floats, [call], scale=scale)
    return found


def with_leaves(call, leaves):
    """The call with other leaves."""
    cell, _, _, state, _ = call.args
    if isinstance(state, RelevancyState):
        state = state._replace(**{name: leaves[name] for name in PASSED_ON if name in leaves})
    else:
        state = tuple(leaves[name] for name in "sc" if name in leaves)
    params = tuple(x for name, x in leaves.items() if name.startswith("params"))
    args = cell, leaves["u"], leaves["R"], state, tuple(leaves[name] for name in ("W_a", "U_a", "v"))
    return call._replace(args=args, kwargs=call.kwargs | {"params": params})
