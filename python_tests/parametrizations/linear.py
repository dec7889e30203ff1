"""A layer whose weight is kept orthogonal, and the weight's formula."""

import torch

import rnnkern
from rnnkern.parametrizations import orthogonal

N = 6
X = torch.randn(3, N, generator=torch.Generator().manual_seed(1))


def made():
    module = orthogonal(torch.nn.Linear(N, N), "weight")
    move(module)
    return module


@torch.no_grad()
def move(module):
    """Away from A = 0, where nothing is computed."""
    skew_of(module).add_(torch.randn(N, N) / 2)


def skew_of(module):
    return module.parametrizations.weight.original


def plain(module, A=None):
    """The weight by its formula, through autograd alone."""
    B = module.parametrizations.weight[0].base
    return B + B @ rnnkern.reference.skew_exp(skew_of(module) if A is None else A, form="expm1")
