"""Measures one training step of expRNN (forward, backward and update) against the same network with other
parametrizations.

``python -m perf.orthogonal_step --help``. All run rnnkern's modReLU network with the same initial weights and input;
they differ in the parametrization that keeps the recurrent weight orthogonal. Baseline: the same step with an
unconstrained weight.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrizations

from perf import family, harness
from perf.harness import OURS, Case, NoKernel, Problem, labels
from perf.orthogonal import PEERS
from rnnkern import reference
from rnnkern.nn import RNN, ExpRNN
from rnnkern.ops import explain
from rnnkern.optim import param_groups

SHAPES = ((200, 10, 128), (100, 100, 512))
QUICK_SHAPES = ((5, 3, 16),)
"""(T, B, N), with I = H = N."""

STEP = "step of the optimiser"


def by_torch(module: Module) -> None:
    parametrizations.orthogonal(module, "weight_hh_l0", orthogonal_map="matrix_exp")


def by_geotorch(module: Module) -> None:
    importlib.import_module("geotorch").orthogonal(module, "weight_hh_l0")


def network(like: ExpRNN, keep: Callable[[Module], None] | None) -> RNN:
    """A network with the weights of ``like``; ``keep`` registers a parametrization of the recurrent weight."""
    module = RNN(like.input_size, like.hidden_size, bias=False, nonlinearity="modrelu")
    names = ("weight_ih_l0", "weight_hh_l0", "modrelu_bias_l0")
    module.load_state_dict({name: getattr(like, name).detach() for name in names})
    if keep is not None:
        keep(module)
        module.weight_hh_l0 = like.weight_hh_l0.detach()
    return module


def step(module: Module, x: Tensor, upstream: Tensor) -> Callable[[], dict[str, Tensor]]:
    """A function that runs one training step. The first call uses the given weights, and the updates are small
    (learning rate 1e-6)."""
    optimiser = torch.optim.RMSprop(param_groups(module, 1e-6), alpha=0.99)

    def call() -> dict[str, Tensor]:
        optimiser.zero_grad()
        x.grad = None
        h, _ = module(x)
        h.backward(upstream)
        optimiser.step()
        return {"h": h.detach(), "gradient of x": x.grad}

    return call


def loop(weights: dict[str, Tensor], x: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    R = weights["weight_hh_l0"]
    state = (x.new_zeros(x.shape[1], R.shape[0]),)
    h, _ = reference.recurrence(
        "modrelu", x, R, state, params=(weights["modrelu_bias_l0"],), weight_ih=weights["weight_ih_l0"]
    )
    return {"h": h.detach(), "gradient of x": torch.autograd.grad(h, x, upstream)[0]}


def problem_of(shape: tuple[int, int, int], seed: int) -> Problem:
    torch.manual_seed(seed)
    steps, batch, size = shape
    ours = ExpRNN(size, size)
    x, upstream = torch.randn(steps, batch, size), torch.randn(steps, batch, size)
    if explain(ours, x)[0].implementation == "reference":
        raise NoKernel(f"there is no kernel to measure: {explain(ours, x)[0].reason}")
    weights = {
        name: getattr(ours, name).detach().clone() for name in ("weight_ih_l0", "weight_hh_l0", "modrelu_bias_l0")
    }
    modules, absent = {OURS: ours, PEERS[1]: network(ours, by_torch)}, {}
    if importlib.util.find_spec(PEERS[2]):
        modules[PEERS[2]] = network(ours, by_geotorch)
    else:
        absent[PEERS[2]] = "it is not installed"
    free = step(network(ours, None), x.clone().requires_grad_(), upstream)
    return Problem(
        calls={STEP: {name: step(module, x.clone().requires_grad_(), upstream) for name, module in modules.items()}},
        baselines={STEP: lambda: free() and None},
        baseline="free weight",
        naive=functools.partial(loop, weights, x, upstream),
        truth=functools.partial(loop, {name: w.double() for name, w in weights.items()}, x.double(), upstream.double()),
        absent=absent,
    )


def cases(shapes: Sequence[tuple[int, int, int]]) -> list[Case]:
    return [
        Case(
            labels("optimiser step", "step", "expRNN", shape, "float32"),
            functools.partial(problem_of, shape),
            kinked=True,
        )
        for shape in shapes
    ]


def main(argv: Sequence[str]) -> None:
    parser = family.arguments("Times one step of an optimiser of expRNN.", ["float32"])
    chosen, setup = family.begin(parser, argv, "orthogonal_step")
    harness.run(cases(QUICK_SHAPES if chosen.quick else SHAPES), *setup)


if __name__ == "__main__":
    main(sys.argv[1:])
