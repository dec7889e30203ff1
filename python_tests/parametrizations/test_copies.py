"""Copies, pickles, checkpoints, wider dtypes and the meta device, over the table of parametrizations."""

import copy
import io
import pickle

import pytest
import torch

import rnnkern
from python_tests.samples.parametrizations import ROWS, from_unitary, moved, plain, registered
from rnnkern.optim import param_groups
from rnnkern.parametrizations import reset_parameters

F64 = torch.float64
LIMIT = 1e-14  # of max |B^T B - I| in float64
rows = pytest.mark.parametrize("name", ROWS)


def loaded(name, module):
    other = registered(name, torch.float32)
    other.load_state_dict(module.state_dict())
    return other


def saved(name, module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = [
    loaded,
    saved,
    lambda name, module: copy.deepcopy(module),
    lambda name, module: pickle.loads(pickle.dumps(module)),
]


@rows
def test_copies_have_the_weight_and_go_their_own_way(name):
    module = moved(registered(name, torch.float32))
    weight = module.weight
    for copied in COPIES:
        other = copied(name, module)
        assert torch.equal(other.weight, weight)
        assert other.parametrizations.weight[0]._of() is other.parametrizations.weight
        moved(other)
        assert not torch.equal(other.weight, weight)
        other.weight.abs().sum().backward()
        reset_parameters(other, "weight")
        assert not torch.equal(other.weight, weight)
        assert module.weight is weight


@pytest.mark.parametrize("assign", [False, True])
@rows
@pytest.mark.sampled
def test_a_checkpoint_resumes_to_the_same_bits(name, assign):
    def begun():
        module = registered(name, torch.float32)
        return module, torch.optim.Adam(param_groups(module, 0.01))

    def trained(module, optimiser, updates):
        for _ in range(updates):
            optimiser.zero_grad()
            module.weight.abs().square().sin().sum().backward()
            optimiser.step()

    for when in (5, 6):  # between two moves of a base, and after one
        module, optimiser = begun()
        trained(module, optimiser, when)
        kept = copy.deepcopy([module.state_dict(), optimiser.state_dict()])
        trained(module, optimiser, 7)
        again, resumed = begun()
        again.load_state_dict(kept[0], assign=assign)
        resumed = torch.optim.Adam(param_groups(again, 0.01))
        resumed.load_state_dict(kept[1])
        trained(again, resumed, 7)
        assert torch.equal(again.weight, module.weight)
        for key, value in module.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key


@rows
def test_on_the_meta_device_a_weight_has_its_shape(name):
    module = registered(name, torch.float32, "meta")
    assert (module.weight.shape, module.weight.device.type) == (ROWS[name].shape, "meta")
    assert module.weight.is_complex() == (ROWS[name].field == "complex")


# ---- a matrix that is orthogonal up to rounding in one dtype is not so in a wider one, unless it is corrected

WITH_BASE = [name for name in ROWS if registered(name).parametrizations.weight[0].bases]


def bases(module):
    found = module.parametrizations.weight[0]
    return [getattr(found, name) for name in found.bases]


@rows
def test_a_weight_keeps_its_promise_in_a_wider_dtype(name):
    module = moved(registered(name, torch.float32))
    module.weight.abs().sum().backward()
    module.double()
    torch.testing.assert_close(module.weight, plain(name, module))
    assert ROWS[name].off is None or ROWS[name].off(module.weight) < LIMIT


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WITH_BASE)
def test_a_base_is_orthogonal_in_the_dtype_that_it_comes_to(name, narrow):
    module = moved(registered(name, torch.float32), 0.1).to(narrow)
    before = [B.clone() for B in bases(module)]
    again = registered(name)
    again.load_state_dict(module.state_dict())
    module.double()
    held = [x.parametrizations.weight[0] for x in (module, again)]
    found = [p.matrix(base) for p in held for base in p.bases]
    assert all(from_unitary(V) < LIMIT for V in found)
    for B, narrower in zip(bases(module), before, strict=True):
        torch.testing.assert_close(B, narrower.double(), rtol=0, atol=2 * torch.finfo(narrow).eps)


@pytest.mark.parametrize("name", ["exp", "cayley", "scaled_cayley-tall", "exp-heads-wide"])
def test_an_assigned_matrix_of_a_narrower_dtype(name):
    module, other = registered(name), registered(name, torch.float32)
    module.weight = other.weight.detach()
    assert from_unitary(module.weight) < LIMIT


@pytest.mark.parametrize("name", WITH_BASE)
def test_no_bit_changes_where_the_dtype_does_not_widen(name):
    module = moved(registered(name))
    before = [B.clone() for B in bases(module)]
    module.load_state_dict(copy.deepcopy(module).state_dict())
    assert all(map(torch.equal, bases(module.double()), before))
    module.float()
    assert all(torch.equal(B, b.float()) for B, b in zip(bases(module), before, strict=True))
    module.to("meta").double()


def test_layers_have_their_weights_corrected():
    rnn = rnnkern.nn.ExpRNN(3, 20, 2).double()
    for name in ("weight_hh_l0", "weight_hh_l1"):
        assert from_unitary(getattr(rnn, name)) < LIMIT
