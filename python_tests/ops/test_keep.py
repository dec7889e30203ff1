"""What `keep`, the weight of the old state, promises besides the tables of the recurrence, which have it as an option.

For every cell its two ends to the bit; its errors; and calls that no table has."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import grad, jvp, vmap

from python_tests.samples import assert_same_bits, check_recurrence, outputs_and_gradients, recurrence_sample, takes
from rnnkern import cells, reference, use
from rnnkern._extension import PerformanceWarning
from rnnkern.ops import dispatch, explain, recurrence, recurrence_tangent
from rnnkern.ops._recurrence.facts import KERNEL_CELLS, saved_by

F64 = torch.float64
CELLS = [cell for cell in KERNEL_CELLS if takes(cell, {"keep"})]
FLOATS = [torch.float32, F64, torch.bfloat16, torch.float16]
EVERYTHING = {"packed": True, "reset": True, "reverse": True, "inputs": 3}
T, B, H = 7, 5, 18
ONES = torch.ones(T, B, dtype=F64)


def with_options(sample, **options):
    """Results and gradients of a sample's call with other options."""
    return outputs_and_gradients(recurrence, sample._replace(kwargs=sample.kwargs | options))


def weights(value, dtype, sizes=2):
    return torch.full((T, B)[:sizes], value, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_zero_is_the_plain_call_and_a_constant_is_the_mean_of_zoneout(cell, dtype):
    """In 16 bits, cells that save nothing else save h before it is rounded, so their gradients are closer."""
    rounded = dtype.itemsize == 2 and not saved_by(cell)
    for options in ({}, EVERYTHING):
        sample = recurrence_sample(cell, T, B, H, **options, dtype=dtype, requires_grad=True)
        plain, mean = with_options(sample), with_options(sample, zoneout=0.25)
        plain = {name: x for name, x in plain.items() if not (rounded and name.startswith("grad"))}
        for sizes in (1, 2):
            assert_same_bits(plain, with_options(sample, keep=weights(0, dtype, sizes)))
            assert_same_bits(with_options(sample, keep=weights(0.25, dtype, sizes)), mean)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_one_leaves_the_initial_state_also_where_the_step_has_no_finite_value(cell, dtype):
    sample = recurrence_sample(cell, T, B, H, dtype=dtype, requires_grad=True)
    state = sample.args[3]
    found = with_options(sample, keep=weights(1, dtype))
    assert torch.equal(found["h"], state[0].expand(T, -1, -1))
    assert all(torch.equal(found[f"final state[{k}]"], s) for k, s in enumerate(state))
    others = [name for name in found if name.startswith("grad of") and "state" not in name]
    assert not any(found[name].any() for name in others)
    name, u, R, state = sample.args
    nowhere = torch.full_like(u, torch.nan)
    for op in (recurrence, reference.recurrence):
        h, final = op(name, nowhere, R, state, **sample.kwargs, keep=weights(1, dtype))
        assert torch.equal(h, found["h"])
        assert all(map(torch.equal, final, state))


@pytest.mark.parametrize("cell", [cells.leaky, cells.cornn], ids=lambda cell: cell.__name__)
def test_cells_that_rnnkern_compiled(cell):
    """One that saves nothing, and one with a momentum."""
    check_recurrence(recurrence, [recurrence_sample(cell.name, T, B, H, keep=2, requires_grad=True)])


def test_members_with_their_own_weights_of_the_old_state():
    _, u, R, (h0,) = recurrence_sample("tanh", T, B, H).args
    members = torch.rand(3, *u.shape, dtype=F64)
    one = lambda u, keep: recurrence("tanh", u, R, (h0,), keep=keep)[0]  # noqa: E731
    gradient = grad(lambda u, keep: one(u, keep).square().sum())
    for keep in (torch.rand(3, T, B, dtype=F64), torch.rand(3, T, dtype=F64)):
        for function in (one, gradient):
            wanted = torch.stack([function(*member) for member in zip(members, keep.detach(), strict=True)])
            torch.testing.assert_close(vmap(function)(members, keep), wanted)


def test_compiled():
    sample = recurrence_sample("gru", T, B, H, keep=2, requires_grad=True)
    compiled = torch.compile(recurrence, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outputs_and_gradients(compiled, sample), outputs_and_gradients(recurrence, sample))


SHAPE = r"`keep` must be \(T,\) = \(7,\) or \(T, B\) = \(7, 5\), got "


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"keep": 0.5}, TypeError, "`keep` must be a tensor, got float"),
        ({"keep": ONES.float()}, TypeError, "`keep` must be of dtype torch.float64 like `u`, got torch.float32"),
        ({"keep": ONES.to("meta")}, TypeError, "`keep` must be on cpu like `u`, got meta"),
        ({"keep": ONES[1:]}, ValueError, SHAPE + r"\(6, 5\)"),
        ({"keep": ONES[:, :1]}, ValueError, SHAPE + r"\(7, 1\)"),
        ({"keep": -0.5 * ONES}, ValueError, r"`keep` must be in \[0, 1\], got -0.5"),
        ({"keep": 1.5 * ONES}, ValueError, r"`keep` must be in \[0, 1\], got 1.5"),
        ({"keep": ONES * torch.nan}, ValueError, r"`keep` must be in \[0, 1\], got nan"),
        ({"keep": ONES, "zoneout": 0.1}, ValueError, "`keep` and `zoneout` exclude each other: .*, got 0.1"),
    ],
)
def test_errors_name_the_argument(options, error, said):
    _, u, R, state = recurrence_sample("tanh", T, B, H).args
    tangents = tuple(s[None] for s in state)
    for face in (
        lambda: recurrence("tanh", u, R, state, **options),
        lambda: explain(recurrence, "tanh", u, R, state, **options),
        lambda: recurrence_tangent("tanh", u, R, state, tangents, **options),
    ):
        with pytest.raises(error, match=f"recurrence: {said}"):
            face()


@pytest.mark.parametrize("cell", [cells.lstm_layer_norm, cells.gru_layer_norm, cells.adams, cells.heavy_ball])
def test_cells_that_refuse_it(cell):
    """Those with norms, and methods for steps of equal length."""
    facts = reference._recurrence.cell_of(cell.name)
    u, R, state = torch.zeros(T, B, facts.gates * H), torch.zeros(facts.recurrent * H, H), torch.zeros(B, H)
    params = [torch.ones(n * H) for n in facts.rows]
    with pytest.raises(ValueError, match=r"`keep` must be None for the cell '.*', which (has norms|is a method)"):
        recurrence(cell, u, R, (state,) * facts.states, params=params, keep=ONES.float())


def test_it_has_no_derivative():
    _, u, R, state = recurrence_sample("tanh", T, B, H).args
    call = lambda keep: recurrence("tanh", u, R, state, keep=keep)[0].sum()  # noqa: E731
    with pytest.raises(ValueError, match="`keep` is a constant and must not require a gradient"):
        grad(call)(0.5 * ONES)
    with pytest.raises(ValueError, match="`keep` is a constant and must not have a tangent"):
        jvp(call, (0.5 * ONES,), (ONES,))


def test_on_a_gpu_the_reference_serves_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(dispatch, "_said", set())
    with FakeTensorMode():
        u, R, h0, keep = (torch.empty(shape, device="cuda") for shape in ((T, B, H), (H, H), (B, H), (T, B)))
        assert explain(recurrence, "tanh", u, R, (h0,)).implementation == "cuda"
        implementation, reason = explain(recurrence, "tanh", u, R, (h0,), keep=keep)
        assert implementation == "reference"
        assert "no cuda: `keep` has no CUDA kernel" in reason
        with use("cuda"), pytest.raises(ValueError, match="cannot serve this call: `keep` has no CUDA kernel"):
            recurrence("tanh", u, R, (h0,), keep=keep)
        monkeypatch.setattr(reference, "recurrence", lambda *_, **given: given["keep"])  # would need a device
        with pytest.warns(PerformanceWarning, match="`keep` has no CUDA kernel"):
            assert recurrence("tanh", u, R, (h0,), keep=keep) is keep
