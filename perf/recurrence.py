"""The fused recurrence against torch.nn and the Python loop over time: N = I = H, input projection on both sides.

``python -m perf.recurrence --help``. Cells that torch.nn has are measured module against module; all others the
operator against the loop with everything hoisted out of it that can be. Floor: the products that no implementation
avoids, by ``torch.mm`` into memory that is there.
"""

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

import rnnkern.nn
from perf import harness, record
from perf.harness import OURS, Case, Effort, NoKernel, Problem, Values
from rnnkern import reference
from rnnkern.ops import explain, recurrence
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import RECURRENCE_PARAMS

CELLS = tuple(KERNEL_CELLS)
"""Every cell that has a kernel has its case."""

MODULES = {
    "tanh": (torch.nn.RNN, rnnkern.nn.RNN, {"nonlinearity": "tanh"}),
    "relu": (torch.nn.RNN, rnnkern.nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (torch.nn.LSTM, rnnkern.nn.LSTM, {}),
    "gru": (torch.nn.GRU, rnnkern.nn.GRU, {}),
}
"""The cells that torch.nn has too."""

SHAPES = ((200, 100, 512), (220, 128, 128), (256, 32, 256), (512, 16, 128), (1000, 1, 128), (50, 8, 64))
QUICK_SHAPES = ((8, 4, 16),)
"""(T, B, N)."""


Forward = Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]
"""From the input to h and the final state."""


class Layer(NamedTuple):
    """A cell's parameters as torch.nn has them, and the sequences that it runs over."""

    cell: str
    batch: int
    batch_sizes: Tensor | None
    weights: dict[str, Tensor]  # weight_ih (G*H, I), weight_hh (G*H, H), bias_ih (G*H,), perhaps bias_hh (G*H,)
    params: tuple[Tensor, ...]

    @property
    def hidden(self) -> int:
        return self.weights["weight_ih"].shape[0] // reference.CELLS[self.cell].gates

    def state(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.new_zeros(self.batch, self.hidden) for _ in range(reference.CELLS[self.cell].states))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Layer":
        weights = {name: change(w) for name, w in self.weights.items()}
        return self._replace(weights=weights, params=tuple(map(change, self.params)))


def operator(layer: Layer, x: Tensor):
    W, R, b_ih, b_hh = (layer.weights.get(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return recurrence(
        layer.cell, F.linear(x, W, b_ih), R, layer.state(x), bias=b_hh, params=layer.params,
        batch_sizes=layer.batch_sizes,
    )  # fmt: skip


def loop(layer: Layer, x: Tensor):
    """The loop as one writes it who cares: one input projection, ``unbind``, weights cut once, finished rows let go."""
    cell = reference.CELLS[layer.cell]
    product = product_of(layer)
    u = F.linear(x, layer.weights["weight_ih"], layer.weights["bias_ih"])
    state, outputs, finished = layer.state(x), [], []
    for u_t in u.unbind(0) if layer.batch_sizes is None else u.split(layer.batch_sizes.tolist()):
        n = u_t.shape[0]
        if n < state[0].shape[0]:
            finished.append([s[n:] for s in state])
            state = tuple(s[:n] for s in state)
        state = cell.step(u_t, product, state, *layer.params)
        outputs.append(state[0])
    if finished:
        state = tuple(torch.cat([s, *reversed(rest)]) for s, *rest in zip(state, *finished, strict=True))
    return (torch.stack(outputs) if layer.batch_sizes is None else torch.cat(outputs)), state


def product_of(layer: Layer) -> Callable[..., Tensor]:
    """Gates first..last-1 of ``R h + b_hh``, R (G*H, H) or, as one product over heads, (K, G*D, D)."""
    R, b = layer.weights["weight_hh"], layer.weights.get("bias_hh")
    gates, width, cuts = reference.CELLS[layer.cell].gates, R.shape[-1], {}

    def cut(first: int, last: int) -> tuple[Tensor, Tensor | None]:
        rows = slice(first * width, last * width)
        bias = None if b is None else b[first * layer.hidden : last * layer.hidden]
        return (R[rows] if R.dim() == 2 else R[:, rows].transpose(1, 2)), bias

    def product(h: Tensor, first: int = 0, last: int = gates) -> Tensor:
        if (first, last) not in cuts:
            cuts[first, last] = cut(first, last)
        weight, bias = cuts[first, last]
        if R.dim() == 2:
            return F.linear(h, weight, bias)
        r = torch.bmm(h.unflatten(1, (-1, width)).transpose(0, 1), weight)  # (K, B, gates*D)
        r = r.unflatten(2, (-1, width)).permute(1, 2, 0, 3).flatten(1)
        return r if bias is None else r + bias

    return product


def module(layer: torch.nn.RNNBase, batch_sizes: Tensor | None, x: Tensor):
    layer.train(torch.is_grad_enabled())  # else cuDNN keeps for a backward that never comes
    if batch_sizes is None:
        h, final = layer(x)
    else:
        (h, *_), final = layer(PackedSequence(x, batch_sizes))
    return h, tuple(s.squeeze(0) for s in (final if isinstance(final, tuple) else (final,)))


class Provider(NamedTuple):
    """One implementation of a layer, and what it differentiates by."""

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


def named(h: Tensor, state: Sequence[Tensor]) -> Values:
    return {"h": h, **{f"final state[{k}]": s for k, s in enumerate(state)}}


def of_function(function: Callable, layer: Layer) -> Provider:
    params = {f"params[{k}]": p for k, p in enumerate(layer.params)}
    return Provider(functools.partial(function, layer), layer.weights | params)


def of_module(layer: torch.nn.RNNBase, batch_sizes: Tensor | None) -> Provider:
    return Provider(functools.partial(module, layer, batch_sizes), weights_of(layer))


def weights_of(layer: torch.nn.RNNBase) -> dict[str, Tensor]:
    return {name.removesuffix("_l0"): p for name, p in layer.named_parameters()}


def build(cell: str, steps: int, batch: int, size: int, dtype: torch.dtype, packed: bool, with_loop: bool, seed: int):
    """All providers of one layer on the same weights and inputs."""
    torch.manual_seed(seed)
    batch_sizes = draw_batch_sizes(steps, batch) if packed else None
    rows = (steps, batch) if batch_sizes is None else (int(batch_sizes.sum()),)
    x = torch.randn(*rows, size, dtype=dtype, requires_grad=True)
    grad_h = torch.randn(*rows, size, dtype=dtype)

    if cell in MODULES:
        theirs, ours, options = MODULES[cell]
        peer, mine = (make(size, size, dtype=dtype, **options) for make in (theirs, ours))
        mine.load_state_dict(peer.state_dict())
        layer = Layer(cell, batch, batch_sizes, weights_of(peer), ())
        providers = {OURS: of_module(mine, batch_sizes), "torch.nn": of_module(peer, batch_sizes)}
    else:
        layer = draw_layer(cell, batch, batch_sizes, size, dtype)
        providers = {OURS: of_function(operator, layer)}
    refuse_reference(layer, x)
    naive = of_function(loop, layer)
    if with_loop or cell not in MODULES:
        providers["loop"] = naive

    def truth() -> Values:
        double = layer.map(lambda w: w.detach().double().requires_grad_())
        return of_function(loop, double).training(x.detach().double().requires_grad_(), grad_h.double())

    return Problem(
        calls={
            "forward": {name: functools.partial(p.inference, x) for name, p in providers.items()},
            "forward+backward": {name: functools.partial(p.training, x, grad_h) for name, p in providers.items()},
        },
        floors=floors(x.detach(), layer.map(Tensor.detach), [batch] * steps if not packed else batch_sizes.tolist()),
        naive=functools.partial(naive.training, x, grad_h),
        truth=truth,
    )


def refuse_reference(layer: Layer, x: Tensor) -> None:
    u = x.new_empty(1).expand(*x.shape[:-1], layer.weights["weight_ih"].shape[0])
    implementation, reason = explain(
        recurrence, layer.cell, u, layer.weights["weight_hh"], layer.state(x), params=layer.params,
        batch_sizes=layer.batch_sizes,
    )  # fmt: skip
    if implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {reason}")


def draw_batch_sizes(steps: int, batch: int) -> Tensor:
    """Lengths uniform in T/4..T, the longest of them T."""
    lengths = torch.randint(max(steps // 4, 1), steps + 1, (batch,))
    lengths[0] = steps
    return (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)


def draw_layer(cell: str, batch: int, batch_sizes: Tensor | None, size: int, dtype: torch.dtype) -> Layer:
    """As torch.nn initialises. One bias holds both where the product's own does not meet a gate: a spared addition."""
    rows, bound = reference.CELLS[cell].gates * size, size**-0.5
    shapes = {"weight_ih": (rows, size), "weight_hh": (rows, size), "bias_ih": (rows,)}
    weights = {name: torch.empty(shape).uniform_(-bound, bound) for name, shape in shapes.items()}
    params = RECURRENCE_PARAMS.get(cell, lambda hidden: ())(size)
    return Layer(cell, batch, batch_sizes, weights, params).map(lambda w: w.to(dtype).requires_grad_())


def floors(x: Tensor, layer: Layer, sizes: Sequence[int]) -> dict[str, Callable[[], None]]:
    """The products alone: T per-step ones, and those over all steps at once."""
    W, R = layer.weights["weight_ih"], layer.weights["weight_hh"]
    x = x.flatten(0, -2)
    u, h, dx = x.new_empty(x.shape[0], W.shape[0]), torch.randn_like(x), torch.empty_like(x)
    du, dW, dR = torch.randn_like(u), torch.empty_like(W), torch.empty_like(R)
    step, dstep = u.new_empty(sizes[0], u.shape[1]), u.new_empty(sizes[0], R.shape[1])
    ahead = [(h_t, step[:n]) for h_t, n in zip(h.split(sizes), sizes, strict=True)]
    back = [(du_t, dstep[:n]) for du_t, n in zip(du.split(sizes), sizes, strict=True)]

    def forward() -> None:
        torch.mm(x, W.t(), out=u)
        transposed = R.t()
        for h_t, r_t in ahead:
            torch.mm(h_t, transposed, out=r_t)

    def both() -> None:
        forward()
        for du_t, dh_t in back:
            torch.mm(du_t, R, out=dh_t)
        torch.mm(du.t(), x, out=dW)
        torch.mm(du.t(), h, out=dR)
        torch.mm(du, W, out=dx)

    return {"forward": forward, "forward+backward": both}


def cases(
    cells: Sequence[str], shapes: Sequence[tuple[int, int, int]], dtype: str, packed: bool, with_loop: bool
) -> list[Case]:
    case = "packed" if packed else "dense"
    return [
        Case(
            {"op": "recurrence", "case": case, "cell": cell, "shape": "x".join(map(str, shape)), "dtype": dtype},
            functools.partial(build, cell, *shape, getattr(torch, dtype), packed, with_loop),
        )
        for cell in cells
        for shape in shapes
    ]


def shape(text: str) -> tuple[int, ...]:
    sizes = tuple(map(int, text.split("x")))
    if len(sizes) != 3:
        raise ValueError(text)
    return sizes


def main(argv: Sequence[str], results: Path = record.RESULTS) -> None:
    parser = harness.arguments("Times the recurrence of every cell, forward and forward+backward.")
    parser.add_argument(
        "--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL", help=f"of {', '.join(CELLS)}"
    )
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="TxBxN", help="instead of the usual six")
    parser.add_argument("--packed", action="store_true", help="lengths uniform in T/4..T, torch.nn on a PackedSequence")
    parser.add_argument("--loop", action="store_true", help="the loop too where torch.nn has the cell")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    device = torch.device("cpu")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    path = None if chosen.quick else record.folder(device, results) / "recurrence.csv"
    effort = Effort(0.1, 3, 5) if chosen.quick else Effort(chosen.seconds)
    command = shlex.join(["python", "-m", "perf.recurrence", *argv])
    todo = cases(chosen.cells, shapes, chosen.dtype, chosen.packed, chosen.loop)
    try:
        harness.run(todo, path, device, command, effort)
    finally:
        if path is not None and path.exists():
            from perf import picture  # here: what only measures does without matplotlib

            picture.draw(path, "packed" if chosen.packed else "dense", chosen.dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
