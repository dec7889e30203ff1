"""The table of operators: for each, how to draw a call of given sizes, dtype and option. Tests of properties that hold
for every operator run over it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from python_tests.ops import relevancy_sample, sab_calls
from python_tests.samples.agreement import agree, draws, with_gradients
from python_tests.samples.gather_attention import gather_sample
from python_tests.samples.givens_recurrence import GIVENS_OPTIONS, givens_recurrence_sample
from python_tests.samples.linear_scan import SCAN_OPTIONS, scan_sample
from python_tests.samples.moment_filter import FILTER_OPTIONS, filter_sample
from python_tests.samples.orthogonal import givens_sample, schur_leaves
from python_tests.samples.recurrence import RECURRENCE_OPTIONS, recurrence_sample
from python_tests.samples.similarity import similarity_sample
from rnnkern import ops, reference
from rnnkern.reference._relevancy import RELEVANCY_CELLS

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128
REAL, COMPLEX = (F32, F64), (F32, F64, C64, C128)


class Call(NamedTuple):
    """One call of an operator."""

    name: str
    tensors: dict[str, Tensor]
    """Those that gradients flow to."""
    options: dict[str, Any]
    """The other arguments."""

    def arguments(self) -> dict[str, Any]:
        """All arguments by keyword."""
        return OPERATORS[self.name].arguments(self.tensors, self.options)

    def with_tensors(self, tensors: dict[str, Tensor]) -> "Call":
        """The call with some other tensors."""
        return self._replace(tensors=self.tensors | tensors)


class Operator(NamedTuple):
    """A row of the table."""

    draw: Callable[..., tuple[dict[str, Tensor], dict[str, Any]]]
    """Draws tensors and options from torch's generator, for sizes, ``dtype`` and other keywords."""
    small: tuple
    """Sizes that are small enough for finite differences."""
    most: tuple
    """The largest sizes of random calls. The smallest are 0, or 1 where ``most`` is negative."""
    options: dict[str, dict[str, Any]] = {"plain": {}}  # noqa: RUF012
    """Keywords of ``draw`` that make a difference."""
    dtypes: tuple[torch.dtype, ...] = REAL
    arguments: Callable[[dict, dict], dict[str, Any]] = lambda tensors, options: tensors | options
    """The arguments by keyword, from tensors and options."""


# ---- draws


def scan(*sizes, **options):
    sample = scan_sample(*sizes, **options)
    return sample.leaves(), sample.kwargs


def filtering(*sizes, **options):
    sample = filter_sample(*sizes, **options)
    return sample.leaves(), sample.kwargs


def moments(tensors, options):
    u, *state = tensors.values()
    return {"u": u, "state": tuple(state) or None} | options


def power_of_two(size):
    return 1 << (size - 1).bit_length()


def rotating(steps=5, batch=3, size=4, layers=3, *, style="tunable", **options):
    size = power_of_two(size) if style == "butterfly" else size
    return givens_recurrence_sample(steps, batch, size, layers, style=style, **options)


def rotations(size=7, layers=5, vectors=6, batch=(), *, style="tunable", alone=False, dtype=F64):
    """``alone`` is a call without vectors, whose result is the matrix."""
    size = power_of_two(size) if style == "butterfly" else size
    angles, x = givens_sample(size, layers, vectors, *batch, dtype=dtype)
    return {"angles": angles} | ({} if alone else {"x": x}), {"style": style} | ({"size": size} if alone else {})


def attention(*sizes, alignment="additive", own=False, **options):
    """``own`` is a v for each sample."""
    q, u, h, idx, v = gather_sample(*sizes, **options)
    v = torch.randn(len(q), *v.shape).to(v) if own and len(q) else v
    return {"q": q, "u": u, "h": h, "v": v}, {"idx": idx, "alignment": alignment, "return_weights": True}


def similar(*sizes, mask="causal", packed=False, **options):
    return similarity_sample(*sizes, mask=mask, packed=packed and mask != "full", **options)


def square(size=9, batch=(), *, scale=1.0, dtype=F64):
    return scale * torch.randn(*batch, size, size, dtype=dtype) / max(size, 1) ** 0.5


def exponent(*sizes, form="exp", **options):
    return {"A": square(*sizes, **options)}, {"form": form}


def cayley(*sizes, scaled=False, **options):
    A = square(*sizes, **options)
    return {"A": A}, {"scale": (torch.randint(2, A.shape[-1:]) * 2 - 1).to(A) if scaled else None}


def nearly_orthogonal(size=9, batch=(), dtype=F64):
    return {"B": torch.eye(size, dtype=dtype) + square(size, batch, scale=0.05, dtype=dtype)}, {}


def schur(size=5, batch=(), dtype=F64):
    leaves = (x.to(dtype) for x in schur_leaves(size, *batch))
    return dict(zip(("P", "theta", "gamma", "T"), leaves, strict=True)), {}


def reflections(size=7, count=4, batch=(), dtype=F64):
    return {"V": torch.randn(*batch, size, min(size, count), dtype=dtype)}, {}


def relevancy(*sizes, cell="tanh", dtype=F64, output="h", **options):
    call = relevancy_sample.call_of(cell, *sizes, **options, dtype=dtype).to(dtype, requires_grad=False)
    return call.leaves(), {"call": call, "output": output}


def of_relevancy(tensors, options):
    call = relevancy_sample.with_leaves(options["call"], tensors)
    named = dict(zip(("cell", "u", "R", "state", "attention_weights"), call.args, strict=True))
    return named | call.kwargs | {"output": options["output"]}


def sab(*sizes, dtype=F64, **options):
    """A call that is well conditioned."""
    while not sab_calls.well_conditioned(call := sab_calls.make(*sizes, **options), 1e-4):
        pass
    return {name: x.to(dtype) for name, x in call.leaves.items()}, call.options


def of_sab(tensors, options):
    def by_keyword(u, R, state, attention_weights, **rest):
        return {"u": u, "R": R, "state": state, "attention_weights": attention_weights} | rest

    return sab_calls.Call(tensors, options)(by_keyword)


def recurrent(*sizes, cell="lstm", **options):
    return named(recurrence_sample(cell, *sizes, **options))


def named(sample):
    """Tensors by name and options of a sample of the recurrence."""
    cell, u, R, state = sample.args
    tensors = {"u": u, "R": R} | {f"state[{k}]": x for k, x in enumerate(state)}
    options = dict(sample.kwargs)
    tensors |= {f"params[{k}]": x for k, x in enumerate(options.pop("params"))}
    tensors |= {name: options.pop(name) for name in ("bias", "weight_ih", "bias_ih") if options.get(name) is not None}
    return tensors, {"cell": cell} | options


def of_recurrence(tensors, options):
    group = lambda kind: tuple(x for name, x in tensors.items() if name.startswith(f"{kind}["))  # noqa: E731
    single = {name: x for name, x in tensors.items() if "[" not in name}
    return options | single | {"state": group("state"), "params": group("params")}


STYLES = {"tunable": {}, "butterfly": {"style": "butterfly"}}
RELEVANCY_OPTIONS = {
    "plain": {},
    "packed, reset, carried": {"packed": True, "reset": 0.3, "carried": 5},
    "all remembered": {"buffer_size": 11, "relevant_size": 1, "carried": 2},
    "window": {"relevant_size": 0},
    "given, dot, sum": {"relevance": "given", "alignment": "dot", "combine": "sum"},
    "concat": {"combine": "concat", "packed": True, "reset": 0.3},
    "heads": {"heads": 2, "carried": 5},
}
SAB_OPTIONS = {
    "separable": {"resets": True, "top_k": 2},
    "mlp": {"width": 2, "resets": True, "top_k": 2},
    "packed": {"packed": True, "attend_every": 2},
}
SIMILARITY_OPTIONS = {
    "causal": {},
    "strict": {"mask": "strict", "two": True, "packed": True},
    "full": {"mask": "full", "values": 2, "norm": "biased"},
    "no norm": {"norm": None, "two": True},
    "lengths": {"lengths": True, "values": 2},
    "eps": {"eps": 0.5, "packed": True},
}

OPERATORS = {
    "linear_scan": Operator(scan, (3, 2, 2), (9, 5, -40), SCAN_OPTIONS, COMPLEX),
    "moment_filter": Operator(filtering, (3, 2, 2), (40, 5, -40), FILTER_OPTIONS, arguments=moments),
    "givens_recurrence": Operator(
        rotating, (2, 2, 4, 2), (6, 5, -40, 5),
        GIVENS_OPTIONS | {"butterfly-reset": {"style": "butterfly", "reset": True}}, COMPLEX,
    ),
    "givens_product": Operator(
        rotations, (4, 3, 2), (-40, 5, 3),
        STYLES | {f"{name} alone": style | {"alone": True} for name, style in STYLES.items()},
    ),
    "gather_attention": Operator(
        attention, (2, 3, 3, 3, 2), (3, 7, -9, 3, -40),
        {"additive": {}, "dot": {"alignment": "dot"}, "a v for each": {"own": True}},
    ),
    "similarity": Operator(similar, (3, 3, 3), (5, -9, -40), SIMILARITY_OPTIONS),
    "skew_exp": Operator(exponent, (4,), (33,), {"exp": {}, "expm1": {"form": "expm1"}}, COMPLEX),
    "cayley": Operator(cayley, (4,), (33,), {"plain": {}, "scaled": {"scaled": True}}, COMPLEX),
    "project_orthogonal": Operator(nearly_orthogonal, (3,), (33,), dtypes=COMPLEX),
    "schur_weight": Operator(schur, (5,), (33,)),
    "householder_product": Operator(reflections, (5, 3), (-20, 20), dtypes=COMPLEX),
    "relevancy_recurrence": Operator(
        relevancy, (4, 2, 3), (9, 3, -9),
        {f"{cell}, {name}": {"cell": cell, "output": "s" if name == "window" else "h"} | options
         for cell in RELEVANCY_CELLS for name, options in RELEVANCY_OPTIONS.items()},
        arguments=of_relevancy,
    ),
    "sab_recurrence": Operator(sab, (4, 2, 2), (13, 5, -9), SAB_OPTIONS, arguments=of_sab),
    "recurrence": Operator(recurrent, (3, 2, 2), (5, 4, -9), RECURRENCE_OPTIONS, arguments=of_recurrence),
}  # fmt: skip


def draw(name: str, *sizes: Any, option: str = "", **options: Any) -> Call:
    """A random call of an operator."""
    row = OPERATORS[name]
    chosen = row.options[option] if option else {}
    return Call(name, *row.draw(*sizes, **(chosen | options)))


def cases(names: Any = tuple(OPERATORS)) -> list[tuple[str, str]]:
    """Each operator with each of its options."""
    return [(name, option) for name in names for option in OPERATORS[name].options]


def floating(result: Any) -> list[Tensor]:
    """The real and complex tensors of a result."""
    return [y for y in tree_leaves(result) if isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex())]


def outputs(call: Call, function: Callable | None = None) -> list[Tensor]:
    """The results of a call: of the operator, or of another function with its arguments."""
    return floating((function or getattr(ops, call.name))(**call.arguments()))


def function_of(call: Call) -> Callable[..., tuple[Tensor, ...]]:
    """The results as a function of the call's tensors; with gradients, if any of them has some."""

    def function(*tensors):
        found = outputs(call.with_tensors(dict(zip(call.tensors, tensors, strict=True))))
        return tuple(y for y in found if y.requires_grad) or tuple(found)

    return function


def results(
    function: Callable | None, call: Call, change: Callable = lambda y: y, frozen: str = ""
) -> dict[str, Tensor]:
    """Values by name, and the gradients of all tensors but a frozen one for random upstream gradients; each value is
    replaced by ``change(value)``."""
    tensors = {name: x.detach().requires_grad_(name != frozen) for name, x in call.tensors.items()}
    values = map(change, outputs(call.with_tensors(tensors), function))
    leaves = {name: x for name, x in tensors.items() if name != frozen}
    return with_gradients({f"output {k}": y for k, y in enumerate(values)}, leaves)


def check(name: str, *sizes: Any, scale: float = 0.0, **options: Any) -> None:
    """Compares values and gradients of random calls with the reference, as :func:`agree` does."""
    samples = draws(draw, name, *sizes, **options)
    agree(getattr(ops, name), getattr(reference, name), results, samples, f"{name} {sizes} {options}", scale)
