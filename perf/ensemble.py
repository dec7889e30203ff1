"""Measures ``torch.vmap`` over many small networks with weights of their own and one input, against a call for each.

``python -m perf.ensemble --help``. Forward without gradients; forward and backward with the gradients of all weights.
"""

import copy
import functools
import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

import rnnkern
from perf import family, harness
from perf.harness import OURS, Case, Problem, Values, labels
from rnnkern._gemm import run

SHAPES = ((64, 128, 8, 16),)
QUICK_SHAPES = ((3, 4, 2, 4),)
"""(E, T, B, H): networks, steps, batch size and hidden size, which is also the input size."""
LAYERS = ("RNN", "GRU", "LSTM")
TORCH = "torch.nn, one by one"


class Together:
    """All networks in one call."""

    def __init__(self, networks: Sequence[torch.nn.Module], x: Tensor) -> None:
        base = copy.deepcopy(networks[0]).to("meta")
        self.weights = {name: w.detach() for name, w in stack_module_state(list(networks))[0].items()}
        self.output = lambda weights: functional_call(base, weights, (x,))[0]

    def forward(self) -> Values:
        with torch.no_grad():
            return {"output": vmap(self.output)(self.weights)}

    def both(self) -> Values:
        return vmap(grad(lambda weights: self.output(weights).square().sum()))(self.weights)


class OneByOne:
    """A call for each network."""

    def __init__(self, networks: Sequence[torch.nn.Module], x: Tensor) -> None:
        self.networks, self.x = networks, x
        self.names = [name for name, _ in networks[0].named_parameters()]

    def forward(self) -> Values:
        with torch.no_grad():
            return {"output": torch.stack([network(self.x)[0] for network in self.networks])}

    def both(self) -> Values:
        losses = ((network, network(self.x)[0].square().sum()) for network in self.networks)
        found = [torch.autograd.grad(loss, list(network.parameters())) for network, loss in losses]
        return {name: torch.stack(each) for name, each in zip(self.names, zip(*found, strict=True), strict=True)}


def products(shape: tuple[int, ...], gates: int, dtype: torch.dtype) -> dict[str, functools.partial]:
    """One product of the input with the weights of all networks, and one batched product with R for each step."""
    networks, steps, batch, size = shape
    of_networks = functools.partial(torch.randn, networks, dtype=dtype)
    x, W = torch.randn(steps * batch, size, dtype=dtype), torch.randn(size, networks * gates * size, dtype=dtype)
    h, r, R = of_networks(batch, size), of_networks(batch, gates * size), of_networks(size, gates * size)
    all_h, all_r, u = of_networks(steps * batch, size), of_networks(steps * batch, gates * size), x @ W
    ahead = [functools.partial(torch.mm, x, W, out=u), *[functools.partial(torch.bmm, h, R)] * steps]
    back = [functools.partial(torch.bmm, r, R.mT)] * steps
    back += [functools.partial(torch.mm, x.t(), u), functools.partial(torch.bmm, all_h.mT, all_r)]
    return {"forward": functools.partial(run, ahead), "forward+backward": functools.partial(run, ahead + back)}


def problem_of(layer: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Problem:
    torch.manual_seed(seed)
    networks, steps, batch, size = shape
    plain = [getattr(torch.nn, layer)(size, size, dtype=dtype) for _ in range(networks)]
    ours = [getattr(rnnkern.nn, layer)(size, size, dtype=dtype) for _ in range(networks)]
    for mine, other in zip(ours, plain, strict=True):
        mine.load_state_dict(other.state_dict())
    x = torch.randn(steps, batch, size, dtype=dtype)
    ways = {OURS: Together(ours, x), f"{OURS}, one by one": OneByOne(ours, x), TORCH: OneByOne(plain, x)}
    exact = OneByOne([copy.deepcopy(network).double() for network in plain], x.double())
    directions = {"forward": "forward", "forward+backward": "both"}
    return Problem(
        calls={name: {way: getattr(of, call) for way, of in ways.items()} for name, call in directions.items()},
        baselines=products(shape, ours[0].weight_hh_l0.shape[0] // size, dtype),
        baseline="products",
        naive=lambda: ways[TORCH].forward() | ways[TORCH].both(),
        truth=lambda: exact.forward() | exact.both(),
    )


def cases(shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: str = "float32") -> list[Case]:
    return [
        Case(labels(layer, "ensemble", layer, s, dtype), functools.partial(problem_of, layer, s, getattr(torch, dtype)))
        for s in shapes
        for layer in LAYERS
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times torch.vmap over small networks.", family.WIDE)
    family.add_shapes(parser, "ExTxBxH", "one")
    chosen, setup = family.begin(parser, argv, "ensemble", name="ensemble")
    usual = QUICK_SHAPES if chosen.quick else SHAPES
    harness.run(cases(chosen.shapes or usual, chosen.dtype), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
