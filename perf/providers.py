"""The measured implementations of a layer: the operator, modules, and the loop over time, also with torch.compile."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from perf.harness import Values
from rnnkern.ops import recurrence
from rnnkern.reference import _noise as noise
from rnnkern.reference._recurrence import cell_of

Forward = Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]
"""Function of the input that returns h and the final state."""


class Layer(NamedTuple):
    """A cell's parameters in torch.nn's layout, and the lengths of its sequences."""

    cell: str
    batch: int
    batch_sizes: Tensor | None
    weights: dict[str, Tensor]  # weight_ih (G*H, I), weight_hh (G*H, H), bias_ih (G*H,), perhaps bias_hh (G*H,)
    params: tuple[Tensor, ...]

    @property
    def hidden(self) -> int:
        return self.weights["weight_ih"].shape[0] // cell_of(self.cell).gates

    @property
    def width(self) -> int:
        """Number of columns of h."""
        return self.params[0].shape[0] if self.cell == "lstm_projected" else self.hidden

    def state(self, x: Tensor) -> tuple[Tensor, ...]:
        widths = (self.width, *[self.hidden] * (cell_of(self.cell).states - 1))
        return tuple(x.new_zeros(self.batch, columns) for columns in widths)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Layer":
        weights = {name: change(w) for name, w in self.weights.items()}
        return self._replace(weights=weights, params=tuple(map(change, self.params)))


class Noise(NamedTuple):
    """Rates of zoneout (for every state) and dropout, and their seed."""

    zoneout: float
    dropout: float
    seed: Tensor

    def drawn(self, layer: Layer, x: Tensor, steps: int) -> tuple[list[tuple[Tensor, ...]], Tensor]:
        """Draws all masks in advance: for each step and state, which units keep their previous value; and the dropout
        mask."""
        state = layer.state(x)
        kept = [tuple(noise.hits(self.seed, self.zoneout, k, t, s) for k, s in enumerate(state)) for t in range(steps)]
        return kept, noise.dropout_mask(self.seed, self.dropout, state[0])


def operator(
    layer: Layer, x: Tensor, save_gates: bool | None = None, noise: Noise | None = None, keep: Tensor | None = None
):
    W, R, b_ih, b_hh = (layer.weights.get(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return recurrence(
        layer.cell, x, R, layer.state(x), bias=b_hh, params=layer.params, weight_ih=W, bias_ih=b_ih,
        batch_sizes=layer.batch_sizes, save_gates=save_gates, keep=keep,
        **({} if noise is None else noise._asdict()),
    )  # fmt: skip


def loop(
    layer: Layer, x: Tensor, drawn: tuple[list[tuple[Tensor, ...]], Tensor] | None = None, keep: Tensor | None = None
):
    """A carefully written loop over time: one input projection, ``unbind``, weights split once, and finished sequences
    dropped. ``drawn`` is the result of :meth:`Noise.drawn`, so that the loop only applies the masks. ``keep`` is (T,
    B)."""
    cell = cell_of(layer.cell)
    product = product_of(layer, None if drawn is None else drawn[1])
    u = F.linear(x, layer.weights["weight_ih"], layer.weights["bias_ih"])
    state, outputs, finished = layer.state(x), [], []
    for t, u_t in enumerate(u.unbind(0) if layer.batch_sizes is None else u.split(layer.batch_sizes.tolist())):
        n = u_t.shape[0]
        if n < state[0].shape[0]:
            finished.append([s[n:] for s in state])
            state = tuple(s[:n] for s in state)
        new = cell.step(u_t, product, state, *layer.params)
        if drawn is not None:
            new = tuple(torch.where(kept[:n], *pair) for kept, *pair in zip(drawn[0][t], state, new, strict=True))
        if keep is not None:
            new = tuple(torch.lerp(*pair, keep[t, :n, None].to(x.dtype)) for pair in zip(new, state, strict=True))
        state = new
        outputs.append(state[0])
    if finished:
        state = tuple(torch.cat([s, *reversed(rest)]) for s, *rest in zip(state, *finished, strict=True))
    return (torch.stack(outputs) if layer.batch_sizes is None else torch.cat(outputs)), state


def product_of(layer: Layer, mask: Tensor | None = None) -> Callable[..., Tensor]:
    """Returns a function that computes gates ``first`` to ``last - 1`` of ``R (mask h) + b_hh``. R is (G*H, H), or (K,
    G*D, D) for one batched product over heads."""
    R, b = layer.weights["weight_hh"], layer.weights.get("bias_hh")
    gates, width, cuts = cell_of(layer.cell).recurrent, R.shape[-1], {}

    def cut(first: int, last: int) -> tuple[Tensor, Tensor | None]:
        units = layer.hidden if R.dim() == 2 else width
        rows = slice(first * units, last * units)
        bias = None if b is None else b[first * layer.hidden : last * layer.hidden]
        return (R[rows] if R.dim() == 2 else R[:, rows].transpose(1, 2)), bias

    def product(h: Tensor, first: int = 0, last: int = gates) -> Tensor:
        if (first, last) not in cuts:
            cuts[first, last] = cut(first, last)
        weight, bias = cuts[first, last]
        if mask is not None:
            h = h * mask[: h.shape[0]]
        if R.dim() == 2:
            return F.linear(h, weight, bias)
        r = torch.bmm(h.unflatten(1, (-1, width)).transpose(0, 1), weight)  # (K, B, gates*D)
        r = r.unflatten(2, (-1, width)).permute(1, 2, 0, 3).flatten(1)
        return r if bias is None else r + bias

    return product


def module(layer: torch.nn.RNNBase, batch_sizes: Tensor | None, x: Tensor):
    if layer.training != torch.is_grad_enabled():
        layer.train(torch.is_grad_enabled())  # in training mode cuDNN would save activations
    if batch_sizes is None:
        h, final = layer(x)
    else:
        (h, *_), final = layer(PackedSequence(x, batch_sizes))
    return h, tuple(s.squeeze(0) for s in (final if isinstance(final, tuple) else (final,)))


class Provider(NamedTuple):
    """One implementation of a layer, and the tensors with respect to which it is differentiated."""

    forward: Forward
    leaves: dict[str, Tensor]

    def inference(self, x: Tensor) -> Values:
        with torch.no_grad():
            return named(*self.forward(x))

    def training(self, x: Tensor, grad_h: Tensor) -> Values:
        h, state = self.forward(x)
        gradients = torch.autograd.grad(h, [x, *self.leaves.values()], grad_h)
        names = (f"grad of {name}" for name in ("x", *self.leaves))
        return {**named(h, state), **dict(zip(names, gradients, strict=True))}


class Padded(NamedTuple):
    """torch.nn's layer over sequences padded to the longest. The gradient of h is zero at padded steps, so the
    gradients equal those of the packed layer. Final states are not returned."""

    layer: torch.nn.RNNBase
    mask: Tensor  # (T, B), False at padded steps
    x: Tensor  # (T, B, I)
    grad_h: Tensor  # (T, B, H)

    @classmethod
    def of(cls, layer: torch.nn.RNNBase, batch_sizes: Tensor, x: Tensor, grad_h: Tensor) -> "Padded":
        """Pads a packed input and gradient; for layers with one direction."""
        mask = torch.arange(int(batch_sizes[0])) < batch_sizes.unsqueeze(1)
        padded = (torch.zeros(*mask.shape, y.shape[1], dtype=y.dtype).masked_scatter_(mask.unsqueeze(2), y.detach())
                  for y in (x, grad_h))  # fmt: skip
        x, grad_h = padded
        return cls(layer, mask, x.requires_grad_(), grad_h)

    def inference(self) -> Values:
        with torch.no_grad():
            return {"h": self.layer(self.x)[0]}

    def training(self) -> Values:
        return {name: y for name, y in of_module(self.layer, None).training(self.x, self.grad_h).items()
                if "state" not in name}  # fmt: skip

    def packed(self, values: Values) -> Values:
        """The values in the layout of the packed layer."""
        return {name: y[self.mask] if name in ("h", "grad of x") else y for name, y in values.items()}


def named(h: Tensor, state: Sequence[Tensor]) -> Values:
    return {"h": h, **{f"final state[{k}]": s for k, s in enumerate(state)}}


def of_function(function: Callable, layer: Layer) -> Provider:
    params = {f"params[{k}]": p for k, p in enumerate(layer.params)}
    return Provider(functools.partial(function, layer), layer.weights | params)


def of_module(layer: torch.nn.RNNBase, batch_sizes: Tensor | None) -> Provider:
    return Provider(functools.partial(module, layer, batch_sizes), weights_of(layer))


def weights_of(layer: torch.nn.RNNBase) -> dict[str, Tensor]:
    return {name.removesuffix("_l0"): p for name, p in layer.named_parameters()}


def compiled(provider: Provider, backend: str = "inductor") -> Provider:
    return provider._replace(forward=compiled_function(provider.forward, backend))


def compiled_function(function: Callable, backend: str = "inductor") -> Callable:
    torch.compiler.reset()  # otherwise the limit of recompilations is reached
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
