"""precompile compiles exactly the kernels that a call launches, forward and backward.

Calls run on a stand-in for the driver, with every kernel replaced by an empty one."""

import contextlib

import pytest
import torch

from python_tests.gpu import givens_recurrences, recurrences, relevancies, standin
from python_tests.ops.relevancy_sample import call_of, everything
from python_tests.samples import (
    covering_rows,
    givens_recurrence_sample,
    outputs_and_gradients,
    recurrence_sample,
    scan_outputs_and_gradients,
)
from rnnkern import _compiler, _precompile, ops
from rnnkern.ops import explain
from rnnkern.ops._recurrence.autograd import KERNEL_CELLS
from rnnkern.ops.dispatch import collecting
from rnnkern.reference._relevancy import RELEVANCY_CELLS

pytestmark = pytest.mark.skipif(bool(standin.missing()), reason=standin.missing())
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DEVICES = [_precompile.FACTS[arch] for arch in ("sm_80", "sm_90", "sm_120")]
FAMILIES = (recurrences, relevancies, givens_recurrences)


class Place:
    """All kernels, on the stand-in."""

    name, operators, kernel, facts = "interpret", torch.ops.rnnkern_stub, "block,cluster,grid", ()


@pytest.fixture
def started(monkeypatch):
    """Runs a call on a device with these facts and returns the kernels that it requested."""
    library = standin.load()
    empty = _compiler.cubin_of(_compiler.Program(*_precompile.ALONE, "sm_90"))
    found = set()

    def cubin_of(program, again=False):
        found.add((program.header, program.type))
        return empty

    monkeypatch.setattr(_compiler, "cubin_of", cubin_of)
    monkeypatch.setattr(_compiler.Program, "symbol", "cuda_AloneKernel")

    def run(call, facts):
        found.clear()
        monkeypatch.setattr(Place, "facts", facts)
        standin.Driver(library, facts)
        call()
        return set(found)

    with contextlib.ExitStack() as stack:
        for family in FAMILIES:
            stack.enter_context(family.routed(Place))
        yield run


def explained(facts, op, *args, **kwargs):
    with collecting(facts, None) as found:
        explain(op, *args, **kwargs)
    return found | ({_precompile.ALONE} if facts[0] >= 9 else set())


RECURRENCES = covering_rows(
    {
        "cell": list(KERNEL_CELLS),
        "dtype": DTYPES,
        "facts": DEVICES,
        "hidden": [4, 200, 300, 1040],
        "options": [{}, {"packed": True}, {"zoneout": 0.3}, {"zoneout": 0.3, "drawn": False}, {"dropout": 0.4}],
        "tf32": [False, True],
        "save_gates": [True, False, None],
    }
)


@pytest.mark.parametrize("row", RECURRENCES, ids=lambda row: f"{row['cell']}-{row['dtype']}-{row['hidden']}")
def test_of_the_recurrence(row, started, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", row["tf32"])
    sample = recurrence_sample(
        row["cell"], 3, 2, row["hidden"], **row["options"], dtype=row["dtype"], requires_grad=True
    )  # fmt: skip
    kwargs = sample.kwargs | {"save_gates": row["save_gates"]}
    sample = sample._replace(kwargs=kwargs)
    found = started(lambda: outputs_and_gradients(ops.recurrence, sample), row["facts"])
    assert found
    assert found <= explained(row["facts"], ops.recurrence, *sample.args, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", RELEVANCY_CELLS)
def test_of_the_relevancy_recurrence(cell, dtype, started):
    for facts in DEVICES:
        for hidden in (30, 100, 200, 400):
            call = call_of(cell, 4, 2, hidden, buffer_size=3, packed=hidden == 30, dtype=dtype)
            found = started(lambda call=call: everything(ops.relevancy_recurrence, call), facts)
            assert found <= explained(facts, ops.relevancy_recurrence, *call.args, **call.kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_of_rotations(dtype, started):
    for facts in DEVICES:
        for size in (5, 64, 100, 256):
            call = givens_recurrence_sample(3, 2, size, dtype=dtype)
            tensors = {name: x.requires_grad_() for name, x in call.tensors.items()}
            found = started(
                lambda call=call: scan_outputs_and_gradients(ops.givens_recurrence, call), facts
            )  # fmt: skip
            wanted = explained(facts, ops.givens_recurrence, **tensors, **call.kwargs)
            assert found == wanted - {_precompile.ALONE} | found & {_precompile.ALONE}
