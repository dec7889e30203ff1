"""Layers with a square orthogonal weight, and its distance from orthogonality."""

import torch

from rnnkern.parametrizations import orthogonal

F64 = torch.float64


def made(size=6, dtype=F64, init="henaff", **options):
    return orthogonal(torch.nn.Linear(size, size, bias=False, dtype=dtype), "weight", init=init, **options)


def distance(V):
    """max |V^T V - I|, computed in float64."""
    V = V.detach().double()
    return (V.mT @ V - torch.eye(V.shape[-1], dtype=F64)).abs().max().item()


def parts(module):
    """The parametrization and A."""
    found = module.parametrizations.weight
    return found[0], found.original


@torch.no_grad()
def moved(module, scale=0.5):
    parts(module)[1].copy_(scale * torch.randn(parts(module)[1].shape))
    return module
