"""CUDA kernels of users' cells, over a table of cells, dtypes, options and kernels: they compute the function."""

import ctypes
import functools
import json
import os

import pytest
import torch

import rnnkern
from python_tests.cells import samples
from python_tests.gpu import standin
from python_tests.gpu.recurrences import FAMILY
from python_tests.gpu.standin import H100
from python_tests.samples import numbered
from rnnkern import _compiler, ops, reference
from rnnkern._cells import library
from rnnkern.ops.dispatch import collecting
from rnnkern.testing import assert_close_over_draws

CELLS = [*samples.CELLS, *samples.NORMALISED, rnnkern.cells.peephole_lstm, rnnkern.cells.ran]
STEPWISE = {"without_product", "brc", "nas", *(cell.__name__ for cell in samples.NORMALISED)}
"""Cells that only the stepwise kernels support: R has no gates, or more than the others can hold on chip, or there are
norms."""
DRAWS = 8
OPTIONS = {
    "plain": {},
    "gates computed again": {"save_gates": False},
    "packed, reset, reverse": {
        "batch_sizes": torch.tensor([3, 3, 2, 1, 1]),
        "reverse": True,
        "reset": torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) < 0.4,
    },
    "heads": {"heads": 3},
    "zoneout, dropout": {"zoneout": 0.3, "dropout": 0.4, "seed": torch.tensor(3)},
    "mean of zoneout": {"zoneout": 0.3},
    "many steps and units": {"steps": 66, "hidden": 133, "save_gates": False},
}


def register(cell, drivers: str, *options: str) -> None:
    """Compiles the list of a cell's kernels and registers it with a library of drivers."""
    made = library.library_of(library._known[cell.name], True, options)
    entry = ctypes.CDLL(drivers).rnnkern_register_cell
    entry.restype = ctypes.c_char_p
    assert entry(cell.name.encode(), os.fsencode(made)) is None


@functools.cache
def interpreted(cell) -> None:
    """The same for the interpreter, including the kernels themselves."""
    drivers = str(FAMILY.build())
    register(cell, drivers, "-DRNNKERN_INTERPRET", "-Wl,--no-as-needed", drivers)


def kernels_of(cell, dtype, options):
    """Those that run a call."""
    normalised = cell in samples.NORMALISED
    if "heads" in OPTIONS[options] and (normalised or not cell.recurrent):
        return []
    if "hidden" in OPTIONS[options] and not normalised:  # more units than a block of theirs has threads
        return []
    if dtype == torch.float64 or cell.__name__ in STEPWISE or "zoneout" in OPTIONS[options]:
        return ["stepwise"]
    return ["block", "stepwise"] if options == "heads" else ["block", "cluster", "grid", "stepwise"]


CALLS = [
    (cell, dtype, options, kernel)
    for cell in CELLS
    for dtype in (torch.float32, torch.bfloat16, torch.float64)
    for options in OPTIONS
    for kernel in kernels_of(cell, dtype, options)
]


@pytest.mark.parametrize(
    ("own_cell", "dtype", "options", "kernel"), CALLS, ids=lambda x: getattr(x, "__name__", None) or str(x)
)
@pytest.mark.drawn
def test_kernels_compute_the_function(own_cell, dtype, options, kernel, place):
    given = {k: x.to(place.device) if k in ("reset", "seed") else x for k, x in OPTIONS[options].items()}
    honest = {k: x for k, x in given.items() if k != "save_gates"}
    if place.name == "interpret":
        interpreted(own_cell)
    draws, found = [], []
    for k in range(DRAWS):
        place.set_seed(k)  # of the schedule

        def one(op, *args, given=given, k=k):
            return samples.call(own_cell, *args, op=op, device=place.device, drawn_with=k, **given)

        kernels = place.entered(lambda: found.append(one(place, dtype)))
        assert kernels == {f"recurrence/cuda/{way}/{own_cell.name}/{kernel}": 1 for way in ("forward", "backward")}
        truth = one(reference.recurrence, torch.float64, dtype, given=honest)
        draws.append((found[-1], one(reference.recurrence, dtype, given=honest), truth))
    if dtype == torch.float64:
        for actual, _, truth in draws:
            torch.testing.assert_close(actual, truth, rtol=1e-9, atol=1e-9)
    else:
        assert_close_over_draws([numbered(*each) for each in draws], f"{own_cell.name}: ")


NVRTC = pytest.mark.skipif(_compiler.nvrtc() is None, reason="no NVRTC")


@NVRTC
@pytest.mark.parametrize("cell", [samples.several, samples.oscillators, rnnkern.cells.slstm], ids=lambda c: c.__name__)
def test_kernels_compile_for_hardware(cell):
    assert library.refusal(cell.name, on_cuda=True) is None
    found = set()
    for dtype, noisy, hidden in [
        ("float32", True, 64),
        *((d, False, h) for d in ("float32", "bfloat16") for h in (64, 256, 2048)),
    ]:
        facts = (9, 0, 132, 232448, 16, 8)
        plan = torch.ops.rnnkern.recurrence_plan(cell.name, dtype, (9, 8, hidden, 1), facts, noisy, False)
        found |= {tuple(program) for program in json.loads(plan)["programs"]}
    own = [program for program in sorted(found) if library._known[cell.name].type in program[1]]
    assert {kind.partition("<")[0].removeprefix("rnnkern::") for _, kind in own} >= {
        f"{kernel}{way}Kernel" for kernel in ("Step", "Block", "Cluster", "Grid") for way in ("Forward", "Backward")
    }
    for program in own:
        assert _compiler.compile_now(_compiler.Program(*program, "sm_90")), program


@NVRTC
@pytest.mark.parametrize("cell", samples.NORMALISED, ids=lambda c: c.__name__)
def test_kernels_of_cells_with_norms_compile_for_hardware(cell):
    assert library.refusal(cell.name, on_cuda=True) is None
    for dtype, noisy in (("float32", True), ("bfloat16", False), ("float64", False)):
        plan = torch.ops.rnnkern.recurrence_plan(
            cell.name, dtype, (9, 8, 64, 1), (9, 0, 132, 232448, 16, 8), noisy, False
        )
        own = [program for program in json.loads(plan)["programs"] if library._known[cell.name].type in program[1]]
        assert len(own) >= 2
        for program in own:
            assert _compiler.compile_now(_compiler.Program(*program, "sm_90")), program


@NVRTC
def test_the_launcher_compiles_and_starts_them():
    """Uses the library with a stand-in for the driver: the name of the loaded kernel contains that of the cell."""
    driver = standin.Driver(standin.load(), H100)
    register(samples.several, str(standin.build_drivers()))
    u, R, state, leak = torch.randn(3, 2, 8), torch.randn(8, 4), [torch.zeros(2, 4)] * 2, torch.rand(4)
    torch.ops.rnnkern_stub.recurrence(
        samples.several.name, u, R, state, None, [leak], None, None, False, False, False, None, None, None, 0.0, None
    )
    (launch,) = driver.launches()
    assert launch.symbol == f"BlockForwardKernel_{library._known[samples.several.name].type}_float_32"


def test_what_would_be_compiled_ahead():
    layer, x = rnnkern.nn.Recurrent(samples.several, 3, 64), torch.randn(2, 2, 3)
    with collecting(H100, None) as found:
        rnnkern.explain(layer, x)
    own = library._known[samples.several.name].type
    assert any("BlockForwardKernel" in kind and own in kind for _, kind in found)


def test_without_a_compiler_a_gpu_runs_the_function(monkeypatch):
    """The choice contains the reason."""

    @rnnkern.cell
    def unmade(u, r, h):
        return torch.tanh(u + 1.25 * r)

    monkeypatch.setenv("CXX", "/nothing/like/it")
    assert "was not compiled" in library.refusal(unmade.name, on_cuda=True)
    with collecting(H100, None), pytest.raises(RuntimeError, match="was not compiled"):
        ops.explain(ops.recurrence, unmade, torch.zeros(1, 1, 4), torch.zeros(4, 4), [torch.zeros(1, 4)])
