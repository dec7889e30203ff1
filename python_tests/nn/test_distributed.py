"""The modules in data-parallel training: two processes on the CPU, each with half of the batch."""

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from python_tests import seeds
from python_tests.samples.layers import draw_input, layer

STEPS = 2

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

NAMES = ("RNN heads", "LSTM", "LSTM projected", "ExpRNN", "NonNormalRNN", "GRU before")
REPLICATED = ("ExpRNN dynamic",)
"""Layers that change their parameter after an optimizer step and need all of it, so they cannot be sharded."""


def data_parallel(module):
    return torch.nn.parallel.DistributedDataParallel(module)


def fully_sharded(module):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True)


def fully_shard(module):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))


def whole(model):
    """The full state_dict, gathered from all shards."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


WRAPPERS = {wrap.__name__: wrap for wrap in (data_parallel, fully_sharded, fully_shard)}
CASES = [(kind, name) for kind in WRAPPERS for name in NAMES] + [("data_parallel", name) for name in REPLICATED]


def train(model, x):
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x)[0].square().mean().backward()
        optimizer.step()


def fresh(name):
    torch.manual_seed(0)
    module = layer(name, bidirectional=name in ("LSTM", "ExpRNN"), dtype=torch.float64)
    return module, draw_input(name, batch=4).double()


def work(rank, folder):
    seeds.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    trained = {}
    for kind, name in CASES:
        module, x = fresh(name)
        model = WRAPPERS[kind](module)
        train(model, x.chunk(2, dim=1)[rank])
        trained[kind, name] = whole(model)
    if rank == 0:
        torch.save(trained, f"{folder}/trained")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("two_processes"))
    multiprocessing.spawn(work, (folder,), nprocs=2)
    return torch.load(f"{folder}/trained")


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.sampled
def test_two_halves_train_as_the_whole(kind, name, trained):
    module, x = fresh(name)
    before = {key: p.clone() for key, p in module.named_parameters()}
    train(module, x)
    for key, wanted in module.state_dict().items():
        torch.testing.assert_close(trained[kind, name][key], wanted, rtol=1e-10, atol=1e-12)
        moved = name in REPLICATED and key.endswith("original")  # its value moves into the base
        assert key not in before or moved or not torch.equal(wanted, before[key])
