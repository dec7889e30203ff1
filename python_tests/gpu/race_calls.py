"""Small calls of our kernels, with gradients, which run under the thread sanitizer as a command.

``python -m python_tests.gpu.race_calls recurrence 3 block grid``, where 3 is the number of seeds, prints the kernels
that ran."""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from python_tests.gpu import drivers, givens_recurrences, races, recurrences, relevancies
from python_tests.ops.relevancy_sample import call_of, everything
from python_tests.samples import (
    givens_recurrence_sample,
    outputs_and_gradients,
    recurrence_sample,
    scan_outputs_and_gradients,
)

Calls = Iterator[tuple[drivers.Place, Callable[[], object]]]


def of_recurrence(kernel: str, operators) -> Calls:
    """Those of the cells in few_kernels.h."""
    cells = ["lstm", "gru_reset_before"]
    dtypes = [torch.float32, torch.bfloat16]
    sizes = [(3, 2, 5), (3, 9, 29)]
    options = {"packed": True, "reset": True, "grad_scale": 2}
    if kernel == "stepwise":
        cells += ["lstm_projected"]
        options |= {"zoneout": 0.3, "dropout": 0.3}
    if kernel.startswith("cluster"):  # a thousand threads
        sizes = [(3, 5, 133)]
    if kernel == "cluster_tf32":
        dtypes = [torch.float32]
    with recurrences.routed(recurrences.Place("interpret", kernel, operators)) as place:
        for number, (cell, dtype) in enumerate(itertools.product(cells, dtypes)):
            size, reverse = sizes[(number + number // 2) % len(sizes)], number // 2 % 2 == 1
            sample = recurrence_sample(cell, *size, **options, reverse=reverse, dtype=dtype, requires_grad=True)
            yield place, lambda sample=sample: outputs_and_gradients(place, sample)


def of_relevancy(kernel: str, operators) -> Calls:
    options = [
        {"packed": True, "reset": 0.3, "carried": 4},
        {"relevance": "given", "alignment": "dot", "reset": 0.2, "carried": 2, "buffer_size": 2},
    ]
    cells, steps = (["lstm"], 4) if kernel == "cluster" else (["tanh", "lstm"], 6)  # a thousand threads
    with relevancies.routed(relevancies.Place("interpret", kernel, operators)) as place:
        for cell, option in itertools.product(cells, options):
            call = call_of(cell, steps, 2, 20, **option, dtype=torch.float32)
            yield place, lambda call=call: everything(place, call)


def of_givens(kernel: str, operators) -> Calls:
    with givens_recurrences.routed(givens_recurrences.Place("interpret", operators)) as place:
        styles = ("tunable", "butterfly")
        for dtype, style, small in itertools.product((torch.float32, torch.complex64), styles, (False, True)):
            sample = givens_recurrence_sample(4, 3, 64, style=style, packed=True, reset=True, dtype=dtype)
            place.set_facts(*(givens_recurrences.small(sample.tensors["u"]) if small else givens_recurrences.LARGE))
            yield place, lambda sample=sample: scan_outputs_and_gradients(place, sample)


FAMILIES = {
    "recurrence": (recurrences.FAMILY, of_recurrence, tuple(recurrences.FACTS)),
    "relevancy": (relevancies.FAMILY, of_relevancy, tuple(relevancies.FACTS)),
    "givens": (givens_recurrences.FAMILY, of_givens, ("warp",)),
}
"""Kernels, calls of them, and the values of their argument, by family."""


def main(name: str, seeds: str, *kernels: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    family, calls, _ = FAMILIES[name]
    operators = drivers.interpreted(family, races.OUR_FLAGS)
    entered = Counter()
    for kernel in kernels:
        for number, (place, call) in enumerate(calls(kernel, operators)):
            for seed in range(int(seeds)):
                place.set_seed(number * int(seeds) + seed)
                entered += place.entered(call)
    print(*sorted(entered))


if __name__ == "__main__":
    main(*sys.argv[1:])
