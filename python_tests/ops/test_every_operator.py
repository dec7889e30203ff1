"""What holds for every operator: explain names the implementation that runs; torch.func and torch.compile give the same
derivatives; threads do not change a bit."""

import json

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import rnnkern
from python_tests.samples import (
    FILTER_OPTIONS,
    GIVENS_OPTIONS,
    SCAN_OPTIONS,
    changed,
    filter_sample,
    gather_sample,
    givens_recurrence_sample,
    givens_sample,
    scan_sample,
    schur_leaves,
    similarity_sample,
)
from rnnkern import ops, reference
from rnnkern.ops import explain


def scan(*sizes, option="constant", **options):
    sample = scan_sample(*sizes, **SCAN_OPTIONS[option], **options)
    return sample[:3], sample.kwargs


def filtering(*sizes, option="adam", **options):
    sample = filter_sample(*sizes, **FILTER_OPTIONS[option], **options)
    return (sample.u, tuple(x for x in sample[1:3] if x is not None)), sample.kwargs


def rotating(*sizes, option="plain", **options):
    sample = givens_recurrence_sample(*sizes, **GIVENS_OPTIONS[option], **options)
    return (), sample.tensors | sample.kwargs


def similar(*sizes, **options):
    sample = similarity_sample(*sizes, **options)
    return (), sample.tensors | sample.options


CALLS = {
    "linear_scan": scan,
    "moment_filter": filtering,
    "givens_recurrence": rotating,
    "givens_product": lambda *sizes, style="tunable", dtype=torch.float64: (
        givens_sample(*sizes, dtype=dtype), {"style": style}
    ),
    "gather_attention": lambda *sizes, dtype=torch.float64: (gather_sample(*sizes, dtype=dtype), {}),
    "similarity": similar,
    "skew_exp": lambda *shape, dtype=torch.float64: ((torch.randn(shape or (9, 9), dtype=dtype) / 9,), {}),
    "schur_weight": lambda size=5, *batch, dtype=torch.float64: (
        [x.to(dtype) for x in schur_leaves(size, *batch)], {}
    ),
    "householder_product": lambda *_: ((torch.randn(7, 4),), {}),
}  # fmt: skip
"""Arguments of each operator: a tuple and keywords."""
TRITON = {"linear_scan", "moment_filter", "gather_attention", "similarity"}


def results(op, call, change=lambda y: y):
    """Values and gradients; each value is replaced by ``change(value)``."""
    args, kwargs = call = changed(call, Tensor.clone)
    leaves = [x for x in tree_leaves(call) if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
    for x in leaves:
        x.requires_grad_()
    outputs = [change(y) for y in tree_leaves(op(*args, **kwargs)) if isinstance(y, Tensor) and y.requires_grad]
    grads = torch.autograd.grad(outputs, leaves, [y.detach().cos() for y in outputs], allow_unused=True)
    return [*outputs, *(g for g in grads if g is not None)]


def entered(name):
    counts = json.loads(torch.ops.rnnkern.kernel_counts())
    return sum(n for kernel, n in counts.items() if kernel.startswith(f"{name}/cpu/"))


@pytest.mark.parametrize("name", CALLS)
def test_explain_says_what_is_entered(name):
    op, call = getattr(ops, name), CALLS[name]()
    args, kwargs = call
    before, runs = entered(name), 2 * (name != "householder_product")  # whose kernels are PyTorch's
    assert explain(op, *args, **kwargs).implementation == "cpu"
    results(op, call)
    assert entered(name) == before + runs
    with rnnkern.use("reference"):
        assert explain(op, *args, **kwargs).implementation == "reference"
        torch.testing.assert_close(results(op, call), results(getattr(reference, name), call))
    assert entered(name) == before + runs
    args, kwargs = tree_map_only(Tensor, lambda x: x.to("meta"), call)
    assert explain(op, *args, **kwargs).implementation == "reference"


@pytest.mark.parametrize("name", [*sorted(CALLS.keys() - {"linear_scan"}), "cayley", "project_orthogonal"])
def test_outputs_may_be_changed_in_place_before_the_backward_pass(name):
    op, call = getattr(ops, name), CALLS.get(name, CALLS["skew_exp"])()
    assert all(
        map(torch.equal, results(op, call, lambda y: y.mul_(2).sin_()), results(op, call, lambda y: (2 * y).sin()))
    )


@pytest.mark.parametrize("name", CALLS)
def test_outputs_may_be_changed_in_place_inside_torch_compile(name):
    call, spec = tree_flatten(CALLS[name](*SMALL[name]))
    given = [k for k, x in enumerate(call) if isinstance(x, Tensor) and x.is_floating_point()]
    leaves = [call[k].detach().clone().requires_grad_() for k in given]

    def gradients(change, compiled):
        def loss(*leaves):
            args, kwargs = tree_unflatten(
                [leaves[given.index(k)] if k in given else x for k, x in enumerate(call)], spec
            )  # fmt: skip
            found = tree_leaves(getattr(ops, name)(*args, **kwargs))
            return sum(change(y).sum() for y in found if isinstance(y, Tensor) and y.requires_grad)

        run = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
        return torch.autograd.grad(run(*leaves), leaves, materialize_grads=True)

    found, wanted = gradients(lambda y: y.mul_(2).sin_(), True), gradients(lambda y: (2 * y).sin(), False)
    torch.testing.assert_close(found, wanted)


def test_linear_scan_refuses_a_change_of_what_its_backward_pass_reads():
    a, x, h0 = (y.requires_grad_() for y in (torch.rand(4), torch.randn(3, 2, 4), torch.randn(2, 4)))
    h, _ = ops.linear_scan(a, x, h0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.mul_(2).sum().backward()


@pytest.mark.parametrize("name", CALLS)
def test_triton_is_refused_on_a_cpu(name):
    args, kwargs = CALLS[name]()
    reason = "cannot serve this call: the tensors are on cpu" if name in TRITON else "cannot serve this call"
    with rnnkern.use("triton"), pytest.raises(ValueError, match=reason):
        getattr(ops, name)(*args, **kwargs)


MATRICES = [name for name in CALLS if name.endswith(("product", "exp", "weight"))] + ["cayley", "project_orthogonal"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_of_16_bits_are_computed_in_float32_and_autocast_does_not_reach_them(name, dtype):
    op, call = getattr(ops, name), changed(CALLS.get(name, CALLS["skew_exp"])(), lambda x: x.to(dtype))
    (args, kwargs), (wide, _) = call, changed(call, Tensor.float)
    wanted = op(*wide, **kwargs)
    found = op(*args, **kwargs)
    assert torch.equal(found, wanted.to(dtype))
    assert {x.dtype for x in (found, *results(op, call))} == {dtype}
    with torch.autocast("cpu", dtype):
        assert torch.equal(op(*wide, **kwargs), wanted)


SMALL = {
    "linear_scan": (4, 2, 3),
    "moment_filter": (4, 2, 3),
    "givens_recurrence": (4, 2, 4, 2),
    "givens_product": (4, 3, 2),
    "gather_attention": (1, 3, 4, 3, 5),
    "similarity": (2, 4, 5),
    "skew_exp": (3, 3),
    "schur_weight": (3,),
    "householder_product": (),
}


def function_of_leaves(name):
    """A function of the call's real numbers, the tuple of its gradients, and the numbers."""
    call, spec = tree_flatten(CALLS[name](*SMALL[name]))
    given = [k for k, x in enumerate(call) if isinstance(x, Tensor) and x.is_floating_point()]

    def loss(*leaves):
        args, kwargs = tree_unflatten([leaves[given.index(k)] if k in given else x for k, x in enumerate(call)], spec)
        found = getattr(ops, name)(*args, **kwargs)
        return sum(y.exp().sum() for y in tree_leaves(found) if isinstance(y, Tensor))

    return loss, torch.func.grad(loss, tuple(range(len(given)))), [call[k].double() for k in given]


@pytest.mark.parametrize("name", CALLS)
def test_transforms_and_the_compiler(name):
    loss, gradient, values = function_of_leaves(name)
    leaves = [x.clone().requires_grad_() for x in values]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for found in (gradient, torch.compile(gradient, fullgraph=True, backend="aot_eager")):
        torch.testing.assert_close(found(*values), wanted)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves), leaves), wanted)
    second = torch.func.jacrev(torch.func.grad(loss, len(values) - 1), 0)
    by_kernel = second(*values)
    with rnnkern.use("reference"):
        torch.testing.assert_close(by_kernel, second(*values))
    with pytest.raises(NotImplementedError, match=f"{name}: forward-mode AD is not supported"):
        torch.func.jvp(loss, tuple(values), tuple(values))


@pytest.mark.parametrize("name", CALLS)
def test_members_of_vmap(name):
    _, gradient, values = function_of_leaves(name)
    for dims in ([0] * len(values), [0, *[None] * (len(values) - 1)]):
        members = [x if dim is None else torch.stack([x, x / 2, x / 3]) for x, dim in zip(values, dims, strict=True)]
        found = torch.vmap(gradient, tuple(dims))(*members)
        for k in range(3):
            one = gradient(*(x if dim is None else x[k] for x, dim in zip(members, dims, strict=True)))
            torch.testing.assert_close([x[k] for x in found], list(one))


F32, F64, C64 = torch.float32, torch.float64, torch.complex64
ALIGNED = ((1700, 1, 80), (100, 3, 1024), (100, 70, 30))
"""Few channels for each of five threads and many for one; then many for all."""
FOR_THREADS = [
    *(("linear_scan", sizes, {"option": option, "dtype": dtype}) for sizes in (*ALIGNED, (800, 1, 200))
      for option in ("constant", "per step", "reset", "packed-reset-reverse") for dtype in (F32, C64)),
    *(("moment_filter", sizes, {"option": option, "dtype": F32}) for sizes in ALIGNED
      for option in ("adam", "momentum", "packed-reset-reverse")),
    *(("givens_recurrence", (13, 70, 40, 7), {"option": option, "dtype": dtype})
      for dtype, option in ((F32, "plain"), (F64, "packed-reset-reverse"), (C64, "reset"))),
    ("givens_product", (33, 20, 300), {"dtype": F32}),
    ("givens_product", (64, 6, 40, 5), {"dtype": F32, "style": "butterfly"}),
    *(("gather_attention", (batch, 90, 40, 12, 70), {"dtype": F32}) for batch in (1, 3, 7)),
    *(("similarity", (67, 9, 130), {"dtype": F32, "two": two, "values": 3}) for two in (False, True)),
    *(("skew_exp", shape, {"dtype": F32}) for shape in ((300, 300), (5, 70, 70), (3, 200, 200))),
    *(("schur_weight", sizes, {"dtype": F32}) for sizes in ((200,), (60, 5))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "options"), FOR_THREADS, ids=str)
def test_threads_do_not_change_a_bit(name, sizes, options, threads):
    call, found = CALLS[name](*sizes, **options), []
    for count in (1, 2, 3, 5):
        threads(count)
        found.append(results(getattr(ops, name), call))
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))
