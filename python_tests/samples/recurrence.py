"""Samples of the recurrence."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from python_tests.samples.agreement import agree
from rnnkern import cells, reference
from rnnkern.ops._recurrence.facts import KERNEL_CELLS
from rnnkern.reference import CELLS
from rnnkern.reference._recurrence import cell_of


class Sample(NamedTuple):
    """One call ``rnnkern.ops.recurrence(*args, **kwargs)``."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def leaves(self) -> list[Tensor]:
        """The tensors that gradients flow to."""
        _, u, R, state = self.args
        rest = [self.kwargs.get("bias"), *self.kwargs.get("params", ())]
        rest += [self.kwargs.get("weight_ih"), self.kwargs.get("bias_ih")]
        return [x for x in (u, R, *state, *rest) if x is not None]

    def noise(self) -> tuple[Any, ...]:
        """(zoneout, dropout, seed, keep), as the operator takes them."""
        return self.kwargs.get("zoneout"), self.kwargs.get("dropout", 0.0), *map(self.kwargs.get, ("seed", "keep"))

    def to(self, dtype: torch.dtype, requires_grad: bool | None = None) -> "Sample":
        """The same values in a dtype, as new leaves that require gradients (None: where they did before)."""

        def cast(x):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                return x
            wanted = x.requires_grad if requires_grad is None else requires_grad
            return x.detach().to(dtype, copy=True).requires_grad_(wanted)

        sample = tree_map(cast, self)
        for constant in ("grad_scale", "keep"):
            if sample.kwargs.get(constant) is not None:
                sample.kwargs[constant].requires_grad_(False)
        return sample


RECURRENCE_PARAMS = {
    "modrelu": lambda hidden: (torch.randn(hidden) * 0.1,),
    "complex_modrelu": lambda hidden: (torch.randn(hidden) * 0.1,),
    "goru": lambda hidden: (torch.randn(hidden) * 0.1,),
    "euler": lambda hidden: (torch.rand(hidden) * 0.5,),
    "lstm_projected": lambda hidden: (torch.randn(max(hidden // 2, 1), hidden) / math.sqrt(hidden),),
}
"""Functions that draw the cells' own tensors."""
NORMALISED = (cells.lstm_layer_norm.name, cells.gru_layer_norm.name)
"""Cells with norms."""
EVERY_CELL = (*KERNEL_CELLS, *NORMALISED)
"""The cells that are compiled with the package, and those with norms, which take a way of their own through kernels."""

_EVERYTHING = {"packed": True, "reset": True, "reverse": True, "inputs": 3}

RECURRENCE_OPTIONS = {
    "plain": {},
    "packed": {"packed": True},
    "reset": {"reset": True},
    "reverse": {"reverse": True},
    "heads": {"heads": 2},
    "packed-reset-reverse": {"packed": True, "reset": True, "reverse": True},
    "grad_scale": {"grad_scale": 1},
    "packed-grad_scale-heads": {"packed": True, "grad_scale": 2, "heads": 2},
    "no bias": {"bias": False},
    "weight_ih": {"inputs": 5},
    "packed-reset-reverse-heads-weight_ih": {**_EVERYTHING, "heads": 2},
    "no bias-weight_ih": {"inputs": 3, "bias": False},
    "zoneout": {"zoneout": 0.3},
    "zoneout-mean": {"zoneout": 0.3, "drawn": False},
    "dropout": {"dropout": 0.4},
    "keep": {"keep": 1},
    "packed-reset-reverse-weight_ih-dropout-keep": {**_EVERYTHING, "dropout": 0.3, "keep": 2},
    "packed-reset-reverse-heads-weight_ih-zoneout-dropout": {
        **_EVERYTHING,
        "heads": 2,
        "zoneout": 0.2,
        "dropout": 0.3,
    },
}


def recurrence_sample(
    cell: str,
    steps: int = 4,
    batch: int = 3,
    hidden: int = 4,
    *,
    heads: int = 1,
    bias: bool = True,
    packed: bool = False,
    reset: bool = False,
    reverse: bool = False,
    grad_scale: int = 0,
    inputs: int = 0,
    zoneout: float = 0.0,
    dropout: float = 0.0,
    keep: int = 0,
    drawn: bool = True,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> Sample:
    """Random arguments for :func:`rnnkern.ops.recurrence`, drawn from torch's generator.

    Args:
        cell, steps, batch, hidden, heads: cell, also one made by rnnkern.cell, T, B, H and K; R is scaled so that the
            state neither vanishes nor explodes.
        bias, packed, reset, reverse: options of the call. Packed lengths decrease evenly from ``steps`` to 1.
        grad_scale: 0 for none, 1 for (T,), 2 for (T, B).
        inputs: I, for a call with ``weight_ih`` and, if ``bias`` is set, ``bias_ih``; 0 for a call with ``u``.
        zoneout, dropout: their rates; c and later states have half the zoneout rate of h.
        keep: 0 for none, 1 for (T,), 2 for (T, B); about a sixth of its elements are 0, and of 1 as many.
        drawn: whether there is a seed.
    """
    _, gates, states, names, _, recurrent, of_params, _ = cell_of(cell)
    if cell in RECURRENCE_PARAMS:
        params = RECURRENCE_PARAMS[cell](hidden)
    else:
        gain = lambda name: name.startswith("weight_ln")  # noqa: E731
        params = tuple(
            0.5 + torch.rand(n * hidden) if gain(name) else 0.5 * torch.randn(n * hidden)
            for name, n in zip(names, of_params or [1] * len(names), strict=True)
        )
    width = params[0].shape[0] if cell == "lstm_projected" else hidden
    d = hidden // heads
    R = torch.randn(recurrent * hidden, width) if heads == 1 else torch.randn(heads, recurrent * d, d)
    batch_sizes, rows = None, (steps, batch)
    if packed:
        lengths = torch.linspace(steps, min(steps, 1), batch).round().long()
        batch_sizes = (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)
        rows = (int(batch_sizes.sum()),)
    tensors = {
        "u": torch.randn(*rows, inputs or gates * hidden),
        "R": 0.8 * R / math.sqrt(d),
        "state": (torch.randn(batch, width), torch.randn(batch, hidden))[:states],
        "bias": 0.5 * torch.randn(recurrent * hidden) if bias else None,
        "params": params,
    }
    for _ in range(2, states):  # positive, because sLSTM divides by one of them
        tensors["state"] += (0.5 + torch.rand(batch, hidden),)
    if inputs:
        tensors["weight_ih"] = torch.randn(gates * hidden, inputs) / math.sqrt(inputs)
        tensors["bias_ih"] = 0.5 * torch.randn(gates * hidden) if bias else None

    tensors = tree_map_only(Tensor, lambda x: x.to(dtype).requires_grad_(requires_grad), tensors)
    kwargs = {"bias": tensors["bias"], "params": tensors["params"], "batch_sizes": batch_sizes, "reverse": reverse}
    kwargs |= {name: tensors[name] for name in ("weight_ih", "bias_ih") if name in tensors}
    if reset:
        kwargs["reset"] = torch.rand(steps, batch) < 0.3
    if grad_scale:
        kwargs["grad_scale"] = torch.rand((steps, batch)[:grad_scale]).to(dtype)
    if zoneout:
        kwargs["zoneout"] = (zoneout, *[zoneout / 2] * (states - 1))
    if dropout:
        kwargs["dropout"] = dropout
    if keep:
        kwargs["keep"] = (1.5 * torch.rand((steps, batch)[:keep]) - 0.25).clamp(0, 1).to(dtype)
    if (zoneout or dropout) and drawn:
        kwargs["seed"] = torch.randint(-(2**63), 2**63 - 1, ())
    return Sample(cell, (cell, tensors["u"], tensors["R"], tensors["state"]), kwargs)


DENSE = {"lstm_projected", *NORMALISED}
"""Cells that do not support heads: h is projected, or values are normalized."""


def takes(cell: str, options: Collection[str]) -> bool:
    """Whether a cell supports the options."""
    return not ("heads" in options and cell in DENSE) and not ("keep" in options and cell_of(cell).normalised)


def recurrence_samples(cells: Sequence[str] = tuple(CELLS), **sizes: Any) -> Iterator[Sample]:
    """A sample for every cell and every option in ``RECURRENCE_OPTIONS``; ``sizes`` as in :func:`recurrence_sample`."""
    for cell in cells:
        for name, options in RECURRENCE_OPTIONS.items():
            if takes(cell, options):
                yield recurrence_sample(cell, **{**sizes, **options})._replace(name=f"{cell}-{name}")


def outputs_and_gradients(op: Any, sample: Sample, seed: int = 0) -> dict[str, Tensor]:
    """Runs a call and its backward pass with random gradients of h and the final state; returns all results by name."""
    h, state = op(*sample.args, **sample.kwargs)
    results = {"h": h, **{f"final state[{k}]": s for k, s in enumerate(state)}}
    generator = torch.Generator().manual_seed(seed)
    draw = lambda y: torch.randn(y.shape, generator=generator, dtype=torch.promote_types(y.dtype, torch.float64))  # noqa: E731
    upstream = [draw(y).to(y) for y in results.values()]
    pairs = [(y, g) for y, g in zip(results.values(), upstream, strict=True) if y.requires_grad]
    leaves = sample.leaves()
    outputs, upstream = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(outputs, leaves, upstream, materialize_grads=True)
    names = ["u", "R", *(f"state[{k}]" for k in range(len(sample.args[3])))]
    names += ["bias"] if sample.kwargs.get("bias") is not None else []
    names += [f"params[{k}]" for k in range(len(sample.kwargs.get("params", ())))]
    names += [name for name in ("weight_ih", "bias_ih") if sample.kwargs.get(name) is not None]
    return {**results, **{f"grad of {name}": g for name, g in zip(names, gradients, strict=True)}}


def check_recurrence(op: Any, samples: Iterable[Sample], name: str = "") -> None:
    """Checks results and gradients of a recurrence, as :func:`agree` does."""
    agree(op, reference.recurrence, outputs_and_gradients, samples, name)
