"""The relevancy recurrence's CUDA drivers as functions that tests can call: on a GPU, or on the interpreter with CPU
tensors. Forward and backward are held against the reference and its autograd."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.gpu import builder
from rnnkern import reference
from rnnkern.reference import CELLS, RelevancyState
from rnnkern.reference.relevancy import FACTORS, empty_state

SOURCES = (
    *builder.INTERPRETER,
    "csrc/interpreter/relevancy.cpp",
    "csrc/common/counters.cpp",
    "csrc/common/tensor.cpp",
    *(f"csrc/relevancy/{name}" for name in ("attend.cu", "cuda_forward.cpp", "cuda_backward.cpp")),
)
SHARED = ("relevancy_recurrence", "relevancy_recurrence_backward", "kernel_counts")
LIBRARY = "rnnkern_interpret_relevancy"


@functools.cache
def interpreted():
    """torch.ops.rnnkern_interpret_relevancy, with the schemas of torch.ops.rnnkern."""
    definitions = torch.library.Library(LIBRARY, "DEF")
    for name in SHARED:
        definitions.define(str(getattr(torch.ops.rnnkern, name).default._schema).removeprefix("rnnkern::"))
    definitions.define("set_seed(int seed) -> ()")
    torch.ops.load_library(build_library())
    interpreted.kept = definitions
    return getattr(torch.ops, LIBRARY)


def build_library(flags: tuple[str, ...] = ()) -> Path:
    folder = Path(torch.__file__).parent
    own = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-fvisibility=hidden", "-isystem", f"{folder}/include"]
    name = "relevancy" + "".join(flag.partition("=")[2].replace(",", "_") for flag in flags)
    return builder.build(name, SOURCES, [*own, *flags], [f"-L{folder}/lib", "-ltorch", "-ltorch_cpu", *flags])


class Call(NamedTuple):
    """Arguments of :func:`rnnkern.ops.relevancy_recurrence`, the state whole."""

    cell: str
    u: Tensor
    weights: tuple[Tensor, ...]
    state: RelevancyState
    params: tuple[Tensor, ...]
    buffer_size: int
    mix: str = "half"
    dot: bool = False
    scores: Tensor | None = None
    batch_sizes: Tensor | None = None
    reset: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Call":
        def cast(x: Any) -> Any:
            if isinstance(x, RelevancyState):
                return RelevancyState(*map(cast, x))
            if isinstance(x, tuple):
                return tuple(map(cast, x))
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        return Call(*map(cast, self))

    def leaves(self) -> dict[str, Tensor]:
        state = {f"state.{name}": getattr(self.state, name) for name in ("s", "c", "buffer", "relevant")}
        weights = dict(zip(("V", "W_a", "U_a", "v"), self.weights, strict=True))
        found = {"u": self.u, **weights, **state, **{f"params[{k}]": x for k, x in enumerate(self.params)}}
        return {name: x for name, x in found.items() if x is not None}


def sample(
    cell: str, steps: int, batch: int, hidden: int, buffer_size: int, relevant_size: int, dtype=torch.float64,
    seed: int = 0, packed: bool = False, reset: bool = False, given: bool = False, **options: Any,
) -> Call:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def random(*sizes: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(sizes, generator=generator, dtype=torch.float64)

    gates, states, names = CELLS[cell].gates, CELLS[cell].states, CELLS[cell].params
    sizes = torch.sort(torch.randint(0, batch + 1, (steps,), generator=generator), descending=True)[0]
    sizes = (sizes.clamp_min(1) if batch else sizes) if packed else None
    u = random(int(sizes.sum()), gates * hidden) if packed else random(steps, batch, gates * hidden)
    scale = hidden**-0.5
    weights = (random(gates * hidden, hidden, scale=scale), random(hidden, hidden, scale=2 * scale),
               random(hidden, hidden, scale=2 * scale), random(hidden, scale=2))  # fmt: skip
    state = empty_state([random(batch, hidden) for _ in range(states)], relevant_size)
    params = tuple(random(hidden, scale=0.1) for _ in names)
    call = Call(
        cell, u, weights, state, params, buffer_size, batch_sizes=sizes,
        reset=torch.rand(steps, batch, generator=generator) < 0.1 if reset else None,
        scores=random(steps, batch) if given else None, **options,
    )  # fmt: skip
    return call.to(dtype)


def of_reference(call: Call) -> tuple[dict[str, Tensor], RelevancyState, Tensor]:
    """Floating-point results by name, the state, and what was attended to."""
    arguments = {
        "buffer_size": call.buffer_size, "relevant_size": call.state.relevant.shape[1], "mix": call.mix,
        "alignment": "dot" if call.dot else "additive", "params": call.params, "batch_sizes": call.batch_sizes,
        "reset": call.reset, "screening": "attention" if call.scores is None else call.scores,
    }  # fmt: skip
    run = functools.partial(reference.relevancy_recurrence, call.cell, call.u, call.weights, call.state, **arguments)
    h, state, memory = run(return_memory=True)
    s = run(readout="s")[0]
    return named(h, s, memory.weights, state), state, memory.ids


def named(h: Tensor, s: Tensor, alpha: Tensor, state: RelevancyState) -> dict[str, Tensor]:
    floats = {f"state.{name}": x for name, x in state._asdict().items() if x is not None and x.is_floating_point()}
    return {"h": h, "s": s, "alpha": alpha, **floats}


class Place:
    """The operators, where kernels run."""

    def __init__(self, operators):
        self.operators = operators

    def arguments(self, call: Call) -> tuple[Any, ...]:
        state = [x for x in call.state if x is not None]
        return (call.params, call.batch_sizes, call.reset, call.scores, call.buffer_size, FACTORS[call.mix], call.dot,
                call.weights, state)  # fmt: skip

    def forward(self, call: Call, training: bool = False, maps: bool = True) -> list[Tensor]:
        *rest, weights, state = self.arguments(call)
        return self.operators.relevancy_recurrence(call.cell, call.u, weights, state, *rest, training, maps)

    def results(self, call: Call, outputs: list[Tensor]) -> tuple[dict[str, Tensor], RelevancyState, Tensor]:
        """Of a forward with maps, as :func:`of_reference` has them."""
        h, s, *rest = outputs
        if call.state.c is None:
            rest.insert(1, None)
        state = RelevancyState(*rest[:9])
        return named(h, s, rest[9], state), state, rest[10]

    def gradients(self, call: Call, grads: dict[str, Tensor]) -> dict[str, Tensor]:
        """By name of the leaf, for gradients of results by name."""
        *rest, weights, state = self.arguments(call)
        h, s, *others = self.forward(call, training=True, maps=False)
        saved = others[8 + (call.state.c is not None) :]
        names = [name for name in ("s", "c", "buffer", "relevant") if getattr(call.state, name) is not None]
        found = self.operators.relevancy_recurrence_backward(
            call.cell, grads.get("h"), grads.get("s"), [grads[f"state.{name}"] for name in names], weights, state,
            *rest, h, s, saved,
        )  # fmt: skip
        return dict(zip(call.leaves(), found, strict=True))


def cotangents(call: Call, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    results = of_reference(call)[0]
    wanted = ("h", "s", *(f"state.{name}" for name in ("s", "c", "buffer", "relevant")))
    return {
        name: torch.randn(results[name].shape, generator=generator, dtype=torch.float64).to(call.u.dtype)
        for name in wanted if name in results
    }  # fmt: skip


def gradients_of_reference(call: Call, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: x.detach().requires_grad_() for name, x in call.leaves().items()}
    state = call.state._replace(**{name[6:]: x for name, x in leaves.items() if name.startswith("state.")})
    params = tuple(leaves[f"params[{k}]"] for k in range(len(call.params)))
    weights = tuple(leaves[name] for name in ("V", "W_a", "U_a", "v"))
    results = of_reference(call._replace(u=leaves["u"], weights=weights, state=state, params=params))[0]
    outputs = [results[name] for name in grads if results[name].requires_grad]
    given = [grads[name].to(results[name].dtype) for name in grads if results[name].requires_grad]
    found = torch.autograd.grad(outputs, list(leaves.values()), given, allow_unused=True)
    return {
        name: torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(leaves.items(), found, strict=True)
    }
