"""Layers of the table run in typical training programs, with one thread and with two.

With two threads, directions and layers run concurrently.
"""

import copy
import threading
import weakref

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from python_tests.samples import layers as table
from python_tests.samples.layers import SEQUENCES, USED, same
from rnnkern import _extension
from rnnkern.optim import param_groups

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

T, B = 6, 4


@pytest.fixture(params=USED)
def layer(request):
    return table.layer(request.param, **USED[request.param])


@pytest.fixture
def x():
    return torch.randn(T, B, table.INPUT_SIZE)


@pytest.mark.parametrize("kind", ["batched", "packed", "unbatched"])
@pytest.mark.parametrize("name", [name for name in SEQUENCES if name != "ContinuousRNN linear"])  # its h is kept
def test_outputs_and_states_are_the_callers(name, kind, x):
    """All may be changed in place before the backward pass, and states be detached in place."""
    layer = table.layer(name, batch_first=name == "GRU")
    given = pack_padded_sequence(x, [6, 5, 5, 2]) if kind == "packed" else x[:, 0] if kind == "unbatched" else x

    def found(change):
        output, state = layer(given)
        rows = output.data if kind == "packed" else output
        states = [part for part in tree_leaves(state) if isinstance(part, torch.Tensor) and part.requires_grad]
        assert states
        assert not any(part._is_view() for part in states)
        loss = sum(change(part).abs().sum() for part in (rows, *states))
        return torch.autograd.grad(loss, list(layer.parameters()), materialize_grads=True)

    assert same(found(lambda y: y.add_(1).mul_(2)), found(lambda y: 2 * (y + 1)))


@pytest.mark.sampled
def test_outputs_are_the_callers_when_compiled(layer, x):
    def gradients_for(change, wrap):
        run = wrap(lambda x: change(layer(x)[0]).square().sum())
        return torch.autograd.grad(run(x), list(layer.parameters()), materialize_grads=True)

    with torch._dynamo.config.patch(allow_rnn=True):
        found = gradients_for(lambda y: y.add_(1).relu_(), torch.compile(backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(found, gradients_for(lambda y: (y + 1).relu(), lambda run: run))


def loss_of(layer, x):
    return layer(x)[0].sin().square().sum()


def gradients(layer, loss):
    return torch.autograd.grad(loss, list(layer.parameters()))


def optimizer_of(layer):
    return torch.optim.Adam(param_groups(layer, lr=0.01))


def train(layer, optimizer, x, steps=2):
    """Returns the parameters and buffers after the training steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(layer, x).backward()
        optimizer.step()
    return [t.detach().clone() for t in (*layer.parameters(), *layer.buffers())]


def within(layer, x):
    """A checkpoint in a checkpoint."""
    inner = lambda x: checkpoint(lambda x: layer(x)[0], x, use_reentrant=False).sin()  # noqa: E731
    return checkpoint(inner, x, use_reentrant=False).square().sum()


CHECKPOINTS = {
    "not reentrant": lambda layer, x: checkpoint(loss_of, layer, x, use_reentrant=False),
    "reentrant": lambda layer, x: checkpoint(loss_of, layer, x, use_reentrant=True),
    "nested": within,
}


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_activation_checkpointing(layer, x, how):
    wanted = loss_of(layer, x), *gradients(layer, loss_of(layer, x))
    x.requires_grad_()  # the reentrant form needs an input with gradients
    loss = CHECKPOINTS[how](layer, x)
    loss.backward()
    assert same([loss, *(p.grad for p in layer.parameters())], wanted)


def test_saved_tensors_that_are_offloaded(layer, x):
    """Each saved tensor is fetched once."""
    wanted, fetched = gradients(layer, loss_of(layer, x)), []

    def fetch(k_and_tensor):
        fetched.append(k_and_tensor[0])
        return k_and_tensor[1]

    counter = iter(range(10**6))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (next(counter), t.clone()), fetch):
        loss = loss_of(layer, x)
    assert same(gradients(layer, loss), wanted)
    assert len(set(fetched)) == len(fetched)


@pytest.mark.parametrize("how", ["copy", "saved state"])
def test_a_copy_in_mid_training_goes_on_to_the_same_bits(layer, x, how):
    optimizer = optimizer_of(layer)
    before = train(layer, optimizer, x)
    other, other_optimizer = copy.deepcopy((layer, optimizer))
    assert {id(p) for group in other_optimizer.param_groups for p in group["params"]} == set(
        map(id, other.parameters())
    )
    if how == "saved state":
        other_optimizer = optimizer_of(other)
        train(other, other_optimizer, x)
        states = copy.deepcopy((layer.state_dict(), optimizer.state_dict()))
    wanted = train(layer, optimizer, x)
    assert not same(wanted, before)
    if how == "saved state":
        other.load_state_dict(states[0])
        other_optimizer.load_state_dict(states[1])
    assert same(train(other, other_optimizer, x), wanted)


def test_exponential_moving_average(layer, x):
    """A moving average of the trained parameters, in a copy that is evaluated during training."""
    averaged = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = optimizer_of(layer)
    mean = [p.detach().clone() for p in layer.parameters()]
    for k in range(3):
        train(layer, optimizer, x, steps=1)
        averaged.update_parameters(layer)
        weight = 0.5 if k else 1.0  # the first update is a copy
        mean = [torch.lerp(m, p.detach(), weight) for m, p in zip(mean, layer.parameters(), strict=True)]
        with torch.no_grad():
            seen = averaged(x)[0]
    torch.testing.assert_close([p.detach() for p in averaged.module.parameters()], mean)
    fresh = copy.deepcopy(averaged.module)
    with torch.no_grad():
        assert torch.equal(fresh(x)[0], seen)


def test_a_functional_call_keeps_nothing(layer, x):
    others = {name: (0.9 * p.detach() + 0.01).requires_grad_() for name, p in layer.named_parameters()}
    loss = functional_call(layer, others, (x,))[0].sin().square().sum()
    torch.autograd.grad(loss, list(others.values()))
    gone = [weakref.ref(p) for p in others.values()]
    del others, loss
    assert [ref() for ref in gone] == [None] * len(gone)


class Outputs(Dataset):
    """The output of each layer for the same input, computed in the process that requests it."""

    def __init__(self, layers, x):
        self.layers, self.x = layers, x

    def __len__(self):
        return len(self.layers)

    def __getitem__(self, k):
        with torch.no_grad():
            return self.layers[k](self.x)[0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_in_workers_of_a_data_loader(start, x):
    if start == "spawn" and torch.get_num_threads() == 1:
        pytest.skip("a spawned process has nothing of this one's threads")
    layers = [table.layer(name, **options) for name, options in USED.items()]
    for layer in layers:  # before the fork, in the parent
        train(layer, optimizer_of(layer), x)
    outputs = Outputs(layers, x)
    wanted = [outputs[k] for k in range(len(layers))]
    loader = DataLoader(outputs, batch_size=None, num_workers=1 + (start == "fork"), multiprocessing_context=start)
    for actual, exact in zip(loader, wanted, strict=True):
        torch.testing.assert_close(actual, exact, rtol=1e-5, atol=1e-6)  # each worker has one thread
    assert same([outputs[k] for k in range(len(layers))], wanted)  # the parent still works


def test_two_python_threads_train_two_layers(x):
    """The results equal those of sequential training bit for bit."""
    threads, layers = torch.get_num_threads(), [table.layer(name, **options) for name, options in USED.items()]
    for pair in zip(layers, copy.deepcopy([*layers[1:], layers[0]]), strict=True):
        wanted = [train(copied, optimizer_of(copied), x, 5) for copied in copy.deepcopy(pair)]
        found, begin = [None, None], threading.Barrier(2)

        def work(k, pair=pair, found=found, begin=begin):
            torch.set_num_threads(threads)  # the setting belongs to the Python thread
            begin.wait(60)
            found[k] = train(pair[k], optimizer_of(pair[k]), x, 5)

        workers = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert all(map(same, found, wanted))
