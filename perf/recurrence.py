"""Measures the fused recurrence against torch.nn and the Python loop over time; N = I = H, and all include the input
projection.

``python -m perf.recurrence --help``. For cells that torch.nn has, modules are compared. For all others the operator is
compared with a loop that computes everything outside of it that does not depend on the previous step. Stacked layers
and both directions are compared as modules too. Packed input is compared with torch.nn on a ``PackedSequence`` and with
torch.nn's layer over padded sequences, which gives the same gradients.
"""

import copy
import functools
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import rnnkern.nn
from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from perf.providers import Layer, Noise, Padded, Provider, compiled, loop, of_function, of_module, operator, weights_of
from python_tests.samples import RECURRENCE_PARAMS
from rnnkern import reference
from rnnkern._gemm import gemm_reference
from rnnkern.ops import explain, recurrence
from rnnkern.ops._recurrence.recurrence import KERNEL_CELLS

RECOMPUTED, OPERATOR = f"{OURS}, gates recomputed", f"{OURS}, operator"
PADDED = "torch.nn, padded"
COMPILED = "compiled loop"
LAST_STEP = "loss on the last step"
COMPILED_STEPS = 50
"""Largest T for torch.compile: it unrolls the loop and takes minutes for more steps."""

CELLS = tuple(KERNEL_CELLS)
"""Every cell with a kernel has a case."""

MODULES = {
    "tanh": (torch.nn.RNN, rnnkern.nn.RNN, {"nonlinearity": "tanh"}),
    "relu": (torch.nn.RNN, rnnkern.nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (torch.nn.LSTM, rnnkern.nn.LSTM, {}),
    "gru": (torch.nn.GRU, rnnkern.nn.GRU, {}),
}
"""The cells that torch.nn has."""

KINKED = {"relu", "hardtanh", "modrelu", "complex_modrelu", "goru"}
"""Cells in which a rounding error can move a unit to the other side of a kink."""

SHAPES = ((200, 100, 512), (220, 128, 128), (256, 32, 256), (512, 16, 128), (1000, 1, 128), (50, 8, 64))
QUICK_SHAPES = ((8, 4, 16),)
"""(T, B, N)."""


class Options(NamedTuple):
    """Options for all cases of a run."""

    packed: bool
    with_loop: bool  # also measure the loop for cells of torch.nn
    with_compiled: bool = False  # torch.compile of the loop, up to COMPILED_STEPS
    with_operator: bool = False  # also measure the operator if a module is measured
    with_recomputed: bool = True  # also measure save_gates=False
    inference: bool = False  # forward only
    layers: int = 1
    directions: int = 1
    zoneout: float = 0.0  # rate for every state
    dropout: float = 0.0
    keep: bool = False  # weights of the old state, for each step and sequence
    last_step: bool = False  # the loss depends on the last step only

    @property
    def noisy(self) -> bool:
        return self.zoneout + self.dropout > 0

    @property
    def over_loop(self) -> bool:
        """Whether the loop is the only peer."""
        return self.noisy or self.keep

    @property
    def stacked(self) -> bool:
        return self.layers * self.directions > 1

    @property
    def label(self) -> str:
        words = [
            "packed" if self.packed else "inference" if self.inference else LAST_STEP if self.last_step else "dense"
        ]
        words += [f"{n} {what}" for n, what in ((self.layers, "layers"), (self.directions, "directions")) if n > 1]
        words += [f"{what} {rate:g}" for what, rate in (("zoneout", self.zoneout), ("dropout", self.dropout)) if rate]
        words += ["keep"] * self.keep
        return ", ".join(words)


def build(cell: str, steps: int, batch: int, size: int, dtype: torch.dtype, options: Options, seed: int) -> Problem:
    """All providers of one layer, or of a stack, with the same weights and inputs."""
    torch.manual_seed(seed)
    batch_sizes = draw_batch_sizes(steps, batch) if options.packed else None
    rows = (steps, batch) if batch_sizes is None else (int(batch_sizes.sum()),)
    x = torch.randn(*rows, size, dtype=dtype, requires_grad=True)

    providers, training_only, absent = {}, {}, {}
    run = functools.partial(operator, noise=Noise(options.zoneout, options.dropout, torch.tensor(seed)))
    keep = torch.rand(steps, batch, dtype=dtype) if options.keep else None
    if not options.noisy:
        run = operator if keep is None else functools.partial(operator, keep=keep)
    if cell in MODULES and not options.over_loop:
        theirs, ours, keywords = MODULES[cell]
        keywords = keywords | {"num_layers": options.layers, "bidirectional": options.directions == 2, "dtype": dtype}
        peer, mine = (make(size, size, **keywords) for make in (theirs, ours))
        mine.load_state_dict(peer.state_dict())
        layer = Layer(cell, batch, batch_sizes, weights_of(mine), ())
        providers |= {OURS: of_module(mine, batch_sizes), "torch.nn": of_module(peer, batch_sizes)}
    else:
        layer = draw_layer(cell, batch, batch_sizes, size, dtype)
        providers[OURS] = of_function(run, layer)
    refuse_reference(layer, x)
    grad_h = torch.randn(*rows, layer.width * options.directions, dtype=dtype)
    if options.last_step:
        grad_h[:-1] = 0
    padded = None
    if options.packed and "torch.nn" in providers and options.directions == 1:
        padded = Padded.of(peer, batch_sizes, x, grad_h)

    if options.stacked:
        naive = without_onednn(of_module(peer, batch_sizes))
        exact = of_module(copy.deepcopy(peer).double(), batch_sizes)
    else:
        by_loop = loop if keep is None else functools.partial(loop, keep=keep)
        if options.noisy:
            by_loop = functools.partial(loop, drawn=run.keywords["noise"].drawn(layer, x, steps))
        naive = of_function(by_loop, layer)
        exact = of_function(by_loop, layer.map(lambda w: w.detach().double().requires_grad_()))
        if options.with_loop or options.over_loop or cell not in MODULES:
            providers["loop"] = naive
        if options.with_compiled and steps <= COMPILED_STEPS:
            try:
                providers[COMPILED] = warmed(compiled(naive), x, grad_h)
            except Exception as error:  # torch.compile, its C++ compiler or the system can fail
                why, *_ = str(error).splitlines() or [""]
                absent[COMPILED] = f"torch.compile failed with {type(error).__name__}: {why}"
        if options.with_operator and cell in MODULES:
            providers[OPERATOR] = of_function(operator, layer)
        if KERNEL_CELLS[cell]["saved"] and options.with_recomputed:
            training_only[RECOMPUTED] = of_function(functools.partial(run, save_gates=False), layer)

    calls = {
        "forward": {name: functools.partial(p.inference, x) for name, p in providers.items()},
        "forward+backward": {
            name: functools.partial(p.training, x, grad_h) for name, p in (providers | training_only).items()
        },
    }
    if padded is not None:
        calls["forward"][PADDED], calls["forward+backward"][PADDED] = padded.inference, padded.training
    if options.inference:
        del calls["forward+backward"]
    if options.last_step:
        del calls["forward"]
    return Problem(
        calls=calls,
        views={} if padded is None else {PADDED: padded.packed},
        baselines=gemm_reference(
            products_of(layer.weights), [batch] * steps if batch_sizes is None else batch_sizes.tolist()
        ),
        naive=functools.partial(naive.training, x, grad_h),
        truth=lambda: exact.training(x.detach().double().requires_grad_(), grad_h.double()),
        absent=absent,
    )


def without_onednn(provider: Provider) -> Provider:
    """Runs the provider without oneDNN, step by step: oneDNN's inaccurate bias gradients would loosen the accuracy
    check."""

    def forward(x: Tensor):
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = False  # mkldnn's context manager would warn about TF32
        try:
            return provider.forward(x)
        finally:
            torch.backends.mkldnn.enabled = before

    return provider._replace(forward=forward)


def warmed(provider: Provider, x: Tensor, grad_h: Tensor) -> Provider:
    """Runs forward and backward once, so that compilation is finished."""
    provider.inference(x)
    provider.training(x, grad_h)
    return provider


def products_of(weights: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """W and R of each layer and direction."""
    W, R = ([w.detach() for name, w in weights.items() if kind in name] for kind in ("weight_ih", "weight_hh"))
    return list(zip(W, R, strict=True))


def refuse_reference(layer: Layer, x: Tensor) -> None:
    u = x.new_empty(1).expand(*x.shape[:-1], layer.weights["weight_ih"].shape[0])
    implementation, reason = explain(
        recurrence, layer.cell, u, layer.weights["weight_hh"], layer.state(x), params=layer.params,
        batch_sizes=layer.batch_sizes,
    )  # fmt: skip
    if implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {reason}")


def draw_batch_sizes(steps: int, batch: int) -> Tensor:
    """Batch sizes of sequences with uniform lengths in T/4..T; the longest is T."""
    lengths = torch.randint(max(steps // 4, 1), steps + 1, (batch,))
    lengths[0] = steps
    return (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)


def draw_layer(cell: str, batch: int, batch_sizes: Tensor | None, size: int, dtype: torch.dtype) -> Layer:
    """A layer with torch.nn's initialization. A single bias serves as both if the cell adds u and R h directly, which
    saves an addition."""
    rows, bound = reference.CELLS[cell].gates * size, size**-0.5
    params = RECURRENCE_PARAMS.get(cell, lambda hidden: ())(size)
    width = params[0].shape[0] if cell == "lstm_projected" else size
    shapes = {"weight_ih": (rows, size), "weight_hh": (rows, width), "bias_ih": (rows,)}
    weights = {name: torch.empty(shape).uniform_(-bound, bound) for name, shape in shapes.items()}
    return Layer(cell, batch, batch_sizes, weights, params).map(lambda w: w.to(dtype).requires_grad_())


def cases(cells: Sequence[str], shapes: Sequence[tuple[int, int, int]], dtype: str, **options) -> list[Case]:
    """The cases for these cells and shapes; ``options`` are those of :class:`Options`. Stacks are measured for the
    cells of torch.nn only."""
    chosen = Options(**options)
    return [
        Case(
            labels("recurrence", chosen.label, cell, shape, dtype),
            functools.partial(build, cell, *shape, getattr(torch, dtype), chosen),
            kinked=cell in KINKED,
        )
        for cell in cells
        if cell in MODULES or not chosen.stacked
        for shape in shapes
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times the recurrence of every cell, forward and forward+backward.")
    parser.add_argument(
        "--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL", help=f"of {', '.join(CELLS)}"
    )
    family.add_shapes(parser, "TxBxN", "six")
    parser.add_argument("--packed", action="store_true", help="lengths uniform in T/4..T")
    parser.add_argument("--loop", action="store_true", help="the loop too where torch.nn has the cell")
    parser.add_argument(
        "--compiled", action="store_true", help=f"torch.compile of the loop too, where T is at most {COMPILED_STEPS}"
    )
    parser.add_argument("--inference", action="store_true", help="the forward alone, without gradients")
    parser.add_argument("--layers", type=int, default=1, help="more than one: of the cells that torch.nn has")
    parser.add_argument("--bidirectional", action="store_true", help="two directions: of the cells that torch.nn has")
    parser.add_argument(
        "--zoneout", type=float, default=0.0, metavar="RATE", help="of every state; over the loop alone"
    )
    parser.add_argument("--dropout", type=float, default=0.0, metavar="RATE", help="of what R multiplies; likewise")
    parser.add_argument(
        "--keep", action="store_true", help="weights of the old state, for each step and sequence; likewise"
    )
    parser.add_argument("--last-step", action="store_true", help="a loss on the last step only, of dense sequences")
    chosen, setup = family.begin(parser, argv, "recurrence")
    shapes = chosen.shapes or (QUICK_SHAPES if chosen.quick else SHAPES)
    options = Options(
        chosen.packed, chosen.loop, chosen.compiled, inference=chosen.inference, layers=chosen.layers,
        directions=1 + chosen.bidirectional, zoneout=chosen.zoneout, dropout=chosen.dropout, keep=chosen.keep,
        last_step=chosen.last_step,
    )  # fmt: skip
    if options.over_loop and options.stacked:
        parser.error("--zoneout, --dropout and --keep are measured in one layer and direction")
    if options.noisy and options.keep:
        parser.error("--keep is measured without --zoneout and --dropout")
    if options.last_step and (options.packed or options.inference):
        parser.error("--last-step is measured without --packed and --inference")
    todo = cases(chosen.cells, shapes, chosen.dtype, **options._asdict())
    if not todo:
        parser.error(f"with --layers and --bidirectional, --cells must name some of {', '.join(MODULES)}")
    try:
        harness.run(todo, *setup)
    finally:
        if setup.path is not None and setup.path.exists():
            from perf import picture  # imported here: measuring needs no matplotlib

            picture.draw(setup.path, "recurrence", options.label, chosen.dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
