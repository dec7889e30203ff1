"""Sample calls of sab_recurrence, and all their results and gradients."""

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnkern import reference


class Call(NamedTuple):
    """``function(u, R, state, attention_weights, **options)`` with tensors by name."""

    leaves: dict[str, Tensor]  # u, R, h0, c0, w; optionally W and bias
    options: dict[str, Any]

    def __call__(self, function, leaves=None, state=None, **options):
        x = self.leaves | (leaves or {})
        attention = (x["W"], x["w"]) if "W" in x else (x["w"],)
        options = self.options | options
        return function(x["u"], x["R"], state or (x["h0"], x["c0"]), attention, bias=x.get("bias"), **options)

    def to(self, dtype):
        return self._replace(leaves={name: x.detach().to(dtype).requires_grad_() for name, x in self.leaves.items()})


def make(steps=12, batch=3, hidden=5, width=None, bias=True, packed=False, resets=False, scale=1.0, **options):
    """A call; ``width`` is that of the MLP, None for separable scores."""
    sizes = sorted((random.randint(0, batch) for _ in range(steps)), reverse=True) if packed else [batch] * steps
    shape = (sum(sizes),) if packed else (steps, batch)
    shapes = {"u": (*shape, 4 * hidden), "R": (4 * hidden, hidden), "h0": (batch, hidden), "c0": (batch, hidden)}
    if width is not None:
        shapes["W"] = (width, 2 * hidden)
    shapes["w"] = (2 * hidden if width is None else width,)
    if bias:
        shapes["bias"] = (4 * hidden,)
    leaves = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    leaves["R"] *= scale / hidden**0.5
    leaves["w"] *= scale / hidden**0.5
    options = {"top_k": 3, "attend_every": 1, "truncation": 5} | options
    options["alignment"] = "separable" if width is None else "mlp"
    options["batch_sizes"] = torch.tensor(sizes, dtype=torch.int64) if packed else None
    options["reset"] = torch.rand(steps, batch) < 0.15 if resets else None
    return Call(leaves, options)


def well_conditioned(call, least):
    """Whether no sum that normalizes weights is smaller: of one not far above 1e-7 the weights are rounding errors."""
    k, weights = call.options["top_k"], call(reference.sab_recurrence, return_memory=True)[2].weights
    normalized = call(reference.sab_recurrence, top_k=k + 1, return_memory=True)[2].slots[..., -1] >= 0
    return k == 1 or bool((weights[normalized].sum(-1) > 1 - 1e-7 / least).all())


def outcomes(function, call):
    """Values and gradients of all results by name; and the time, what each step attended to, and the steps."""
    out, state, memory = call(function, return_memory=True)
    values = {"out": out, "h": state.h, "c": state.c, "memory": state.memory}
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in values.values()]
    loss = sum((y * g).sum() for y, g in zip(values.values(), upstream, strict=True))
    grads = torch.autograd.grad(loss, list(call.leaves.values()), allow_unused=True)
    for (name, x), g in zip(call.leaves.items(), grads, strict=True):
        values[f"d {name}"] = torch.zeros_like(x) if g is None else g
    values["weights"] = memory.weights.detach()
    return values, (state.time, memory.slots, state.steps)
