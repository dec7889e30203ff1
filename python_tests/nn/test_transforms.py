"""Layers of the table have second derivatives, and those of torch.nn work in torch.func.

There: ensembles, gradients per sample, forward mode.
"""

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import rnnkern.nn
from python_tests.samples import numbered
from python_tests.samples.layers import LAYERS, draw_input, moved, values
from rnnkern.testing import DRAWS, assert_close_over_draws

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")

N, T, B, I, H = 3, 5, 2, 3, 4  # noqa: E741

MODULES = {
    "rnn": ("RNN", {"nonlinearity": "relu"}),
    "lstm": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm_proj": ("LSTM", {"proj_size": 2}),
    "gru": ("GRU", {"num_layers": 2, "bias": False}),
}
modules = pytest.mark.parametrize(("cls", "options"), MODULES.values(), ids=MODULES.keys())


def build(cls, options, package=rnnkern.nn, seed=0):
    torch.manual_seed(seed)
    return getattr(package, cls)(I, H, **options)


def samples(options, count=N, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (B, T, I) if options.get("batch_first") else (T, B, I)
    return torch.randn(count, *shape, generator=generator)


def loss(result):
    return sum(y.sin().sum() for y in tree_leaves(result))


def per_member(run, cls, options, seeds, xs):
    """The results of ``run`` for torch.nn's module of each member, stacked; in float32 and in float64."""
    results = []
    for dtype in (torch.float32, torch.float64):
        members = [
            run(build(cls, options, torch.nn, seed).to(dtype), x.to(dtype)) for seed, x in zip(seeds, xs, strict=True)
        ]
        results.append([torch.stack(each) for each in zip(*members, strict=True)])
    return results


def gradients(module, x):
    return torch.autograd.grad(loss(module(x)), list(module.parameters()))


@modules
@pytest.mark.sampled
def test_ensemble(cls, options):
    def compared(k):
        seeds, xs = range(N * k, N * k + N), samples(options, seed=k)
        members = [build(cls, options, seed=seed) for seed in seeds]
        base = copy.deepcopy(members[0]).to("meta")
        parameters, buffers = stack_module_state(members)
        call = lambda p, x: functional_call(base, (p, buffers), (x,))  # noqa: E731
        actual = tree_leaves(vmap(call)(parameters, xs))
        wanted = per_member(lambda m, x: [*tree_leaves(m(x)), *gradients(m, x)], cls, options, seeds, xs)
        sum(y.sin().sum() for y in actual).backward()
        return numbered([*actual, *(p.grad for p in parameters.values())], *wanted)

    assert_close_over_draws(map(compared, range(DRAWS)))


@modules
def test_gradients_per_sample(cls, options):
    def compared(k):
        module, xs = build(cls, options, seed=k), samples(options, seed=k)
        parameters = {name: p.detach() for name, p in module.named_parameters()}
        actual = vmap(grad(lambda p, x: loss(functional_call(module, p, (x,)))), (None, 0))(parameters, xs)
        return numbered(actual.values(), *per_member(gradients, cls, options, [k] * N, xs))

    assert_close_over_draws(map(compared, range(DRAWS)))


ESTIMATED = ("RelRNN learned", "RelLSTM heads")
"""Layers whose gradient by the learned relevance is an estimate."""
FIRST_ONLY = ("CoRelNet transformer",)
"""Layers whose attention by PyTorch has first derivatives alone."""


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith(ESTIMATED + FIRST_ONLY)])
@pytest.mark.sampled
def test_second_derivatives(name):
    module, x = moved(name, dtype=torch.float64), draw_input(name, 3, 2, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(x, *parameters):
        return tuple(values(functional_call(module, dict(zip(names, parameters, strict=True)), (x,))))

    assert gradcheck(call, (x, *parameters), fast_mode=True)
    assert gradgradcheck(call, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", ["LSTM layer norm", "GRU layer norm", "LSTM Adam", "UnitaryRNN"])
def test_second_derivatives_under_autocast_where_u_is_not_kept(name):
    """There u is saved: recomputed, it would have another dtype."""
    module, x = moved(name), draw_input(name, requires_grad=True)
    leaves = [x, *module.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x)[0]
    first = torch.autograd.grad(output.sin().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)
    assert all(g.isfinite().all() for g in second)


@pytest.mark.parametrize(
    ("cls", "options"),
    [("LSTM", {"num_layers": 2, "dropout": 0.5}), ("GRU", {"zoneout": 0.3, "recurrent_dropout": 0.4})],
)
def test_dropout_takes_the_randomness_of_vmap(cls, options):
    module, xs = build(cls, options), samples(options, 1).expand(N, -1, -1, -1)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(module)(xs)
    same, different = (vmap(module, randomness=kind)(xs)[0] for kind in ("same", "different"))
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])


@pytest.mark.parametrize("given", [False, True], ids=["no state", "state"])
def test_a_single_step_without_gradients(given):
    """The fast path of inference is not used."""
    module, x, h = build("GRU", {}), torch.randn(N, 1, B, I), torch.randn(1, B, H)
    hx = h if given else None
    with torch.no_grad():
        actual = vmap(lambda x: module(x, hx)[0])(x)
        torch.testing.assert_close(actual, torch.stack([module(each, hx)[0] for each in x]))


def by_parameters(module, x):
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    directions = {name: p.cos() for name, p in parameters.items()}
    return jvp(lambda p: tree_leaves(functional_call(module, p, (x,))), (parameters,), (directions,))


def by_packed_input(module, x):
    lengths = torch.tensor([T, T - 2]).clamp(max=x.shape[1 if module.batch_first else 0])
    packed = pack_padded_sequence(x, lengths, batch_first=module.batch_first)
    return jvp(lambda data: module(packed._replace(data=data))[0].data, (packed.data,), (packed.data.cos(),))


FORWARD_MODE = {
    "jvp": lambda module, x: jvp(lambda x: tree_leaves(module(x)), (x,), (x.cos(),)),
    "jvp by the parameters": by_parameters,
    "jvp of packed input": by_packed_input,
    "jacfwd": lambda module, x: jacfwd(lambda x: module(x)[0])(x),
    "hessian in reverse mode": lambda module, x: jacrev(jacrev(lambda x: loss(module(x))))(x),
    "hessian": lambda module, x: hessian(lambda x: loss(module(x)))(x),
}


@modules
@pytest.mark.parametrize("steps", [T, 1])
@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode_is_that_of_the_reference(name, steps, cls, options):
    module, (x,) = build(cls, options).double(), samples(options, 1).double()
    x = x.narrow(1 if module.batch_first else 0, 0, steps)
    found = FORWARD_MODE[name](module, x)
    with torch.no_grad():
        torch.testing.assert_close(FORWARD_MODE[name](module, x), found)
    with rnnkern.use("reference"):
        torch.testing.assert_close(found, FORWARD_MODE[name](module, x), rtol=1e-9, atol=1e-10)
