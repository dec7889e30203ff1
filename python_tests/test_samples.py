"""Tests of the sample calls and of the covering arrays."""

import itertools

import pytest
import torch

from python_tests.samples import RECURRENCE_OPTIONS, covering_rows, recurrence_sample, recurrence_samples
from rnnkern import reference
from rnnkern.reference import CELLS

T, B, H = 5, 3, 6
DENSE = {"lstm_projected", "lstm_layer_norm", "gru_layer_norm"}
"""Cells that do not support heads."""


@pytest.mark.parametrize("options", RECURRENCE_OPTIONS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_samples_have_the_shapes_that_the_operator_documents(cell, options):
    options = RECURRENCE_OPTIONS[options]
    if ("heads" in options and cell in DENSE) or ("keep" in options and "layer_norm" in cell):
        return
    _, (name, u, R, state), kwargs = recurrence_sample(cell, T, B, H, **options)
    gates, states, params = CELLS[cell].gates, CELLS[cell].states, CELLS[cell].params
    P = H // 2 if cell == "lstm_projected" else H
    d = H // options.get("heads", 1)
    sizes = kwargs["batch_sizes"]
    assert name == cell
    columns = options.get("inputs", gates * H)
    if options.get("packed"):
        assert sizes.dtype == torch.int64
        assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)
        assert (sizes.numel(), sizes[0].item(), sizes[-1].item()) == (T, B, 1)
        assert u.shape == (sizes.sum(), columns)
    else:
        assert sizes is None
        assert u.shape == (T, B, columns)
    assert R.shape == ((gates * H, P) if d == H else (H // d, gates * d, d))
    assert [s.shape for s in state] == [(B, P), (B, H)][:states]
    assert (kwargs["bias"] is None) == (options.get("bias") is False)
    assert kwargs["bias"] is None or kwargs["bias"].shape == (gates * H,)
    sizes_of = {"weight_hr": (P, H), "weight_ln_hh": (gates * H,)}
    assert [p.shape for p in kwargs["params"]] == [sizes_of.get(name, (H,)) for name in params]
    assert ("reset" in kwargs) == options.get("reset", False)
    assert "reset" not in kwargs or (kwargs["reset"].dtype, kwargs["reset"].shape) == (torch.bool, (T, B))
    assert ("grad_scale" in kwargs) == ("grad_scale" in options)
    assert "grad_scale" not in kwargs or kwargs["grad_scale"].shape == (T, B)[: options["grad_scale"]]
    assert ("keep" in kwargs) == ("keep" in options)
    assert "keep" not in kwargs or kwargs["keep"].shape == (T, B)[: options["keep"]]
    assert kwargs["reverse"] == options.get("reverse", False)
    assert ("weight_ih" in kwargs) == ("inputs" in options)
    assert "inputs" not in options or kwargs["weight_ih"].shape == (gates * H, columns)
    zoneout, dropout = options.get("zoneout", 0.0), options.get("dropout", 0.0)
    assert kwargs.get("zoneout", (0.0, 0.0)[:states]) == (zoneout, zoneout / 2)[:states]
    assert kwargs.get("dropout", 0.0) == dropout
    assert ("seed" in kwargs) == (zoneout + dropout > 0 and options.get("drawn", True))
    reference.recurrence(name, u, R, state, **kwargs)


def test_every_cell_has_a_sample_of_every_option():
    names = [sample.name for sample in recurrence_samples()]
    assert len(names) == len(set(names))
    wanted = {f"{cell}-{option}" for cell in CELLS for option in RECURRENCE_OPTIONS}
    missing = {f"{cell}-{option}" for cell in DENSE for option in RECURRENCE_OPTIONS if "heads" in option}
    missing |= {name for name in wanted if "layer_norm" in name and "keep" in name}
    assert set(names) == wanted - missing
    sizes = {sample.args[1].shape for sample in recurrence_samples(["tanh"], steps=2, batch=4, hidden=8)}
    assert (2, 4, 8) in sizes


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (3, 0), (0, 0), (1, 1), (1, 17), (63, 3)])
def test_packed_samples_of_awkward_sizes(steps, batch):
    _, (_, u, *_), kwargs = recurrence_sample("tanh", steps, batch, 2, packed=True)
    sizes = kwargs["batch_sizes"].tolist()
    assert len(sizes) == steps
    assert sum(sizes) == u.shape[0]
    assert sizes[:1] == [batch][:steps]
    assert sorted(sizes, reverse=True) == sizes


def test_casting_makes_new_leaves_of_the_same_values():
    sample = recurrence_sample(
        "modrelu", packed=True, reset=True, grad_scale=1, dtype=torch.float32, requires_grad=True
    )
    same, double = sample.to(torch.float32), sample.to(torch.float64, requires_grad=False)
    for x, y, z in zip(sample.leaves(), same.leaves(), double.leaves(), strict=True):
        assert x is not y
        assert torch.equal(x, y)
        assert y.data_ptr() != x.data_ptr()
        assert y.requires_grad
        assert y.is_leaf
        assert z.dtype == torch.float64
        assert torch.equal(x.double(), z)
        assert not z.requires_grad
    assert double.kwargs["grad_scale"].dtype == torch.float64
    assert not same.kwargs["grad_scale"].requires_grad
    assert same.kwargs["batch_sizes"] is sample.kwargs["batch_sizes"]
    assert same.kwargs["reset"] is sample.kwargs["reset"]


# ---- covering arrays


@pytest.mark.parametrize(
    "factors",
    [
        {"a": [1, 2, 3], "b": "xy", "c": [None, True, False, 0.5], "d": ["p", "q"]},
        {"a": [1, 2], "b": [1, 2]},
        {name: list(range(3)) for name in "abcdefgh"},
        {"a": list(range(9)), "b": list(range(5)), "c": [0], "d": [0, 1], "e": [0, 1], "f": [0, 1]},
    ],
)
def test_a_covering_array_covers_every_pair_with_few_rows(factors):
    rows = covering_rows(factors)
    for (a, xs), (b, ys) in itertools.combinations(factors.items(), 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product(xs, ys))
    assert all(list(row) == list(factors) for row in rows)
    assert rows == covering_rows(factors)
    sizes = sorted(map(len, factors.values()), reverse=True)
    assert sizes[0] * sizes[1] <= len(rows) <= 2 * sizes[0] * sizes[1] + 5
    torch.manual_seed(1)
    assert rows == covering_rows(factors)
