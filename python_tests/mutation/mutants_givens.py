"""Mutants of the recurrence through layers of rotations, on a GPU."""

from python_tests.mutation.mutant import Mutant, interpreted

ROTATING = "python_tests/gpu/test_givens_recurrence.py"
VALUES = interpreted("values_and_gradients_are", ROTATING)

GIVENS_RECURRENCE = [
    Mutant("orthogonal/cuda/givens_lanes.cuh", "choose(lane < warp_size - 1, from_lane(x[0], lane + 1), X{})",
           "from_lane(x[0], lane + 1)", "that the last lane has no next one", interpreted("nan", ROTATING)),
    Mutant("orthogonal/cuda/givens_lanes.cuh", "high = choose(upper, b, back);", "high = choose(upper, back, b);",
           "which numbers come back from a far lane", VALUES),
    Mutant("orthogonal/cuda/givens_lanes.cuh", "(stage > 0 ? stage : p.stages) - 1", "(stage > 0 ? stage : 1) - 1",
           "the layer before the first of its kind", VALUES),
    Mutant("orthogonal/cuda/givens_forward.cuh", "device::wait_copies<Rows::depth - 1>();",
           "device::wait_copies<Rows::depth>();", "the wait for a step's input", VALUES),
    Mutant("orthogonal/cuda/givens_backward.cuh", "if (reset) clear(grads);", "",
           "that no gradient goes through a reset", VALUES),
]  # fmt: skip
