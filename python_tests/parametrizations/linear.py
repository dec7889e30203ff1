"""A linear layer with an orthogonal weight, and the formula of the weight."""

import torch

import rnnkern
from rnnkern.parametrizations import orthogonal

N = 6
X = torch.randn(3, N, generator=torch.Generator().manual_seed(1))


def made():
    module = orthogonal(torch.nn.Linear(N, N), "weight", init="henaff")
    move(module)
    return module


@torch.no_grad()
def move(module):
    """Moves A away from 0, at which nothing is computed."""
    skew_of(module).add_(torch.randn(N, N) / 2)


def skew_of(module):
    return module.parametrizations.weight.original


def plain(module, A=None):
    """The weight by its formula, with plain autograd."""
    B = module.parametrizations.weight[0].base
    return B + B @ rnnkern.reference.skew_exp(skew_of(module) if A is None else A, form="expm1")
