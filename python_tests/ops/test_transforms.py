"""torch.func and torch.vmap of the recurrence equal the reference's, over a covering array of transforms."""

import functools
import json

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_leaves

from python_tests.samples import (
    EVERY_CELL,
    NORMALISED,
    RECURRENCE_OPTIONS,
    agree,
    covering_rows,
    draws,
    recurrence_sample,
    takes,
)
from python_tests.tiers import quick_where
from rnnkern import reference
from rnnkern.ops import recurrence

MEMBERS = 3


class Call:
    """A sample's call as a function of its differentiable tensors, by name."""

    def __init__(self, op, sample):
        self.op, self.sample = op, sample
        names = ["u", "R", *(f"state {k}" for k in range(len(sample.args[3])))]
        names += ["bias"] if sample.kwargs["bias"] is not None else []
        names += [f"params {k}" for k in range(len(sample.kwargs["params"]))]
        names += [name for name in ("weight_ih", "bias_ih") if sample.kwargs.get(name) is not None]
        self.leaves = dict(zip(names, sample.leaves(), strict=True))

    def __call__(self, **leaves):
        leaves = self.leaves | leaves
        group = lambda kind: tuple(x for name, x in leaves.items() if name.startswith(kind))  # noqa: E731
        kwargs = {name: leaves.get(name, value) for name, value in self.sample.kwargs.items()}
        kwargs["params"] = group("params")
        h, final = self.op(self.sample.args[0], leaves["u"], leaves["R"], group("state"), **kwargs)
        return h, *final

    def loss(self, **leaves):
        return sum(y.sin().sum() for y in self(**leaves))

    def members(self, *names):
        """Values near those of the call for each of MEMBERS members, in the first dimension."""
        generator = torch.Generator().manual_seed(0)
        draw = lambda x: x * (0.5 + torch.rand(MEMBERS, *x.shape, generator=generator)).to(x)  # noqa: E731
        return {name: draw(self.leaves[name]) for name in names}


def per_member_everything(call):
    return vmap(lambda leaves: call(**leaves))(call.members(*call.leaves))


def per_member_input_and_last_dimensions(call):
    given = call.members("u", "R")
    u, R = given["u"].movedim(0, 1), given["R"].movedim(0, -1)
    return vmap(lambda u, R: call(u=u, R=R), in_dims=(1, -1), out_dims=1)(u, R)


def nested(call):
    u, R = call.members("u")["u"], call.members("R")["R"]
    return vmap(lambda R: vmap(lambda u: call(u=u, R=R))(u))(R)


def gradient_through_members(call):
    u = call.members("u")["u"]
    return grad(lambda leaves: sum(y.sin().sum() for y in vmap(lambda u: call(**leaves | {"u": u}))(u)))(call.leaves)


def gradients_of_an_ensemble(call):
    """Of all leaves of each member but the input, which all share."""
    own = call.members(*(name for name in call.leaves if name != "u"))
    return vmap(grad(lambda leaves: call.loss(**leaves)))(own)


def backward_through_members(call):
    """By autograd, outside of all transforms."""
    leaves = {name: x.detach().requires_grad_() for name, x in (call.leaves | call.members("u")).items()}
    others = {name: x for name, x in leaves.items() if name != "u"}
    results = vmap(lambda u: call(u=u, **others))(leaves["u"])
    return torch.autograd.grad(sum(y.sin().sum() for y in results), list(leaves.values()))


TRANSFORMS = {
    "gradient": lambda call: grad(lambda leaves: call.loss(**leaves))(call.leaves),
    "second gradient": lambda call: grad(
        lambda leaves: sum(g.sin().sum() for g in grad(lambda leaves: call.loss(**leaves))(leaves).values())
    )(call.leaves),
    "jacobian": lambda call: jacrev(lambda u: call(u=u))(call.leaves["u"]),
    "jacobian by a weight": lambda call: jacrev(lambda R: call(R=R), chunk_size=5)(call.leaves["R"]),
    "members share weights": lambda call: vmap(lambda u: call(u=u))(call.members("u")["u"]),
    "members share the input": lambda call: vmap(lambda R: call(R=R))(call.members("R")["R"]),
    "members share nothing": per_member_everything,
    "members in other dimensions": per_member_input_and_last_dimensions,
    "members of members": nested,
    "gradients per member": lambda call: vmap(
        lambda u: grad(lambda leaves: call.loss(**leaves))(call.leaves | {"u": u})
    )(call.members("u")["u"]),
    "gradients of an ensemble": gradients_of_an_ensemble,
    "gradient through members": gradient_through_members,
    "backward through members": backward_through_members,
}


def dual_numbers(call):
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(x, x.sin()) for name, x in call.leaves.items()}
        return [forward_ad.unpack_dual(y).tangent.clone() for y in call(**duals)]


def along(leaves):
    return {name: x.sin() for name, x in leaves.items()}


FORWARD_MODE = {
    "jvp": lambda call: jvp(lambda leaves: call(**leaves), (call.leaves,), (along(call.leaves),)),
    "jacfwd": lambda call: jacfwd(lambda u: call(u=u))(call.leaves["u"]),
    "jacfwd by a weight": lambda call: jacfwd(lambda R: call(R=R))(call.leaves["R"]),
    "linearize": lambda call: linearize(lambda u: call(u=u), call.leaves["u"])[1](call.leaves["u"]),
    "hessian": lambda call: hessian(lambda u: call.loss(u=u))(call.leaves["u"]),
    "jacfwd of jacfwd": lambda call: jacfwd(jacfwd(lambda h: call.loss(**{"state 0": h})))(call.leaves["state 0"]),
    "jacrev of jacfwd": lambda call: jacrev(jacfwd(lambda h: call.loss(**{"state 0": h})))(call.leaves["state 0"]),
    "jvp of vmap": lambda call: jvp(vmap(lambda u: call(u=u)), *[(call.members("u")["u"],)] * 2),
    "vmap of jvp": lambda call: vmap(lambda u: jvp(lambda u: call(u=u), (u,), (u,)))(call.members("u")["u"]),
    "jvp of a gradient": lambda call: jvp(
        grad(lambda leaves: call.loss(**leaves)), (call.leaves,), (along(call.leaves),)
    ),
    "gradient of jvp": lambda call: grad(
        lambda leaves: sum(y.sin().sum() for y in jvp(lambda u: call(**leaves | {"u": u}), *[(leaves["u"],)] * 2)[1])
    )(call.leaves),
    "jvp of a pullback": lambda call: jvp(vjp(lambda u: call.loss(u=u), call.leaves["u"])[1], *[(call.loss(),)] * 2),
    "dual numbers": dual_numbers,
}  # fmt: skip

ROWS = [
    row
    for row in covering_rows(
        {"transform": [*TRANSFORMS, *FORWARD_MODE], "option": list(RECURRENCE_OPTIONS), "cell": list(EVERY_CELL)}
    )
    if takes(row["cell"], RECURRENCE_OPTIONS[row["option"]])
    and not (row["transform"] in FORWARD_MODE and "grad_scale" in row["option"])
    and not (row["transform"] == "linearize" and "packed" in row["option"])  # takes torch a minute
]
FEW = ("lstm", "gru_reset_before", "modrelu", NORMALISED[0])


@pytest.mark.parametrize(
    "row",
    quick_where(lambda row: row["transform"] in TRANSFORMS or row["cell"] in FEW, ROWS),
    ids=lambda row: "-".join(row.values()),
)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's, in linearize
@pytest.mark.sampled
def test_a_transform_of_the_kernel_is_that_of_the_reference(row):
    transform = (TRANSFORMS | FORWARD_MODE)[row["transform"]]
    results = lambda op, sample: dict(enumerate(tree_leaves(transform(Call(op, sample)))))  # noqa: E731
    samples = draws(recurrence_sample, row["cell"], 3, 2, 4, **RECURRENCE_OPTIONS[row["option"]])
    agree(recurrence, reference.recurrence, results, samples)


def entered(run):
    """Number of kernels that ran."""
    before = sum(json.loads(torch.ops.rnnkern.kernel_counts()).values())
    run()
    return sum(json.loads(torch.ops.rnnkern.kernel_counts()).values()) - before


CALLS = {
    "members share weights": 1,
    "gradient through members": 2,
    "backward through members": 2,
    "jacobian": 2,
    "gradients per member": 2,  # their own gradients of the weights: heads
    "gradients of an ensemble": 2,  # they share the input only
    "members share nothing": 1,
    "jacfwd": 2,  # the forward pass and all tangents
    "jacfwd by a weight": 2,
}


def test_members_and_tangents_are_one_call():
    call = Call(recurrence, recurrence_sample("lstm", packed=True, reset=True, inputs=5))
    assert {name: entered(lambda name=name: (TRANSFORMS | FORWARD_MODE)[name](call)) for name in CALLS} == CALLS


def test_what_vmap_refuses():
    _, u, R, state = recurrence_sample("tanh", 3, 2, 4).args
    with pytest.raises(ValueError, match="vmap needs at least one member"):
        vmap(lambda u: recurrence("tanh", u, R, state)[0])(u.new_zeros(0, *u.shape))
    rows, sizes = torch.randn(2, 4, 4, dtype=torch.float64), torch.tensor([[2, 2], [2, 2]])
    with pytest.raises(ValueError, match="`batch_sizes` must not be mapped by torch"):
        vmap(lambda u, sizes: recurrence("tanh", u, R, state, batch_sizes=sizes)[0])(rows, sizes)
    with pytest.raises(ValueError, match=r"`R` must be \(G\*H, H\) = \(4, 4\), got \(3, 4\)"):
        vmap(lambda R: recurrence("tanh", u, R, state)[0])(torch.randn(2, 3, 4, dtype=torch.float64))


def test_forward_mode_computes_gates_that_were_not_saved():
    _, u, R, state = recurrence_sample("gru").args
    kept, again = (functools.partial(recurrence, "gru", R=R, state=state, save_gates=keep) for keep in (True, False))
    assert torch.equal(*(jvp(lambda u, call=call: call(u)[0], (u,), (u,))[1] for call in (kept, again)))


def test_forward_mode_refuses_grad_scale():
    sample = recurrence_sample("gru", grad_scale=1)
    with pytest.raises(NotImplementedError, match="forward mode with `grad_scale` is not supported"):
        jvp(lambda u: Call(recurrence, sample)(u=u), (sample.args[1],), (sample.args[1],))


def test_forward_mode_around_a_call_without_tangents():
    _, u, R, state = recurrence_sample("gru").args
    wanted = recurrence("gru", u, R, state)[0]
    value, tangent = jvp(lambda x: x * recurrence("gru", u, R, state)[0].sum(), (u,), (u,))
    torch.testing.assert_close(value, u * wanted.sum())
    torch.testing.assert_close(tangent, value)


def test_functionalize_is_refused():
    _, u, R, state = recurrence_sample("tanh").args
    with pytest.raises(RuntimeError, match="Functionalize"):
        functionalize(lambda u: recurrence("tanh", u, R, state)[0])(u)
