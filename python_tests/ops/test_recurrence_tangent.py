"""Tangents of the recurrence, over its table: the kernel against the reference and the backward pass; bits."""

import math

import pytest
import torch
from torch.utils._pytree import tree_map_only

import rnnkern
from python_tests.cells.samples import CELLS
from python_tests.samples import EVERY_CELL, NORMALISED, agree, assert_same_bits, draws
from python_tests.samples.recorded import opcheck, recorded
from python_tests.samples.tangents import DERIVED_ROWS, derived_draws, tangent_sample, with_tangents
from python_tests.tiers import LEVELS, each_level, quick_where
from rnnkern import reference
from rnnkern.ops import explain, recurrence_tangent
from rnnkern.testing import peak_bytes

ROWS = [
    (*row, every)
    for row in DERIVED_ROWS
    if "grad_scale" not in row[1]
    for every in ((0, 2) if row[2] == torch.float64 and "reset" not in row[1] else (0,))
]


def results(op, sample):
    found = op(*sample.args, **sample.kwargs)
    named = {"h": found.h, "h_tangent": found.h_tangent, "log_r": found.log_r}
    groups = {"state": found.state, "tangents": found.tangents}
    return named | {f"{kind}[{k}]": x for kind, group in groups.items() for k, x in enumerate(group)}


@each_level
@pytest.mark.parametrize(
    ("cell", "option", "dtype", "every"),
    quick_where(lambda row: row[2] == torch.float64 or row[1] == "zoneout", ROWS),
    ids=str,
)
@pytest.mark.sampled
def test_it_is_the_references(cell, option, dtype, every, level, simd):
    simd(level)
    samples = (with_tangents(sample, every=every) for sample in derived_draws(cell, option, dtype, 5, 4, 18))
    agree(recurrence_tangent, reference.recurrence_tangent, results, samples)


@pytest.mark.parametrize(
    ("steps", "batch", "hidden", "count"), [(0, 3, 5, 2), (1, 1, 1, 0), (5, 0, 4, 3), (40, 17, 33, 40), (3, 1, 100, 1)]
)
@pytest.mark.parametrize("cell", EVERY_CELL)
def test_awkward_sizes(cell, steps, batch, hidden, count, threads):
    threads(2)
    sample = tangent_sample(cell, steps, batch, hidden, count=count)
    found, wanted = (results(op, sample) for op in (recurrence_tangent, reference.recurrence_tangent))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


OWN = {cell.name: cell for cell in (*CELLS, *map(vars(rnnkern.cells).get, rnnkern.cells.__all__))
       if isinstance(cell, rnnkern.Cell)}  # fmt: skip


@pytest.mark.parametrize("name", quick_where(lambda name: OWN[name].__name__ in ("several", "nas"), sorted(OWN)))
@pytest.mark.drawn
def test_cells_of_users_have_it_too(name):
    agree(recurrence_tangent, reference.recurrence_tangent, results, draws(tangent_sample, name, 4, 2, 5))


def without_gemm(sample):
    """The tangent of weight_hr is multiplied by PyTorch, whose bits depend on the number of rows and of threads."""
    if sample.args[0] == "lstm_projected":
        sample.kwargs["params_tangent"] = None


@pytest.mark.parametrize("cell", EVERY_CELL)
def test_bits_depend_neither_on_threads_nor_on_other_tangents(cell, threads):
    forced = tangent_sample(cell, 9, 2, 24, count=7, dtype=torch.float32, packed=True, reset=True, zoneout=0.2)
    orthonormalized = tangent_sample(cell, 9, 1, 24, count=7, every=2, dtype=torch.float32)
    for sample in (orthonormalized, forced):
        without_gemm(sample)
        threads(2)
        together = results(recurrence_tangent, sample)
        assert_same_bits(together, results(recurrence_tangent, sample))
        threads(1)
        assert_same_bits(together, results(recurrence_tangent, sample))
    (*args, tangents), kwargs = forced.args, dict(forced.kwargs)
    directions = {name: kwargs.pop(name) for name in ("u_tangent", "r_tangent", "bias_tangent", "params_tangent")}
    for s in range(7):
        only, own = tree_map_only(torch.Tensor, lambda x, s=s: x[s : s + 1], (tangents, directions))
        alone = recurrence_tangent(*args, only, **own, **kwargs)
        assert torch.equal(alone.h_tangent[0], together["h_tangent"][s])
        assert all(torch.equal(x[0], together[f"tangents[{k}]"][s]) for k, x in enumerate(alone.tangents))


def identity(sizes, batch=1):
    """Unit vectors as tangents of the state, (n, B, size) for each size."""
    return torch.eye(sum(sizes), dtype=torch.float64).unsqueeze(1).expand(-1, batch, -1).split(sizes, -1)


@pytest.mark.parametrize("cell", EVERY_CELL)
def test_exponents_sum_to_the_determinants_of_the_steps(cell):
    _, (cell, u, R, state, _), kwargs = tangent_sample(cell, 5, 2, 4, forced=False)
    sizes = [s.shape[1] for s in state]
    kwargs = {k: v for k, v in kwargs.items() if k not in ("every", "sequence")}
    logs = recurrence_tangent(cell, u, R, state, identity(sizes, 2), every=1, **kwargs).log_r
    for t in range(5):
        step = recurrence_tangent(cell, u[t : t + 1], R, state, identity(sizes, 2), **kwargs)
        determinants = torch.linalg.slogdet(torch.cat(step.tangents, -1).transpose(0, 1))[1]
        known = ~logs[t].isinf().any(-1)  # otherwise a rank is lost, to rounding
        torch.testing.assert_close(logs[t].sum(-1)[known], determinants[known], rtol=1e-9, atol=1e-9)
        assert (determinants[~known] < -30).all()
        state = step.state


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_orthonormalization_is_that_of_a_qr_decomposition(dtype, level, simd):
    simd(level)
    _, (cell, u, R, state, tangents), kwargs = tangent_sample("lstm", 3, 2, 21, count=11, dtype=dtype, forced=False)
    kwargs |= {"sequence": False}
    free = recurrence_tangent(cell, u, R, state, tangents, **kwargs)
    found = recurrence_tangent(cell, u, R, state, tangents, **(kwargs | {"every": 3}))
    Q, R = torch.linalg.qr(torch.cat(free.tangents, -1).double().permute(1, 2, 0))
    sizes = R.diagonal(dim1=1, dim2=2)
    close = {"rtol": 0, "atol": 2e-5 if dtype == torch.float32 else 1e-11}
    rows = torch.cat(found.tangents, -1).double()
    torch.testing.assert_close(rows, (Q * sizes.sign()[:, None]).permute(2, 0, 1), **close)
    torch.testing.assert_close(found.log_r[0], sizes.abs().log(), **close)


def test_nearly_dependent_tangents_become_orthonormal():
    """One pass of Gram-Schmidt would leave products of 1e-7."""
    Q = torch.randn(1, 1, 12, dtype=torch.float64) + 1e-9 * torch.randn(6, 1, 12, dtype=torch.float64)
    u, h = torch.zeros(1, 1, 12, dtype=torch.float64), torch.zeros(1, 12, dtype=torch.float64)
    R = torch.eye(12, dtype=torch.float64)
    found = recurrence_tangent("identity", u, R, (h,), (Q,), every=1)
    wanted = torch.linalg.qr(Q[:, 0].T).R.diagonal().abs().log()
    torch.testing.assert_close(found.log_r[0, 0], wanted, rtol=0, atol=1e-5)
    rows = found.tangents[0][:, 0]
    torch.testing.assert_close(rows @ rows.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-13)


def test_lost_ranks_are_counted_and_leave_the_other_exponents_right():
    """Of an LSTM at its zero state with zero input, where the Jacobian has rank H: c' = f c + i g with f = i = 1/2 and
    g' = R_g h, h' = c' / 2. The finite exponents sum to ln|det J| of c' by c where h = c / 2, after the first step."""
    R, zeros = torch.randn(24, 6, dtype=torch.float64), torch.zeros(1, 6, dtype=torch.float64)
    u = torch.zeros(4, 1, 24, dtype=torch.float64)
    found = recurrence_tangent("lstm", u, R, (zeros, zeros), identity([6, 6]), every=1)
    lost = found.log_r.isinf()
    assert torch.equal(lost.sum(-1), torch.full((4, 1), 6))
    assert found.lost.sum() == 4 * 6
    wanted = torch.linalg.slogdet(0.5 * torch.eye(6, dtype=torch.float64) + 0.25 * R[12:18])[1]
    finite = found.log_r.masked_fill(lost, 0).sum(-1)[1:, 0]
    torch.testing.assert_close(finite, wanted.expand(3), rtol=1e-9, atol=1e-9)
    Q = torch.cat(found.tangents, -1)[:, 0]
    torch.testing.assert_close(Q @ Q.T, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-13)


def test_after_the_end_of_a_sequence_nothing_grows():
    _, args, kwargs = tangent_sample("gru", 6, 3, 4, packed=True, every=2, forced=False)
    sizes = kwargs["batch_sizes"]
    assert sizes.tolist()[-1] < 3
    found = recurrence_tangent(*args, **kwargs)
    steps = (sizes[None, :] > torch.arange(3)[:, None]).sum(1)
    for b in range(3):
        blocks = -(-int(steps[b]) // 2)
        assert found.log_r[:blocks, b].all()
        assert not found.log_r[blocks:, b].any()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_lengths_neither_overflow_nor_underflow(scale):
    """The squares of these lengths are no float32."""
    _, (cell, u, R, state, tangents), kwargs = tangent_sample(
        "tanh", 2, 1, 8, every=2, dtype=torch.float32, forced=False
    )
    wanted = recurrence_tangent(cell, u, R, state, tangents, **kwargs).log_r
    found = recurrence_tangent(cell, u, R, state, tuple(scale * x for x in tangents), **kwargs).log_r
    torch.testing.assert_close(found, wanted + math.log(scale), rtol=0, atol=1e-4)


def test_nan_and_infinity_are_not_taken_for_lost_ranks():
    _, (cell, u, R, state, tangents), kwargs = tangent_sample("tanh", 2, 1, 8, every=2, forced=False)
    for bad in (math.nan, math.inf):
        tangents[0][1, 0, 3] = bad
        found = recurrence_tangent(cell, u, R, state, tangents, **kwargs)
        assert found.log_r[0, 0, 1].isnan()
        assert not found.lost.any()


@pytest.mark.parametrize("every", [0, 2])
def test_compiled(every):
    sample = tangent_sample("lstm", 5, 4, 3, count=2, every=every)
    compiled = torch.compile(recurrence_tangent, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(results(compiled, sample), results(recurrence_tangent, sample))


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize(
    ("cell", "options"), [("lstm", {"packed": True}), (NORMALISED[0], {}), ("tanh", {"zoneout": 0.2})]
)
def test_opcheck_of_the_operator(cell, options, every):
    sample = tangent_sample(cell, 3, 2, 4, every=every, **options)
    opcheck(lambda: results(recurrence_tangent, sample))


def test_memory_of_the_operator_does_not_depend_on_the_length():
    """Beside the trajectory, which the caller holds."""

    def peak(steps):
        sample = tangent_sample("lstm", steps, 1, 32, count=8, every=10, dtype=torch.float32, forced=False)
        *_, (operator, args) = recorded(lambda: results(recurrence_tangent, sample))
        assert operator._opname == "recurrence_tangent"
        assert explain(recurrence_tangent, *sample.args, **sample.kwargs).implementation == "cpu"
        return peak_bytes(lambda: operator(*args))

    assert peak(10_000) - peak(100) <= 8 * 8 * 10_000 / 10 + 4096  # log_r


def test_second_derivatives_go_through_the_reference():
    _, (cell, u, R, state, tangents), _ = tangent_sample("gru", 3, 2, 3, count=2)
    leaves = [x.requires_grad_() for x in (u, R, *state, *tangents)]

    def function(u, R, h0, dot):
        found = recurrence_tangent(cell, u, R, (h0,), (dot,), sequence=True)
        return found.h_tangent, found.tangents[0]

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"every": -1}, ValueError, "`every` must not be negative, got -1"),
        ({"every": 1.0}, TypeError, "`every` must be an int, got 1.0"),
        ({"tangents": (torch.zeros(2, 3, 5).double(),)}, TypeError, r"`tangents\[0\]` must be of dtype torch.float32"),
        ({"every": 1, "sequence": True}, ValueError, "`sequence` must be False if `every` is positive, got every=1"),
        ({"every": 1, "reset": torch.zeros(4, 3, dtype=torch.bool)}, ValueError, "`reset` must be None if `every`"),
        ({"r_tangent": torch.zeros(2, 4, 3, 5)}, ValueError, "`r_tangent` must be None for a cell that adds u and R h"),
        ({"u_tangent": torch.zeros(2, 4, 3, 4)}, ValueError, r"`u_tangent` must be \(S, T, B, G\*H\) = \(2, 4, 3, 5\)"),
        ({"params_tangent": (torch.zeros(5),)}, ValueError, "`params_tangent` must have 0 tensors like `params`"),
        ({"tangents": torch.zeros(2, 3, 5)}, TypeError, "`tangents` must be a tuple of tensors, got Tensor"),
        ({"tangents": (torch.zeros(3, 5),)}, ValueError, r"`tangents\[0\]` must be \(S, B, H\), got \(3, 5\)"),
        ({"tangents": ()}, ValueError, "`tangents` must have 1 tensors like `state`, got 0"),
        ({"tangents": (torch.zeros(2, 3, 4),)}, ValueError, r"`tangents\[0\]` must be \(S, B, H\) = \(2, 3, 5\), got"),
        ({"tangents": (torch.zeros(6, 3, 5),), "every": 1}, ValueError, "must be at most 5, the size of the state"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    given = {"u": torch.zeros(4, 3, 5), "R": torch.zeros(5, 5), "state": (torch.zeros(3, 5),),
             "tangents": (torch.zeros(2, 3, 5),)} | change  # fmt: skip
    with pytest.raises(error, match=message):
        recurrence_tangent("tanh", **given)


def test_half_precision_is_not_orthonormalized():
    _, args, kwargs = tangent_sample("tanh", 2, 1, 4, every=1, dtype=torch.bfloat16, forced=False)
    with pytest.raises(TypeError, match=r"`every` needs float32 or float64, got torch.bfloat16"):
        recurrence_tangent(*args, **kwargs)
