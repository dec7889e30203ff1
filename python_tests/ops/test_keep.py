"""`keep`, the weight of the old state at each step. Other tests compare kernels with the reference, with samples that
have it; here are its facts, its errors, and calls that no sample has."""

import itertools
from functools import partial

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import grad, jvp, vmap
from torch.utils._pytree import tree_leaves

from python_tests.gpu.recurrences import KINKS, off_kinks
from python_tests.ops.test_recurrence_tangent import results as tangents
from python_tests.ops.test_transforms import FORWARD_MODE, TRANSFORMS, Call
from python_tests.samples import agree, check_recurrence, draws, outputs_and_gradients, recurrence_sample, takes
from python_tests.samples.tangents import tangent_sample
from python_tests.tiers import each_level
from rnnkern import cells, reference
from rnnkern._extension import PerformanceWarning
from rnnkern.ops import explain, recurrence, recurrence_bidirectional, recurrence_tangent, slow_path, use
from rnnkern.ops._recurrence.facts import KERNEL_CELLS, saved_by
from rnnkern.testing import saved_bytes

F64 = torch.float64
CELLS = [cell for cell in KERNEL_CELLS if takes(cell, {"keep"})]
FLOATS = [torch.float32, F64, torch.bfloat16, torch.float16]
EVERYTHING = {"packed": True, "reset": True, "reverse": True, "inputs": 3}
T, B, H = 7, 5, 18


def with_options(sample, **options):
    """Results and gradients of a sample's call with other options."""
    return outputs_and_gradients(recurrence, sample._replace(kwargs=sample.kwargs | options))


def assert_same_bits(one, other):
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


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


@each_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_is_as_close_to_the_truth_as_plain_pytorch(cell, dtype, level, simd):
    simd(level)
    for batch, hidden, options in ((3, 33, {"keep": 1}), (17, 128, {"keep": 2, "packed": True, "reset": True})):
        samples = draws(recurrence_sample, cell, 9, batch, hidden, **options, dtype=dtype, requires_grad=True)
        check_recurrence(recurrence, map(off_kinks, samples))


@pytest.mark.parametrize("cell", CELLS)
def test_halves_and_threads_have_the_bits_of_the_whole(cell, threads):
    sample = recurrence_sample(cell, 8, 40, 48, keep=2, dtype=torch.float32, requires_grad=True)
    name, u, R, state = sample.args
    kwargs = {k: v for k, v in sample.kwargs.items() if k != "keep"}
    keep, results = sample.kwargs["keep"], []
    for number in (1, 2, 3):
        threads(number)
        results.append(outputs_and_gradients(recurrence, sample))
        first, between = recurrence(name, u[:3], R, state, **kwargs, keep=keep[:3])
        second, final = recurrence(name, u[3:], R, between, **kwargs, keep=keep[3:])
        assert torch.equal(torch.cat([first, second]), results[-1]["h"])
        assert all(torch.equal(s, results[-1][f"final state[{k}]"]) for k, s in enumerate(final))
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in ("h", "grad of u", "grad of state[0]"))


def test_a_step_of_its_own_for_each_sequence_of_euler():
    """1 - d with dt = 1 is dt = d."""
    _, u, R, (h0,) = recurrence_sample("euler", 1, B, H).args
    d = torch.rand(B, dtype=F64)
    one = torch.ones(H, dtype=F64)
    h, _ = recurrence("euler", u, R, (h0,), params=(one,), keep=(1 - d)[None])
    for b in range(B):
        wanted, _ = recurrence("euler", u[:, b : b + 1], R, (h0[b : b + 1],), params=(d[b] * one,))
        torch.testing.assert_close(h[:, b : b + 1], wanted, rtol=1e-15, atol=1e-15)


def test_two_half_gaps_of_a_linear_field_are_one():
    """The exponential step of tau h' = u - h."""
    u, h0, gaps = torch.randn(4, B, H, dtype=F64), torch.randn(B, H, dtype=F64), torch.rand(4, B, dtype=F64)
    R, tau = torch.zeros(H, H, dtype=F64), 0.7
    whole, _ = recurrence("identity", u, R, (h0,), keep=torch.exp(-gaps / tau))
    twice = [x.repeat_interleave(2, 0) for x in (u, gaps / 2)]
    halves, _ = recurrence("identity", twice[0], R, (h0,), keep=torch.exp(-twice[1] / tau))
    torch.testing.assert_close(halves[1::2], whole, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("cell", ["mgu", "peephole_lstm", "leaky", "cornn", "gru_reset_before"])
def test_cells_that_rnnkern_compiled(cell):
    """Also one that saves nothing, and one with a momentum."""
    cell = getattr(cells, cell, None) or cell
    gates = getattr(cell, "gates", "rzn")
    draw = lambda *shape: torch.randn(*shape, dtype=F64, requires_grad=True)  # noqa: E731
    keep = (1.5 * torch.rand(T, B, dtype=F64) - 0.25).clamp(0, 1)
    facts = reference._recurrence.cell_of(getattr(cell, "name", cell))
    u, R, state = draw(T, B, facts.gates * H), draw(facts.recurrent * H, H), [draw(B, H) for _ in range(facts.states)]
    params = [torch.rand(H, dtype=F64, requires_grad=True) for _ in facts.params]
    assert len(gates) == facts.gates
    results = []
    for op in (recurrence, reference.recurrence):
        h, final = op(getattr(cell, "name", cell), u, R, state, params=params, keep=keep)
        loss = h.sin().sum() + sum(s.cos().sum() for s in final)
        results.append((h, *final, *torch.autograd.grad(loss, [u, R, *state, *params])))
    for actual, wanted in zip(*results, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-12)


def test_complex_numbers():
    sample = recurrence_sample("modrelu", T, B, H, keep=2)
    name, u, R, (h0,) = sample.args
    kwargs = sample.kwargs | {"bias": sample.kwargs["bias"] * 1j}
    u, R, h0 = u + 1j * u.flip(0), R - 1j * R.mT, h0 * (1 + 1j)
    torch.testing.assert_close(
        recurrence(name, u, R, (h0,), **kwargs), reference.recurrence(name, u, R, (h0,), **kwargs)
    )


def test_members_with_their_own_weights_of_the_old_state():
    _, u, R, (h0,) = recurrence_sample("tanh", T, B, H).args
    members = torch.rand(3, *u.shape, dtype=F64)
    one = lambda u, keep: recurrence("tanh", u, R, (h0,), keep=keep)[0]  # noqa: E731
    gradient = grad(lambda u, keep: one(u, keep).square().sum())
    for keep in (torch.rand(3, T, B, dtype=F64), torch.rand(3, T, dtype=F64)):
        for function in (one, gradient):
            wanted = torch.stack([function(*member) for member in zip(members, keep.detach(), strict=True)])
            torch.testing.assert_close(vmap(function)(members, keep), wanted)


TRANSFORMED = list(zip([*TRANSFORMS.items(), *FORWARD_MODE.items()], itertools.cycle(CELLS), strict=False))


@pytest.mark.parametrize(("transform", "cell"), TRANSFORMED, ids=lambda x: x if isinstance(x, str) else x[0])
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's, in linearize
def test_a_transform_of_the_kernel_is_that_of_the_reference(transform, cell):
    for options in ({"keep": 1}, {"keep": 2, "packed": True, "reset": True, "inputs": 3}):
        sample = recurrence_sample(cell, 3, 3, 6, **options)
        results = (transform[1](Call(op, sample)) for op in (recurrence, reference.recurrence))
        for actual, wanted in zip(*map(tree_leaves, results), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell not in KINKS])
def test_tangents_are_as_close_to_the_truth_as_plain_pytorch(cell, dtype):
    samples = draws(tangent_sample, cell, 9, 5, 33, keep=2, packed=True, dtype=dtype)
    agree(recurrence_tangent, reference.recurrence_tangent, tangents, samples)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend):
    torch.compiler.reset()
    sample = recurrence_sample("gru", T, B, H, keep=2, requires_grad=True)
    wanted = outputs_and_gradients(recurrence, sample)
    actual = outputs_and_gradients(torch.compile(recurrence, fullgraph=True, backend=backend), sample)
    for name, value in wanted.items():
        torch.testing.assert_close(actual[name], value, msg=name)


def test_exported_with_any_length_and_batch():
    class Model(torch.nn.Module):
        def forward(self, u, R, h0, keep):
            return recurrence("tanh", u, R, (h0,), keep=keep)[0]

    def arguments(steps, batch):
        return torch.randn(steps, batch, 3), torch.randn(3, 3), torch.randn(batch, 3), torch.rand(steps, batch)

    steps, batch = torch.export.Dim("T", min=0), torch.export.Dim("B", min=0)
    shapes = {0: steps, 1: batch}, None, {0: batch}, {0: steps, 1: batch}
    program = torch.export.export(Model(), arguments(5, 4), dynamic_shapes=shapes).module()
    for sizes in ((9, 2), (0, 3), (2, 0)):
        args = arguments(*sizes)
        torch.testing.assert_close(program(*args), Model()(*args))


def test_what_the_backward_needs_more():
    """h before the mean, of cells that save nothing else; `keep` itself."""
    for cell, more in (("tanh", H), ("gru", 0)):
        sample = recurrence_sample(cell, T, B, H, requires_grad=True)
        call = partial(recurrence, *sample.args, **sample.kwargs)
        kept = saved_bytes(partial(call, keep=torch.rand(T, B, dtype=F64)))
        assert kept - saved_bytes(call) == 8 * T * B * (more + 1), cell


def test_two_directions_are_two_calls():
    x, h0 = torch.randn(T, B, 4), torch.zeros(B, 3)
    one, other = ({"weight_ih": torch.randn(9, 4), "R": torch.randn(9, 3), "state": (h0,)} for _ in range(2))
    one["keep"] = torch.rand(T, B)
    (h, _), (h_reverse, _) = recurrence_bidirectional("gru", x, one, other)
    assert torch.equal(h, recurrence("gru", x, **one)[0])
    assert torch.equal(h_reverse, recurrence("gru", x, **other, reverse=True)[0])


ONES = torch.ones(T, B, dtype=F64)
LEARNED = torch.ones(T, B, dtype=F64, requires_grad=True)
SHAPE = r"`keep` must be \(T,\) = \(7,\) or \(T, B\) = \(7, 5\), got "


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"keep": 0.5}, TypeError, "`keep` must be a tensor, got float"),
        ({"keep": ONES.float()}, TypeError, "`keep` must be of dtype torch.float64 like `u`, got torch.float32"),
        ({"keep": ONES.to("meta")}, TypeError, "`keep` must be on cpu like `u`, got meta"),
        ({"keep": ONES[1:]}, ValueError, SHAPE + r"\(6, 5\)"),
        ({"keep": ONES[:, :1]}, ValueError, SHAPE + r"\(7, 1\)"),
        ({"keep": ONES[0]}, ValueError, SHAPE + r"\(5,\)"),
        ({"keep": -0.5 * ONES}, ValueError, r"`keep` must be in \[0, 1\], got -0.5"),
        ({"keep": 1.5 * ONES}, ValueError, r"`keep` must be in \[0, 1\], got 1.5"),
        ({"keep": ONES * torch.nan}, ValueError, r"`keep` must be in \[0, 1\], got nan"),
        ({"keep": LEARNED}, ValueError, r"`keep` is a constant and must not require a gradient; pass keep\.detach\(\)"),
        ({"keep": ONES, "zoneout": 0.1}, ValueError, "`keep` and `zoneout` exclude each other: .*, got 0.1"),
        ({"keep": ONES, "zoneout": (0.1,)}, ValueError, r"`keep` and `zoneout` exclude each other: .*, got \(0.1,\)"),
    ],
)
def test_errors_name_the_argument(options, error, said):
    _, u, R, state = recurrence_sample("tanh", T, B, H).args
    tangents = tuple(s[None] for s in state)
    for call in (
        lambda: recurrence("tanh", u, R, state, **options),
        lambda: explain(recurrence, "tanh", u, R, state, **options),
        lambda: recurrence_tangent("tanh", u, R, state, tangents, **options),
    ):
        with pytest.raises(error, match=f"recurrence: {said}"):
            call()


@pytest.mark.parametrize("cell", ["lstm_layer_norm", "gru_layer_norm"])
def test_cells_with_norms_are_refused(cell):
    sample = recurrence_sample(cell, T, B, H)
    with pytest.raises(ValueError, match=f"`keep` must be None for the cell '{cell}', which normalizes R h"):
        recurrence(*sample.args, **sample.kwargs, keep=ONES)


@pytest.mark.parametrize("cell", [cells.adams, cells.heavy_ball, cells.heavy_ball_tanh], ids=lambda c: c.__name__)
def test_methods_for_equal_steps_are_refused(cell):
    u, R, zeros = torch.zeros(T, B, H, dtype=F64), torch.zeros(H, H, dtype=F64), torch.zeros(B, H, dtype=F64)
    params = [torch.ones(H, dtype=F64) for _ in cell.params]
    with pytest.raises(
        ValueError, match=f"`keep` must be None for the cell '{cell.name}', which is a method for steps"
    ):
        recurrence(cell, u, R, (zeros, zeros), params=params, keep=ONES)


def test_it_has_no_derivative():
    _, u, R, state = recurrence_sample("tanh", T, B, H).args
    call = lambda keep: recurrence("tanh", u, R, state, keep=keep)[0].sum()  # noqa: E731
    with pytest.raises(ValueError, match="`keep` is a constant and must not require a gradient"):
        grad(call)(0.5 * ONES)
    with pytest.raises(ValueError, match="`keep` is a constant and must not have a tangent"):
        jvp(call, (0.5 * ONES,), (ONES,))


def test_on_a_gpu_the_reference_serves_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(slow_path, "_said", set())
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
