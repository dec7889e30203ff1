"""Measures layers that are called step by step, as in a live application: B = 1, I = H, one thread.

``python -m perf.stream --help``. First microseconds per call, of each way to compute a step, the state of which is fed
back; the floor is one product of all weights with a vector. Results are checked against torch.nn in float64 before they
are timed. Then a server: steps per second of many threads together, each with a stream of its own, on one core and on
two, over those of one thread alone. ONNX Runtime needs the packages onnx and onnxruntime.
"""

import contextlib
import gc
import importlib.util
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import rnnkern
from perf import family, harness, record
from perf.progress import Progress
from perf.providers import weights_of
from perf.record import Row, significant

CELLS = {"lstm": "LSTM", "gru": "GRU"}
"""Names of the layers."""
SIZES, QUICK_SIZES = (32, 128, 256, 512), (8,)
STREAM, FLOOR, PRODUCT = "stream", "floor", "torch.mv"
PEERS = LAYER, TORCH_LAYER, CELL, SCRIPT, ONNX = (
    "rnnkern layer", "torch.nn layer", "torch cell", "TorchScript cell", "ONNX Runtime",
)  # fmt: skip
"""Other ways to compute a step."""
BLOCK, UNTIMED = 200, 10
"""Timed calls of a provider before the next one's turn, and calls before them."""
CHECKED = 50
"""Steps that are checked. TorchScript compiles in the first."""
CLIENTS, ROUNDS = 32, 3
"""Threads of the server, and rounds in which all threads and one thread alone take turns."""


def fed_back(step: Callable, x: Tensor, state: Tensor | tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """A call computes the next step, and returns its h."""

    def call() -> Tensor:
        nonlocal state
        state = step(x, state)
        return state[0] if isinstance(state, tuple) else state

    return call


def in_onnx(cell: str, weights: dict[str, Tensor], x: Tensor) -> Callable[[], Tensor]:
    """ONNX Runtime's operator, from and to NumPy's arrays."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    H, states = weights["weight_hh"].shape[1], ["h", "c"][: 1 + (cell == "lstm")]
    order = (0, 3, 1, 2) if cell == "lstm" else (1, 0, 2)  # of the gates: iofc, zrh

    def ordered(name: str) -> Tensor:
        gates = weights[name].split(H)
        return torch.cat([gates[k] for k in order])

    W, R, b, r = map(ordered, ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    constants = {"W": W.unsqueeze(0), "R": R.unsqueeze(0), "B": torch.cat([b, r]).unsqueeze(0)}
    finals, options = [f"{name}_n" for name in states], {} if cell == "lstm" else {"linear_before_reset": 1}
    node = helper.make_node(cell.upper(), ["x", *constants, "", *states], ["", *finals], hidden_size=H, **options)
    shapes = {"x": [1, 1, x.shape[1]]} | {name: [1, 1, H] for name in (*states, *finals)}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    held = [numpy_helper.from_array(value.numpy(), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "step", [infos[n] for n in ("x", *states)], [infos[n] for n in finals], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    arguments = {"x": x.view(1, 1, -1).numpy()} | {name: torch.zeros(1, 1, H).numpy() for name in states}

    def call() -> Tensor:
        found = session.run(finals, arguments)
        arguments.update(zip(states, found, strict=True))
        return torch.from_numpy(found[0])

    return call


def providers(cell: str, size: int) -> dict[str, Callable[[], Tensor]]:
    """The ways to compute a step, checked."""
    torch.manual_seed(0)
    name, x = CELLS[cell], torch.randn(1, size)
    peer, ours, single = getattr(torch.nn, name), getattr(rnnkern.nn, name), getattr(torch.nn, f"{name}Cell")
    peer, ours, single = peer(size, size), ours(size, size), single(size, size)
    weights = {key: value.detach() for key, value in weights_of(peer).items()}
    ours.load_state_dict(peer.state_dict())
    single.load_state_dict(weights)
    W, v, stream = torch.cat([weights["weight_ih"], weights["weight_hh"]], 1), torch.randn(2 * size), ours.stream()

    def zeros(*shape: int) -> Tensor | tuple[Tensor, Tensor]:
        return (torch.zeros(shape), torch.zeros(shape)) if cell == "lstm" else torch.zeros(shape)

    steps = {
        STREAM: lambda: stream(x),
        LAYER: fed_back(lambda x, state: ours(x, state)[1], x.unsqueeze(0), zeros(1, 1, size)),
        TORCH_LAYER: fed_back(lambda x, state: peer(x, state)[1], x.unsqueeze(0), zeros(1, 1, size)),
        CELL: fed_back(single, x, zeros(1, size)),
        SCRIPT: fed_back(torch.jit.script(single), x, zeros(1, size)),
    }
    if all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
        steps[ONNX] = in_onnx(cell, weights, x)
    sequence = x.expand(CHECKED, 1, size)
    naive, truth = peer(sequence)[0][:, 0], peer.double()(sequence.double())[0][:, 0]
    peer.float()
    for provider, step in steps.items():
        check = harness.assert_ours if provider in (STREAM, LAYER) else harness.assert_same
        check(torch.cat([step().view(1, -1) for _ in range(CHECKED)]), naive, truth, f"{provider}, {cell}, {size}")
    return steps | {FLOOR: lambda: torch.mv(W, v)}


def latencies(steps: dict[str, Callable[[], Tensor]], seconds: float) -> dict[str, list[float]]:
    """Microseconds of each call. The providers take turns for so many seconds, at least twice."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    clock, until = time.perf_counter_ns, time.monotonic() + seconds
    gc.collect()
    gc.disable()
    try:
        while time.monotonic() < until or len(found[FLOOR]) < 2 * BLOCK:
            for name, step in steps.items():
                for k in range(UNTIMED + BLOCK):
                    begun = clock()
                    step()
                    ended = clock()
                    if k >= UNTIMED:
                        found[name].append((ended - begun) / 1e3)
    finally:
        gc.enable()
    return found


@contextlib.contextmanager
def confined(cores: int) -> Iterator[None]:
    """Lets this thread, and those that it starts, run on so many cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def per_second(step: Callable[[], Callable[[], Tensor]], clients: int, seconds: float) -> float:
    """Steps per second of all clients, each a thread that makes its own function by ``step``."""
    counts, stop, begin = [0] * clients, threading.Event(), threading.Barrier(clients + 1)

    def client(k: int) -> None:
        torch.set_num_threads(1)  # a new thread has the default
        call, count = step(), 0
        for _ in range(UNTIMED):
            call()
        begin.wait()
        while not stop.is_set():
            for _ in range(10):
                call()
            count += 10
        counts[k] = count

    threads = [threading.Thread(target=client, args=(k,)) for k in range(clients)]
    for thread in threads:
        thread.start()
    begin.wait()
    begun = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def served(size: int, seconds: float) -> Iterator[Row]:
    """Rows of the server: an LSTM, and the product of its weights with a vector for comparison."""
    layer, W = rnnkern.nn.LSTM(size, size), torch.randn(4 * size, 2 * size)

    def stream() -> Callable[[], Tensor]:
        own, x = layer.stream(), torch.randn(1, size)
        return lambda: own(x)

    def product() -> Callable[[], Tensor]:
        v = torch.randn(2 * size)
        return lambda: torch.mv(W, v)

    for provider, step in {STREAM: stream, PRODUCT: product}.items():
        for cores in range(1, min(2, len(os.sched_getaffinity(0))) + 1):
            with confined(cores):
                rounds = [[per_second(step, n, seconds) for n in (1, CLIENTS)] for _ in range(ROUNDS)]
            ratio = statistics.median(many / alone for alone, many in rounds)
            for clients, found in zip((1, CLIENTS), zip(*rounds, strict=True), strict=True):
                row = {"case": "server", "cell": "lstm", "size": size, "provider": provider}
                row |= {"cores": cores, "clients": clients, "us_50": "", "us_99": ""}
                figures = statistics.median(found), ratio if clients > 1 else 1.0
                yield row | dict(zip(("per_second", "over_one"), map(significant, figures), strict=True))


def timed(cell: str, size: int, seconds: float) -> Iterator[Row]:
    for provider, found in latencies(providers(cell, size), seconds).items():
        middle, high = statistics.median(found), statistics.quantiles(found, n=100)[-1]
        row = {"case": "step", "cell": cell, "size": size, "provider": provider, "cores": 1, "clients": 1}
        yield row | {"us_50": significant(middle), "us_99": significant(high), "per_second": "", "over_one": ""}


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times layers that are called step by step.", family.WIDE[:1])
    parser.set_defaults(threads=1)
    parser.add_argument("--sizes", nargs="+", type=int, metavar="H", help=f"instead of {SIZES}")
    chosen, setup = family.begin(parser, argv, "stream", name="stream")
    sizes, seconds = chosen.sizes or (QUICK_SIZES if chosen.quick else SIZES), setup.effort.seconds
    facts, rows = record.facts(setup.device, setup.command), []
    with Progress("step by step", 3 * len(sizes), "case") as progress, torch.no_grad():
        for size in sizes:
            for cell in CELLS:
                rows += timed(cell, size, seconds)
                progress.advance()
        for size in sizes:
            rows += served(size, 0.3 * seconds)
            progress.advance()
    if setup.path is not None:
        record.append(setup.path, [facts | row for row in rows])
    print(record.table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
