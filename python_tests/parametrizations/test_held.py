"""A weight is computed once per optimizer step, and all users get the value and the gradients of the formula."""

import copy
import functools
import threading

import pytest
import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

import rnnkern
from python_tests.parametrizations.linear import N, X, move, plain, skew_of
from rnnkern import ops
from rnnkern.parametrizations import _held as held
from rnnkern.parametrizations import orthogonal


@pytest.fixture
def computed(monkeypatch):
    """Counts how often the exponential and its gradient are computed."""
    counts = {"values": 0, "gradients": 0}
    skew_exp, gradients = ops.skew_exp, held._Computation.gradients

    def value(*args, **kwargs):
        counts["values"] += 1
        return skew_exp(*args, **kwargs)

    def gradient(*args):
        counts["gradients"] += 1
        return gradients(*args)

    monkeypatch.setattr(ops, "skew_exp", value)
    monkeypatch.setattr(held._Computation, "gradients", gradient)
    return counts


def test_once_for_all_steps_layers_and_forwards(linear, computed):
    optimiser = torch.optim.SGD([skew_of(linear)], 0.1)
    for updates in (1, 2):
        h = X
        for _ in range(5):
            h = torch.tanh(linear(h))
        (h + linear(X)).sum().backward()
        linear(X)
        with torch.no_grad():
            linear(X)
        assert computed == {"values": updates, "gradients": updates}
        optimiser.step()


def test_once_for_every_direction_and_chunk_of_a_network(computed):
    rnn = rnnkern.nn.ExpRNN(2, N, 2, bidirectional=True)
    with torch.no_grad():
        for parametrized in rnn.parametrizations.values():
            parametrized.original.uniform_()
    _, state = rnn(torch.randn(3, 2, 2))
    rnn(torch.randn(3, 2, 2), state)[0].sum().backward()
    assert computed == {"values": 4, "gradients": 4}


def gradients_of(module, run):
    module.zero_grad()
    run()
    return [p.grad.clone() for p in module.parameters()]


def losses(weight):
    return (X @ weight.mT).sin().sum(), (X @ weight).square().sum()


def two_pairs(weight):
    for k in range(2):
        losses(weight())[k].backward()


def two_backwards(weight):
    first, second = (losses(weight())[k] for k in range(2))
    first.backward()
    second.backward()


def retained(weight):
    loss = sum(losses(weight()))
    loss.backward(retain_graph=True)
    loss.backward()


def within_inference(weight):
    with torch.inference_mode():
        weight()
    sum(losses(weight())).backward()


def after_no_grad(weight):
    with torch.no_grad():
        weight()
    sum(losses(weight())).backward()


def checkpointed(weight):
    loss = sum(losses(weight()))
    again = checkpoint(lambda x: sum(losses(weight())) + x, torch.zeros((), requires_grad=True), use_reentrant=False)
    (loss + again).backward()


def checkpointed_first(weight):
    again = checkpoint(lambda x: sum(losses(weight())) + x, torch.zeros((), requires_grad=True), use_reentrant=False)
    again.backward()
    sum(losses(weight())).backward()


def saved_elsewhere(weight):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        sum(losses(weight())).backward()


RUNS = [
    two_pairs,
    two_backwards,
    retained,
    within_inference,
    after_no_grad,
    checkpointed,
    checkpointed_first,
    saved_elsewhere,
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_gradients_are_the_formula_s(run, linear, computed):
    linear.requires_grad_(True)
    linear.bias = None
    wanted = gradients_of(linear, lambda: run(lambda: plain(linear)))
    found = gradients_of(linear, lambda: run(lambda: linear.weight))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert computed["values"] <= 1 + (run in (within_inference, after_no_grad))  # without gradients nothing is cached


@pytest.mark.parametrize("zero", [False, True])
def test_second_derivatives(zero):
    linear = orthogonal(torch.nn.Linear(N, N, bias=False, dtype=torch.float64), "weight")
    if not zero:
        move(linear)
    A, v = skew_of(linear), torch.randn(N, N, dtype=torch.float64)

    def second(weight):
        (first,) = torch.autograd.grad(weight.sin().sum(), A, create_graph=True)
        return torch.autograd.grad((first * v).sum(), A)[0]

    torch.testing.assert_close(second(linear.weight), second(plain(linear)))
    torch.autograd.grad(linear.weight.sum(), A)


def test_one_tensor_for_all_who_ask(linear):
    weight = linear.weight
    assert linear.weight is weight
    with torch.no_grad():
        assert not linear.weight.requires_grad
        assert linear.weight.data_ptr() == weight.data_ptr()


def loaded(module):
    module.load_state_dict({name: x + 1 if "original" in name else x for name, x in module.state_dict().items()})


def assigned(module):
    state = {name: x + 1 if "original" in name else x for name, x in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def other_base(module):
    module.parametrizations.weight[0].base.copy_(torch.eye(N).flip(0))


CHANGES = {
    "in place": lambda module: skew_of(module).mul_(2),
    "of a view": lambda module: skew_of(module)[-1].add_(1),
    "through a copy": lambda module: skew_of(module).detach().mul_(2),
    "another memory": lambda module: setattr(skew_of(module), "data", torch.randn(N, N)),
    "base": other_base,
    "load_state_dict": loaded,
    "load_state_dict(assign=True)": assigned,
    "reset": lambda module: rnnkern.parametrizations.reset_parameters(module, "weight"),
    "assignment": lambda module: setattr(module, "weight", torch.linalg.qr(torch.randn(N, N))[0]),
    "the weight itself": lambda module: module.weight.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("graph", [True, False], ids=["grad", "no_grad"])
def test_a_change_is_seen(linear, change, graph):
    with torch.set_grad_enabled(graph):
        before = linear.weight.detach().clone()
    with torch.no_grad():
        change(linear)
    with torch.set_grad_enabled(graph):
        torch.testing.assert_close(linear.weight, plain(linear))
        assert linear.weight.requires_grad == graph
    if change is not CHANGES["the weight itself"]:
        assert not torch.equal(linear.weight, before)


def test_frozen_and_thawed(linear):
    assert linear.weight.requires_grad
    skew_of(linear).requires_grad_(False)
    assert not linear.weight.requires_grad
    skew_of(linear).requires_grad_(True)
    assert linear.weight.requires_grad


def test_other_dtype(linear):
    linear(X).sum().backward()
    linear.double()
    assert linear.weight.dtype == torch.float64
    torch.testing.assert_close(linear.weight, plain(linear))
    assert linear.to("meta").weight.device.type == "meta"


OPTIMISERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
}
OPTIMISERS |= {
    f"{name} {option}": functools.partial(getattr(torch.optim, name), **{option: True})
    for name in ("SGD", "Adam", "AdamW")
    for option in ("foreach", "fused")
}


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
def test_a_step_of_any_optimiser_is_seen(linear, make):
    linear.bias = None
    optimiser = make(linear.parameters(), lr=0.05)
    for _ in range(3):
        before = linear.weight.detach().clone()

        def closure():
            optimiser.zero_grad()
            loss = linear(X).square().sum() + (linear.weight - 1).square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        torch.testing.assert_close(linear.weight, plain(linear))
        assert not torch.equal(linear.weight, before)


def test_a_compiled_step_is_seen(linear):
    torch.compiler.reset()
    optimiser = torch.optim.SGD([skew_of(linear)], 0.1)
    step = torch.compile(optimiser.step, backend="eager")
    for _ in range(2):
        before = linear.weight.detach().clone()
        linear(X).sum().backward()
        step()
        assert not torch.equal(linear.weight, before)
        torch.testing.assert_close(linear.weight, plain(linear))


def test_what_writes_past_the_versions_is_seen_after_a_step(linear):
    """fully_shard writes gathered parameters in this way."""

    class Writer(torch.optim.Optimizer):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(1)

    optimiser = Writer([skew_of(linear)], {})
    before = linear.weight.detach().clone()
    optimiser.step()
    assert not torch.equal(linear.weight, before)
    torch.testing.assert_close(linear.weight, plain(linear))


def test_backward_after_a_step_is_refused(linear):
    optimiser = torch.optim.SGD([skew_of(linear)], 0.1)
    loss = linear(X).sum()
    loss.backward(retain_graph=True)
    optimiser.step()
    with pytest.raises(RuntimeError, match="since been modified by an in-place operation or an optimizer"):
        (loss + linear.weight.sum()).backward()


def test_functional_call_and_transforms(linear):
    own = linear.weight
    parameters = {name: p.detach() for name, p in linear.named_parameters()}
    others = {name: p + 1 for name, p in parameters.items()}
    name = "parametrizations.weight.original"
    torch.testing.assert_close(
        functional_call(linear, others, (X,)), X @ plain(linear, others[name]).T + others["bias"]
    )
    assert torch.equal(linear.weight, own)

    def loss(parameters):
        return functional_call(linear, parameters, (X,)).sin().sum()

    wanted = gradients_of(linear, lambda: (X @ plain(linear).T + linear.bias).sin().sum().backward())
    found = grad(loss)(parameters)
    torch.testing.assert_close([found[key] for key, _ in linear.named_parameters()], wanted, rtol=1e-4, atol=1e-5)
    # A transform with respect to another tensor, which uses the module's weight.
    torch.testing.assert_close(grad(lambda x: linear(x).sum())(X), linear.weight.sum(0).expand(3, N))
    models = [linear, copy.deepcopy(linear)]
    move(models[1])
    members = vmap(lambda p, b: functional_call(linear, (p, b), (X,)))(*stack_module_state(models))
    torch.testing.assert_close(members, torch.stack([model(X) for model in models]))


def test_forward_mode_loses_nothing(linear):
    A = skew_of(linear).detach()

    def weight(A):
        return functional_call(linear, {"parametrizations.weight.original": A}, (torch.eye(N),))

    direction = torch.randn(N, N)
    with pytest.raises(NotImplementedError, match="skew_exp: forward-mode AD is not supported"):
        jvp(weight, (A,), (direction,))
    with rnnkern.use("reference"):
        _, found = jvp(weight, (A,), (direction,))
    _, wanted = jvp(lambda A: plain(linear, A).T, (A,), (direction,))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_compiled(linear):
    torch.compiler.reset()
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    optimiser = torch.optim.SGD([skew_of(linear)], 0.1)
    for _ in range(2):
        wanted = gradients_of(linear, lambda: linear(X).sin().sum().backward())
        found = gradients_of(linear, lambda: compiled(X).sin().sum().backward())
        torch.testing.assert_close(compiled(X), linear(X))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        optimiser.step()


def test_exported(linear):
    exported = torch.export.export(linear, (X,))
    torch.testing.assert_close(exported.module()(X), linear(X))


def test_autocast_does_not_reach_into_the_weight(linear):
    for graph in (False, True):
        (wanted,) = torch.autograd.grad(plain(linear).sin().sum(), skew_of(linear))
        with torch.autocast("cpu", torch.bfloat16):
            weight = linear.weight
            (found,) = torch.autograd.grad(weight.sin().sum(), skew_of(linear), create_graph=graph)
        assert weight.dtype == torch.float32
        torch.testing.assert_close([weight, found], [plain(linear), wanted])


def test_threads_share_a_module(linear):
    """Some threads read the weight while others invalidate it."""
    wanted, failed = plain(linear).detach(), []

    def ask():
        for _ in range(300):
            with torch.no_grad():
                try:
                    torch.testing.assert_close(linear.weight, wanted)
                except Exception as error:
                    failed.append(error)
                linear.parametrizations.weight[0]._held.clear()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
