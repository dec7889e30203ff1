"""Launches on a stand-in for the driver, over a table of kernels: names, shapes and attributes, derived by hand.

An argument of a kernel is also compared byte by byte, and what drivers compute for arguments runs on the interpreter.
"""

import ctypes
from typing import Any

import pytest
import torch

from python_tests.gpu import standin
from python_tests.gpu.standin import H100
from python_tests.ops.relevancy_sample import call_of
from python_tests.samples import givens_recurrence_sample, recurrence_sample

pytestmark = pytest.mark.skipif(bool(standin.missing()), reason=standin.missing())
BF16, F32 = torch.bfloat16, torch.float32
operators = torch.ops.rnnkern_stub


@pytest.fixture
def driver(monkeypatch) -> standin.Driver:
    """The stand-in with the facts of an H100 and nothing loaded; TF32 is disabled."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    return standin.Driver(standin.load(), H100)


def forward(sample, training=False):
    """The operator's results; in training it saves the gates."""
    names = ("bias", "params", "batch_sizes", "reset", "reverse")
    rest = [sample.kwargs.get(name) for name in names]
    return operators.recurrence(*sample.args, *rest, training, training, None, None, *sample.noise()[:3])


def backward(sample, grad_h, h, saved):
    names = ("bias", "params", "batch_sizes", "reset", "reverse")
    rest = [sample.kwargs.get(name) for name in names]
    flags = (True, True, None, None, True, False, False, *sample.noise(), False, True, 0)
    return operators.recurrence_backward(sample.name, grad_h, [], *sample.args[1:], *rest, None, h, saved, *flags)


def recurrence(cell, *sizes, gradient=False, **options):
    sample = recurrence_sample(cell, *sizes, **options)
    h, *others = forward(sample, gradient)
    if gradient:
        backward(sample, torch.randn_like(h), h, others[len(sample.args[3]) :])


def relevancy(cell, hidden, packed=False):
    """A call that starts with two events in a buffer of four and two relevant events."""
    options = {"buffer_size": 4, "relevant_size": 2, "carried": 4, "alignment": "dot", "packed": packed}
    call = call_of(cell, 3, 3, hidden, **options, dtype=F32)
    _, u, R, state, attention = call.args
    given = [x.detach() for x in (u, R, *attention)]
    operators.relevancy_recurrence(
        cell, given[0], given[1:], [x.detach() for x in state if x is not None], None, call.kwargs["batch_sizes"], None,
        None, 4, 0.25, True, "float32", True, False,
    )  # fmt: skip


def rotations(packed=False):
    """Three layers over 100 numbers, 4 per lane: 64 pairs per layer."""
    tensors, kwargs = givens_recurrence_sample(2, 5, 100, 3, packed=packed, dtype=F32)
    args = (tensors["u"], tensors["angles"], None, None, tensors["modrelu_bias"], tensors["state"])
    rest = (kwargs["batch_sizes"], None, True, False)
    h, _ = operators.givens_recurrence(*args, *rest)
    operators.givens_recurrence_backward(torch.randn_like(h), None, *args, h, *rest)


# Shared memory of a cluster of 8: two groups of 8 sequences, each with sums of 2 parts, (8, 132), and twice h,
# (8, 264); 4 barriers; the bias of 32 units; and the state that waits: length, h and c.
OF_8 = 2 * (2 * 8 * 132 * 4 + 2 * 8 * 264 * 2) + 32 + 512 + 3072
# Of one of 16 in exact float32: 18 of 48 pieces of each thread's weights, as 30 are in registers; 4 sequences of each
# group, twice; barriers; the bias; and the state that waits: length and h.
OF_16 = 18 * 256 * 16 + 2 * 2 * 4 * 512 * 4 + 32 + 3 * 32 * 4 + 2 * 256 * 4
# Of a grid: sums of 8 warps and 4 pairs of columns, 16 + 4 units each, twice; the state of 16 units; lengths.
OF_GRID = 2 * 8 * 4 * 20 * 2 * 4 + 8 * 16 * 4 + 8 * 4
# Of relevancy on a block: scores, weights, ids and slots of six events; their values and keys; four vectors; 46 pieces
# of weights.
OF_RELEVANCY = 3 * 32 + 48 + 32 + 16 + 2 * 6 * 128 * 4 + 4 * 128 * 4 + 46 * 4096

LAUNCHES = {
    # Two heads of 64 units. Forward: 3 of 8 sequences for each head; twice 8 rows of 64 + 8 numbers. Backward: 60 rows
    # of 128; twice 8 rows of 4 * 64 + 8 numbers; and the sums of the gradients of R and of the bias.
    "block": (
        lambda: recurrence("lstm", 3, 20, 128, heads=2, reset=True, reverse=True, dtype=BF16, gradient=True),
        [("BlockForwardKernel_Lstm_bfloat16_64", 6, 256, 2304, 1, False),
         ("PreviousKernel_bfloat16_bfloat16", 30, 256, 0, 1, False),
         ("BlockBackwardKernel_Lstm_bfloat16_64", 6, 128, 8448, 1, False),
         ("AccumulateKernel_bfloat16", 128, 256, 0, 1, False), ("AccumulateKernel_float", 2, 256, 0, 1, False)],
        {},
    ),
    # 16 clusters run at once, so each gets 7 of 100 sequences, which makes 15 clusters; within all kernels' limits.
    "cluster of 8": (
        lambda: recurrence("lstm", 4, 100, 250, packed=True, bias=False, dtype=BF16),
        [("ClusterForwardKernel_Lstm_bfloat16_256", 120, 256, OF_8, 8, False)],
        {},
    ),
    # Beyond the default limits of cluster size and shared memory: 7 clusters, 5 of 30 sequences each.
    "cluster of 16": (
        lambda: recurrence("gru", 2, 30, 500, dtype=F32),
        [("ClusterForwardKernel_Gru_float_512", 96, 256, OF_16, 16, False)],
        {8: OF_16, 14: 1},
    ),
    # 1,040 units, 16 for each of 65 blocks; two groups of blocks, each with at most 8 of 12 sequences.
    "grid": (
        lambda: recurrence("modrelu", 3, 12, 1040, bias=False, dtype=BF16),
        [("GridForwardKernel_ModRelu_bfloat16", 130, 256, OF_GRID, 1, True)],
        {},
    ),
    # The dropout mask, the masked initial state, and then a kernel after each step's product.
    "stepwise with noise": (
        lambda: recurrence("lstm", 2, 60, 10, zoneout=0.25, dropout=0.75, dtype=F32),
        [("MaskKernel_float", 3, 256, 0, 1, False), ("DropKernel_float", 3, 256, 0, 1, False),
         *[("StepForwardKernel_Lstm_float_true", 3, 256, 0, 1, False)] * 2],
        {},
    ),
    # Packed weights: 16 blocks of 4 KB of each of six matrices.
    "a block for each sample": (
        lambda: relevancy("lstm", 100),
        [("relevancy_RememberKernel_float", 8, 256, 0, 1, False),
         ("relevancy_PackKernel_128_float", 96, 256, 0, 1, False),
         ("relevancy_PerSequenceForwardKernel_Lstm_128_float", 3, 256, OF_RELEVANCY, 1, False)],
        {8: OF_RELEVANCY},
    ),
    # Shared memory: sums of warps, also by columns; a slot.
    "attention step by step": (
        lambda: relevancy("tanh", 600),
        [("relevancy_RememberKernel_float", 43, 256, 0, 1, False),
         *[("relevancy_CellForwardKernel_Tanh_float", 8, 256, 0, 1, False),
           ("relevancy_StepwiseAttentionForwardKernel_float", 3, 256, 32 + 2 * 8 * 128 * 4 + 16, 1, False)] * 3],
        {},
    ),
    # Forward: rows of 4 steps, one to write, the bias. Backward: three rows per step, one to write, and the bias; and
    # the sums of 3 * 64 angles and 128 numbers.
    "rotations": (
        rotations,
        [("givens_TurnKernel_float", 1, 256, 0, 1, False),
         ("givens_ForwardKernel_float_1_4", 5, 32, (4 + 1 + 1) * 160 * 4, 1, False),
         ("givens_TurnKernel_float", 1, 256, 0, 1, False),
         ("givens_BackwardKernel_float_1_4", 5, 32, (3 * 4 + 1 + 1) * 160 * 4 + 320 * 4, 1, False),
         ("givens_SumKernel_float", 2, 256, 0, 1, False)],
        {},
    ),
}  # fmt: skip
"""Calls; for each launch the name, blocks, threads, bytes of shared memory, blocks per cluster, and whether it is
cooperative; and the attributes that are set for the last kernel."""


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(name, driver):
    call, launches, attributes = LAUNCHES[name]
    call()
    calls = driver.calls()
    found = [standin.launch_of(call) for call in calls if call[0] == "cuLaunchKernelEx"]
    assert [launch[:6] for launch in found] == launches
    assert {launch.stream for launch in found} == {0}
    settings = [call[1:] for call in calls if call[0] == "cuFuncSetAttribute" and call[1] != "cuda_AloneKernel"]
    assert settings == [[launches[-1][0], *attribute] for attribute in attributes.items()]


@pytest.mark.parametrize(
    "call",
    [lambda **options: recurrence("tanh", 3, 2, 64, **options), lambda **options: relevancy("tanh", 64, **options),
     rotations],
    ids=["recurrence", "relevancy", "rotations"],
)  # fmt: skip
def test_packed_input_under_capture_is_refused_with_the_remedy(call, driver):
    """The host memory that is copied to the device is gone at replay."""
    call(packed=True)
    call()
    driver.set_capturing(True)
    call()
    with pytest.raises(RuntimeError, match="packed input cannot be captured in a CUDA graph"):
        call(packed=True)


# ---- an argument: structures of csrc/recurrence/cuda/problem.h in the layout of a C compiler; pointers are numbers

Count, Pointer, Bool = ctypes.c_int64, ctypes.c_uint64, ctypes.c_bool


def structure(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """A structure type. A field name that consists of several words defines one field per word."""
    each = [(name, type) for names, type in fields for name in names.split()]
    return type("Problem", (ctypes.Structure,), {"_fields_": each})


Sequence = structure(
    ("count batch hidden", Count), ("offsets lengths reset", Pointer), ("heads", Count), ("reverse", Bool)
)  # fmt: skip
BlockForward = structure(
    ("sequence", Sequence), ("u R bias", Pointer), ("params state", Pointer * 8), ("h", Pointer),
    ("final_state cells", Pointer * 8), ("saved", Pointer),
)  # fmt: skip


def plain(x: Any) -> Any:
    """The fields of a structure, by name."""
    if isinstance(x, ctypes.Structure):
        return {name: plain(getattr(x, name)) for name, _ in x._fields_}
    return list(x) if isinstance(x, ctypes.Array) else x


def eight(*pointers: int) -> list[int]:
    """Pads with null pointers to the largest number of states or parameters of a cell."""
    return [*pointers, *[0] * (8 - len(pointers))]


def test_the_argument_of_a_block(driver):
    at = torch.Tensor.data_ptr
    sample = recurrence_sample("lstm", 3, 20, 128, heads=2, reset=True, reverse=True, dtype=BF16)
    _, u, R, (h0, c0) = sample.args
    h, last_h, last_c, cells, saved = forward(sample, training=True)
    (launch,) = driver.launches()
    sequence = {"count": 3, "batch": 20, "hidden": 128, "heads": 2, "offsets": 0, "lengths": 0,
                "reset": at(sample.kwargs["reset"]), "reverse": True}  # fmt: skip
    assert ctypes.sizeof(BlockForward) == len(launch.parameter), "the kernel takes another structure"
    assert plain(BlockForward.from_buffer_copy(launch.parameter)) == {
        "sequence": sequence, "u": at(u), "R": at(R), "bias": at(sample.kwargs["bias"]), "params": eight(),
        "state": eight(at(h0), at(c0)), "h": at(h), "final_state": eight(at(last_h), at(last_c)),
        "cells": eight(0, at(cells)), "saved": at(saved),
    }  # fmt: skip
