"""Measures the overhead of calls against torch.nn: one tiny call, and a sequence in which every step is a call.

``python -m perf.overhead --help``. The CSV has milliseconds, as all others; printed times are microseconds per call or
per step.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perf import family, harness, record, recurrence
from perf.harness import OURS, Case, Problem, Values
from perf.providers import Layer, loop, weights_of
from perf.record import Row, significant
from rnnkern._gemm import gemm_reference

CELLS = {"tanh": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}
"""torch.nn's cell modules."""
CALL, STEPS = "one call", "step by step"
"""Names of the cases."""
CALL_SIZES, STEP_SIZES, QUICK_SIZES = (1, 16), (64, 128, 256, 512), (4,)
"""N = I = H."""
LENGTH = 100
"""Number of calls with one step each, B = 1."""
MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad}


def build_steps(cell: str, size: int, dtype: torch.dtype, modes: Sequence[str], seed: int) -> Problem:
    """Modules that are called with T = 1 and their previous state; one timed call consists of ``LENGTH`` such calls."""
    torch.manual_seed(seed)
    theirs, ours, _ = recurrence.MODULES[cell]
    peer, mine, single = (make(size, size, dtype=dtype).eval() for make in (theirs, ours, CELLS[cell]))
    mine.load_state_dict(peer.state_dict())
    single.load_state_dict(weights_of(peer))
    x = torch.randn(LENGTH, 1, size, dtype=dtype)
    layer = Layer(cell, 1, None, weights_of(peer), ()).map(Tensor.detach)
    recurrence.refuse_reference(layer, x)

    def zeros(*shape: int) -> Tensor | tuple[Tensor, Tensor]:
        return (x.new_zeros(shape), x.new_zeros(shape)) if cell == "lstm" else x.new_zeros(shape)

    providers = {
        OURS: functools.partial(fed_back, lambda x, state: mine(x, state)[1], x.split(1), zeros(1, 1, size)),
        "torch.nn": functools.partial(fed_back, lambda x, state: peer(x, state)[1], x.split(1), zeros(1, 1, size)),
        f"torch.nn {CELLS[cell].__name__}": functools.partial(fed_back, single, x.unbind(0), zeros(1, size)),
    }
    step = gemm_reference(recurrence.products_of(layer.weights), [1])["forward"]

    def all_steps() -> None:
        for _ in range(LENGTH):
            step()

    return Problem(
        calls={
            mode: {name: functools.partial(under, context, call) for name, call in providers.items()}
            for mode, context in MODES.items()
            if mode in modes
        },
        baselines=dict.fromkeys(modes, all_steps),
        naive=lambda: finals(loop(layer, x)[1]),
        truth=lambda: finals(loop(layer.map(Tensor.double), x.double())[1]),
    )


def fed_back(step: Callable, inputs: Sequence[Tensor], state: Tensor | tuple[Tensor, Tensor]) -> Values:
    for x in inputs:
        state = step(x, state)
    return finals(state if isinstance(state, tuple) else (state,))


def under(context: Callable, call: Callable[[], Values]) -> Values:
    with context():
        return call()


def finals(state: Sequence[Tensor]) -> Values:
    return {f"final state[{k}]": s.view(1, -1) for k, s in enumerate(state)}


def cases(
    call_sizes: Sequence[int], step_sizes: Sequence[int], dtype: str, modes: Sequence[str] = tuple(MODES)
) -> list[Case]:
    """One call: modules and operator with T = B = 1. Step by step: modules and torch.nn's cell."""
    calls = recurrence.cases(
        tuple(CELLS), [(1, 1, n) for n in call_sizes], dtype, packed=False, with_loop=False, with_operator=True
    )
    return [case._replace(labels=case.labels | {"case": CALL}) for case in calls] + [
        Case(
            {"op": "recurrence", "case": STEPS, "cell": cell, "shape": f"{LENGTH}x1x{size}", "dtype": dtype},
            functools.partial(build_steps, cell, size, getattr(torch, dtype), modes),
        )
        for cell in CELLS
        for size in step_sizes
    ]


def microseconds(row: dict[str, str] | Row) -> float:
    """Microseconds per call or per step."""
    calls = int(row["shape"].split("x")[0]) if row["case"] == STEPS else 1
    return significant(1e3 * float(row["ms_50"]) / calls)


def lines(rows: Sequence[Row]) -> list[Row]:
    names = ("case", "cell", "shape", "direction", "provider")
    return [
        {name: row[name] for name in names}
        | {"us": microseconds(row), "times faster": row["ratio_50"], "25 %": row["ratio_25"], "75 %": row["ratio_75"]}
        for row in rows
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times single tiny calls, and steps one at a time.")
    chosen, setup = family.begin(parser, argv, "overhead")
    sizes = (QUICK_SIZES, QUICK_SIZES) if chosen.quick else (CALL_SIZES, STEP_SIZES)
    todo = cases(*sizes, chosen.dtype)
    outcome = harness.attempt(todo, *setup)
    if outcome.rows:
        print(record.table(lines(outcome.rows)))
    outcome.settle()


if __name__ == "__main__":
    main(sys.argv[1:])
