"""Calls on a stand-in for the driver, compared with launches that were derived by hand: names, shapes, attributes, and
every field of the kernels' arguments."""

import pytest
import torch

from python_tests.gpu import problems, standin
from python_tests.gpu.problems import Somewhere, eight, read
from python_tests.gpu.standin import H100

pytestmark = pytest.mark.skipif(bool(standin.missing()), reason=standin.missing())
BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture
def driver(monkeypatch) -> standin.Driver:
    """The stand-in with the facts of an H100 and nothing loaded; TF32 is disabled."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    return standin.Driver(standin.load(), H100)


def at(x: torch.Tensor | None, element: int = 0) -> int:
    return 0 if x is None else x.data_ptr() + element * x.element_size()


def forward(cell, u, R, state, *, bias=None, params=(), sizes=None, reset=None, reverse=False, training=False,
            zoneout=None, dropout=0.0, seed=None):  # fmt: skip
    """The operator's results; in training it saves the gates."""
    return torch.ops.rnnkern_stub.recurrence(
        cell, u, R, state, bias, params, sizes, reset, reverse, training, training, None, None, zoneout, dropout, seed
    )


def shape(launch: standin.Launch) -> tuple:
    """Blocks, threads, bytes of shared memory, blocks per cluster, whether the launch is cooperative."""
    return (launch.blocks, launch.threads, launch.shared_bytes, launch.cluster, launch.cooperative)


def settings(calls) -> list[tuple]:
    """Attributes that were set for functions."""
    return [tuple(call[1:]) for call in calls if call[0] == "cuFuncSetAttribute" and call[1] != "cuda_AloneKernel"]


def sequence(count, batch, hidden, heads=1, offsets=0, lengths=0, reset=None, reverse=False):
    return {"count": count, "batch": batch, "hidden": hidden, "heads": heads, "offsets": offsets, "lengths": lengths,
            "reset": at(reset), "reverse": reverse}  # fmt: skip


def test_block(driver):
    """An LSTM with two heads of 64 units in bfloat16, forward and backward; the backward pass accumulates the gradients
    of both heads."""
    steps, batch, heads, hidden = 3, 20, 2, 128
    u, R = torch.randn(steps, batch, 4 * hidden, dtype=BF16), torch.randn(heads, 256, 64, dtype=BF16)
    h0, c0, bias = (torch.randn(*size, dtype=BF16) for size in ((batch, hidden), (batch, hidden), (4 * hidden,)))
    reset = torch.zeros(steps, batch, dtype=torch.bool)
    h, last_h, last_c, cells, saved = forward(
        "lstm", u, R, [h0, c0], bias=bias, reset=reset, reverse=True, training=True
    )  # fmt: skip
    (launch,) = driver.launches()
    assert launch.symbol == "BlockForwardKernel_Lstm_bfloat16_64"
    assert shape(launch) == (6, 256, 2304, 1, False)  # 3 of 8 sequences for each head; twice 8 rows of 64 + 8 numbers
    assert launch.stream == 0
    same = sequence(steps, batch, hidden, heads, reset=reset, reverse=True)
    assert read(problems.BlockForward, launch.parameter) == {
        "sequence": same, "u": at(u), "R": at(R), "bias": at(bias), "params": eight(), "state": eight(at(h0), at(c0)),
        "h": at(h), "final_state": eight(at(last_h), at(last_c)), "cells": eight(0, at(cells)), "saved": at(saved),
    }  # fmt: skip

    grad_h = torch.randn_like(h)
    du, dR, dbias, dh0, dc0 = torch.ops.rnnkern_stub.recurrence_backward(
        "lstm", grad_h, [], u, R, [h0, c0], bias, [], None, reset, True, None, h, [cells, saved], True, True, None,
        None, True, False, False, None, 0.0, None, None, False, True, 0,
    )  # fmt: skip
    before, loop, of_R, of_bias = driver.launches()
    previous, dr, partial = Somewhere(), Somewhere(), Somewhere()
    assert (before.symbol, shape(before)) == (
        "PreviousKernel_bfloat16_bfloat16",
        (30, 256, 0, 1, False),
    )  # 60 rows of 128
    assert read(problems.Previous, before.parameter) == {
        "sequence": same, "first": 0, "rows": 60, "h": at(h), "state": at(h0), "previous": previous
    }  # fmt: skip
    assert loop.symbol == "BlockBackwardKernel_Lstm_bfloat16_64"
    assert shape(loop) == (6, 128, 8448, 1, False)  # twice 8 rows of 4 * 64 + 8 numbers
    assert read(problems.BlockBackward, loop.parameter) == {
        "sequence": same, "first": 0, "steps": 3, "rows": 60, "R": at(R), "params": eight(),
        "cell_state": eight(0, at(c0)), "h": at(h), "cells": eight(0, at(cells)), "saved": at(saved),
        "previous": previous, "grad_h": at(grad_h), "grad_scale": 0, "scale_step": 1, "scale_row": 0,
        "carry": eight(Somewhere(), Somewhere()), "dparams": eight(), "du": at(du), "dr": dr, "operand": 0,
    }  # fmt: skip
    previous.one()
    assert (of_R.symbol, shape(of_R)) == ("AccumulateKernel_bfloat16", (128, 256, 0, 1, False))
    assert read(problems.Accumulate, of_R.parameter) == {
        "count": 2 * 4 * 64 * 64, "inner": 4 * 64 * 64, "stride": 4 * 64 * 64, "source": partial, "to": Somewhere()
    }  # fmt: skip
    assert (of_bias.symbol, shape(of_bias)) == ("AccumulateKernel_float", (2, 256, 0, 1, False))
    assert read(problems.Accumulate, of_bias.parameter) == {
        "count": 512, "inner": 1, "stride": 1, "source": Somewhere(), "to": Somewhere()
    }  # fmt: skip
    assert [x.shape for x in (du, dR, dbias, dh0, dc0)] == [x.shape for x in (u, R, bias, h0, c0)]


def test_a_cluster_of_8(driver):
    """Packed input: 16 clusters run at once, so each gets 7 of 100 sequences, which makes 15 clusters."""
    sizes, hidden = torch.tensor([100, 100, 70, 1]), 250
    u, R = torch.randn(271, 4 * hidden, dtype=BF16), torch.randn(4 * hidden, hidden, dtype=BF16)
    h0, c0 = torch.randn(2, 100, hidden, dtype=BF16)
    h, last_h, last_c = forward("lstm", u, R, [h0, c0], sizes=sizes)
    calls = driver.calls()
    launch = standin.launch_of(calls[-1])
    assert launch.symbol == "ClusterForwardKernel_Lstm_bfloat16_256"
    # Shared memory: two groups of 8 sequences, each with sums of 2 parts, (8, 132), and twice h, (8, 264); 4 barriers;
    # the bias of 32 units; and the state that waits: length, h and c.
    assert shape(launch) == (120, 256, 2 * (2 * 8 * 132 * 4 + 2 * 8 * 264 * 2) + 32 + 512 + 3072, 8, False)
    assert settings(calls) == []  # within the limits of all kernels
    table = Somewhere()
    found = read(problems.ClusterForward, launch.parameter)
    lengths = found["call"]["sequence"].pop("lengths")
    rows = sequence(4, 100, hidden, offsets=table)
    del rows["lengths"]
    assert found == {
        "call": {
            "sequence": rows, "u": at(u), "R": at(R), "bias": 0, "params": eight(), "state": eight(at(h0), at(c0)),
            "h": at(h), "final_state": eight(at(last_h), at(last_c)), "cells": eight(), "saved": 0,
        },
        "columns": 7,
    }  # fmt: skip
    assert lengths == table.one() + 5 * 8  # after the first row of each step and the number of rows


def test_a_cluster_of_16(driver):
    """Exact float32, which exceeds the default limits of cluster size and shared memory: 7 clusters, 5 of 30 sequences
    each."""
    hidden = 500
    u, R, h0 = torch.randn(2, 30, 3 * hidden), torch.randn(3 * hidden, hidden), torch.randn(30, hidden)
    bias = torch.randn(3 * hidden)
    h, last = forward("gru", u, R, [h0], bias=bias)
    calls = driver.calls()
    launch = standin.launch_of(calls[-1])
    assert launch.symbol == "ClusterForwardKernel_Gru_float_512"
    # Shared memory: 18 of 48 pieces of each thread's weights, as 30 are in registers; 4 sequences of each group, twice;
    # barriers; the bias; and the state that waits: length and h.
    shared_bytes = 18 * 256 * 16 + 2 * 2 * 4 * 512 * 4 + 32 + 3 * 32 * 4 + 2 * 256 * 4
    assert shape(launch) == (96, 256, shared_bytes, 16, False)
    assert settings(calls) == [(launch.symbol, 8, shared_bytes), (launch.symbol, 14, 1)]
    assert read(problems.ClusterForward, launch.parameter) == {
        "call": {
            "sequence": sequence(2, 30, hidden), "u": at(u), "R": at(R), "bias": at(bias), "params": eight(),
            "state": eight(at(h0)), "h": at(h), "final_state": eight(at(last)), "cells": eight(), "saved": 0,
        },
        "columns": 5,
    }  # fmt: skip


def test_a_grid(driver):
    """1,040 units, 16 for each of 65 blocks; two groups of blocks, each with at most 8 of 12 sequences."""
    hidden = 1040
    u, R = torch.randn(3, 12, hidden, dtype=BF16), torch.randn(hidden, hidden, dtype=BF16)
    h0, own = torch.randn(12, hidden, dtype=BF16), torch.randn(hidden, dtype=BF16)
    h, last = forward("modrelu", u, R, [h0], params=[own])
    calls = driver.calls()
    launch = standin.launch_of(calls[-1])
    assert launch.symbol == "GridForwardKernel_ModRelu_bfloat16"
    # Shared memory: sums of 8 warps and 4 pairs of columns, 16 + 4 units each, twice; the state of 16 units; lengths.
    shared_bytes = 2 * 8 * 4 * 20 * 2 * 4 + 8 * 16 * 4 + 8 * 4
    assert shape(launch) == (130, 256, shared_bytes, 1, True)
    assert ["cuOccupancyMaxActiveBlocksPerMultiprocessor", launch.symbol, 256, shared_bytes] in calls
    assert read(problems.GridForward, launch.parameter) == {
        "call": {
            "sequence": sequence(3, 12, hidden), "u": at(u), "R": at(R), "bias": 0, "params": eight(at(own)),
            "state": eight(at(h0)), "h": at(h), "final_state": eight(at(last)), "cells": eight(), "saved": 0,
        },
        "members": 65, "groups": 2, "sets": 1, "words": Somewhere(),
    }  # fmt: skip


def test_stepwise_with_noise(driver):
    """The dropout mask, the masked initial state, and then a kernel after each step's product; the backward pass starts
    with the last step."""
    steps, batch, hidden = 2, 60, 10
    u, R = torch.randn(steps, batch, 4 * hidden), torch.randn(4 * hidden, hidden)
    h0, c0 = torch.randn(2, batch, hidden)
    reset, seed = torch.zeros(steps, batch, dtype=torch.bool), torch.tensor([7])
    h, last_h, last_c, cells, saved = forward(
        "lstm", u, R, [h0, c0], reset=reset, reverse=True, training=True, zoneout=[0.25, 0.5], dropout=0.75, seed=seed
    )  # fmt: skip
    mask, x, r = Somewhere(), Somewhere(), Somewhere()
    draw, drop, *each = driver.launches()
    assert (draw.symbol, shape(draw)) == ("MaskKernel_float", (3, 256, 0, 1, False))  # 600 elements
    assert read(problems.Mask, draw.parameter) == {
        "batch": batch, "hidden": hidden, "below": 3 << 30, "scale": 4.0, "seed": at(seed), "mask": mask
    }  # fmt: skip
    assert (drop.symbol, shape(drop)) == ("DropKernel_float", (3, 256, 0, 1, False))
    assert read(problems.Drop, drop.parameter) == {
        "sequence": sequence(1, batch, hidden), "first": 0, "rows": batch, "mask": mask, "source": at(h0), "to": x
    }  # fmt: skip
    for t, launch in zip((1, 0), each, strict=True):
        assert (launch.symbol, shape(launch)) == ("StepForwardKernel_Lstm_float_true", (3, 256, 0, 1, False))
        state = eight(at(last_h), at(last_c))  # read and written at every step
        assert read(problems.StepForward, launch.parameter) == {
            "rows": batch, "hidden": hidden, "heads": 1, "u": at(u, t * batch * 40), "r": r, "bias": 0,
            "params": eight(), "reset": at(reset, t * batch), "state": state, "previous": 0, "next": state,
            "h": at(h, t * batch * hidden), "x": x, "cells": eight(0, at(cells, t * batch * hidden)),
            "saved": at(saved, t * batch * 40), "operand": 0, "operand_by_head": False, "candidates": 0,
            "noise": {
                "zoneout": [0.25, 0.5, *[0] * 6], "below": [1 << 30, 1 << 31, *[0] * 6], "seed": at(seed), "t": t,
                "mask": mask,
            },
        }  # fmt: skip
    for place in (mask, x, r):
        place.one()


def relevancy(cell, hidden, batch=3, steps=3):
    """A call that starts with two events in a buffer of four and two relevant events; its tensors by name."""
    gates, states = (4, 2) if cell == "lstm" else (1, 1)
    found = {
        "u": torch.randn(steps, batch, gates * hidden), "V": torch.randn(gates * hidden, hidden),
        "W_a": torch.randn(hidden, hidden), "U_a": torch.randn(hidden, hidden), "v": torch.randn(hidden),
        **{name: torch.randn(batch, hidden) for name in "sc"[:states]}, "buffer": torch.randn(batch, 2, hidden),
        "buffer_scores": torch.randn(batch, 2), "buffer_ids": torch.zeros(batch, 2, dtype=torch.long),
        "relevant": torch.randn(batch, 2, hidden), "scores": torch.randn(batch, 2),
        "ids": torch.zeros(batch, 2, dtype=torch.long), "time": torch.full((batch,), 2),
    }  # fmt: skip
    names = list(found)
    results = torch.ops.rnnkern_stub.relevancy_recurrence(
        cell, found["u"], [found[name] for name in names[1:5]], [found[name] for name in names[5:]], None, None, None,
        None, 4, 0.25, True, "float32", True, False,
    )  # fmt: skip
    kept = ["alpha", "taken", *(["gates", "cells"] if states > 1 else [])]
    names = ["h", "s_of_steps", *(f"last_{name}" for name in names[5:]), *kept]
    return found, dict(zip(names, results, strict=True))


def memory_of(made, keys=0, relevant_keys=0):
    places = {name: at(made[f"last_{name}"]) for name in
              ("buffer", "buffer_scores", "buffer_ids", "relevant", "scores", "ids", "time")}  # fmt: skip
    return {"slots": 4, "relevant_size": 2, "buffer_size": 4, "keys": keys, "relevant_keys": relevant_keys, **places}


def assert_remembers(launch, given, memory, batch, hidden):
    assert (launch.symbol, shape(launch)) == (
        "relevancy_RememberKernel_float", (-(-batch * 6 * hidden // 256), 256, 0, 1, False)
    )  # fmt: skip
    names = ("buffer", "buffer_scores", "relevant", "scores", "buffer_ids", "ids")
    assert read(problems.Remember, launch.parameter) == {
        "batch": batch, "hidden": hidden, "slots": 2, **{name: at(given[name]) for name in names}, "to": memory
    }  # fmt: skip


def test_a_block_for_each_sample(driver):
    """An LSTM with 100 units and packed weights: 16 blocks of 4 KB of each of six matrices."""
    given, made = relevancy("lstm", 100)
    calls = driver.calls()
    remember, pack, loop = (standin.launch_of(call) for call in calls if call[0] == "cuLaunchKernelEx")
    assert_remembers(remember, given, memory_of(made), 3, 100)
    packed = Somewhere()
    weights = {name: at(given[name]) for name in ("V", "W_a", "U_a")}
    assert (pack.symbol, shape(pack)) == ("relevancy_PackKernel_128_float", (96, 256, 0, 1, False))
    assert read(problems.Pack, pack.parameter) == {
        "n": 100, "transposed": False, **weights, "gates": 4, "to": packed
    }  # fmt: skip
    assert loop.symbol == "relevancy_PerSequenceForwardKernel_Lstm_128_float"
    # Shared memory: scores, weights, ids and slots of six events; their values and keys; four vectors; 46 pieces of
    # weights.
    shared_bytes = 3 * 32 + 48 + 32 + 16 + 2 * 6 * 128 * 4 + 4 * 128 * 4 + 46 * 4096
    assert shape(loop) == (3, 256, shared_bytes, 1, False)
    assert settings(calls) == [(loop.symbol, 8, shared_bytes)]
    assert read(problems.PerSequenceForward, loop.parameter) == {
        "rows": {"count": 3, "batch": 3, "hidden": 100, "offsets": 0, "lengths": 0, "reset": 0},
        "memory": memory_of(made), "u": at(given["u"]), **weights, "v": at(given["v"]), "params": 0, "given": 0,
        "mix": 0.25, "dot": True, "packed": packed, "last_s": at(made["last_s"]), "last_c": at(made["last_c"]),
        "h": at(made["h"]), "s": at(made["s_of_steps"]), "alpha": at(made["alpha"]), "ids": 0,
        "taken": at(made["taken"]), "gates": at(made["gates"]), "cells": at(made["cells"]),
    }  # fmt: skip
    packed.one()


def test_attention_step_by_step(driver, monkeypatch):
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "stepwise")
    hidden = 200
    given, made = relevancy("tanh", hidden)
    remember, *each = driver.launches()
    keys, relevant_keys, now, r, key = (Somewhere() for _ in range(5))
    memory = memory_of(made, keys, relevant_keys)
    assert_remembers(remember, given, memory, 3, hidden)
    assert len(each) == 6
    for t, (cell, attend) in enumerate(zip(each[::2], each[1::2], strict=True)):
        assert (cell.symbol, shape(cell)) == ("relevancy_CellForwardKernel_Tanh_float", (3, 256, 0, 1, False))
        assert read(problems.CellForward, cell.parameter) == {
            "rows": 3, "hidden": hidden, "u": at(given["u"], t * 600), "r": r, "params": 0, "reset": 0, "c": 0,
            "h": at(made["h"], t * 600), "now": now, "gates": 0, "cells": 0,
        }  # fmt: skip
        assert attend.symbol == "relevancy_StepwiseAttentionForwardKernel_float"
        assert shape(attend) == (3, 256, 32 + 2 * 8 * 128 * 4 + 16, 1, False)  # sums of warps, also by columns; a slot
        assert read(problems.StepwiseAttentionForward, attend.parameter) == {
            "rows": 3, "hidden": hidden, "products": 400, "memory": memory, "h": now, "key": key, "r": r,
            "v": at(given["v"]), "reset": 0, "given": 0, "mix": 0.25, "dot": True, "state": at(made["last_s"]),
            "s": at(made["s_of_steps"], t * 600), "alpha": at(made["alpha"], t * 18), "ids": 0,
            "taken": at(made["taken"], t * 3),
        }  # fmt: skip
    for place in (keys, relevant_keys, now, r, key):
        place.one()


def test_rotations(driver):
    """Three layers over 100 numbers, 4 per lane: 64 pairs per layer, forward and backward."""
    steps, batch, size = 2, 5, 100
    u, angles, bias = torch.randn(steps, batch, size), torch.randn(3, size // 2), torch.randn(size)
    h0, grad_h = torch.randn(batch, size), torch.randn(steps, batch, size)
    h, last = torch.ops.rnnkern_stub.givens_recurrence(u, angles, None, None, bias, h0, None, None, True, False)
    turn, loop = driver.launches()
    turns = Somewhere()
    packing = {"count": 1, "vectors": batch, "size": size, "layers": 3, "columns": False, "butterfly": False, "each": 4,
               "is_complex": False}  # fmt: skip

    def assert_turns(launch):
        assert (launch.symbol, shape(launch)) == ("givens_TurnKernel_float", (1, 256, 0, 1, False))
        assert read(problems.Turns, launch.parameter) == {
            "packing": packing, "cosines": [Somewhere(), 0, 0], "sines": [Somewhere(), 0, 0], "turns": turns
        }  # fmt: skip

    assert_turns(turn)
    told = {
        "packing": packing,
        "sequences": {
            "steps": steps, "batch": batch, "reals": size, "rows": 0, "lengths": 0, "reset": 0, "reverse": True
        },
        "stages": 2, "last_stage": 0, "turns": turns, "bias": at(bias), "u": at(u), "h0": at(h0),
    }  # fmt: skip
    assert loop.symbol == "givens_ForwardKernel_float_1_4"
    assert shape(loop) == (batch, 32, (4 + 1 + 1) * 160 * 4, 1, False)  # rows of 4 steps, one to write, the bias
    assert read(problems.GivensForward, loop.parameter) == {**told, "h": at(h), "last": at(last)}
    turns.one()

    turns = told["turns"] = Somewhere()
    du, dangles, dbias, dh0 = torch.ops.rnnkern_stub.givens_recurrence_backward(
        grad_h, None, u, angles, None, None, bias, h0, h, None, None, True, False
    )  # fmt: skip
    turn, loop, add = driver.launches()
    assert_turns(turn)
    sums = Somewhere()
    assert loop.symbol == "givens_BackwardKernel_float_1_4"
    # Shared memory: three rows per step, one to write, and the bias; and the sums of 3 * 64 angles and 128 numbers.
    assert shape(loop) == (batch, 32, (3 * 4 + 1 + 1) * 160 * 4 + 320 * 4, 1, False)
    assert read(problems.GivensBackward, loop.parameter) == {
        **told, "h": at(h), "grad_h": at(grad_h), "grad_last": 0, "grad_u": at(du), "grad_h0": at(dh0), "sums": sums,
        "on_chip": True,
    }  # fmt: skip
    assert (add.symbol, shape(add)) == ("givens_SumKernel_float", (2, 256, 0, 1, False))
    assert read(problems.Sums, add.parameter) == {
        "packing": packing, "parts": batch, "sums": sums, "to": [at(dangles), 0, 0, at(dbias)]
    }  # fmt: skip
    sums.one()
