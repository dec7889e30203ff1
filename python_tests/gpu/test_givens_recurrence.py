"""givens_recurrence's CUDA kernels against the reference: values, gradients, every kind of call, sizes that do not fit."""

import pytest
import torch

from python_tests.gpu import givens_recurrences, recurrences
from python_tests.gpu.conftest import CHOSEN, require
from rnnkern import reference
from rnnkern.ops import explain, givens_recurrence
from rnnkern.testing import (
    GIVENS_OPTIONS,
    check_givens_recurrence,
    covering_rows,
    givens_recurrence_sample,
    scan_outputs_and_gradients,
)

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128
DTYPES = (F32, F64, C64, C128)


@pytest.fixture(params=CHOSEN)
def place(request, nan_memory):
    """rnnkern.ops.givens_recurrence, where kernels run. One thread: calls are small."""
    require(recurrences.lacks(request.param))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with givens_recurrences.routed(givens_recurrences.Place(request.param)) as place:
        yield place
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(dtype, place):
    """Of two units luck decides in single precision, where the closeness rule holds; in double the reference does."""
    tiny = [("tunable", 1), ("tunable", 2), ("butterfly", 1), ("butterfly", 2)] if dtype in (F64, C128) else []
    factors = {
        "steps": [0, 1, 2, 9], "batch": [0, 1, 3, 6], "layers": [0, 1, 2, 7],
        "size": [("tunable", 33), ("tunable", 64), ("tunable", 200), ("butterfly", 64), ("butterfly", 256), *tiny],
        "option": list(GIVENS_OPTIONS),
    }  # fmt: skip
    for number, row in enumerate(covering_rows(factors)):
        place.set_seed(number)
        place.set_facts(*(givens_recurrences.SMALL if number % 2 else givens_recurrences.LARGE))
        (style, size), option = row.pop("size"), GIVENS_OPTIONS[row.pop("option")]
        sample = givens_recurrence_sample(**row, size=size, style=style, **option, dtype=dtype)
        check_givens_recurrence(place, sample, f"{row} {style} {size} {option}")
