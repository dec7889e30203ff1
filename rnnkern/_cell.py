"""``rnnkern.cell``: compiles a Python function into a fused recurrent cell."""

import contextlib
import functools
import hashlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rnnkern import ops
from rnnkern._cells import library
from rnnkern._cells.derive import Derived, derive
from rnnkern._cells.evaluate import equations_of, step_of
from rnnkern._cells.expressions import expression, leaf
from rnnkern._cells.graph import Node, in_order
from rnnkern._cells.header import header_of
from rnnkern._cells.trace import CellError, trace
from rnnkern.ops.dispatch import use
from rnnkern.reference._recurrence import OWN_CELLS
from rnnkern.reference._recurrence import Cell as Formula
from rnnkern.testing import DRAWS, Triple, assert_close_over_draws


class Cell:
    """A recurrent cell that :func:`rnnkern.cell` made from a function. Calling it evaluates the traced equations.

    Attributes:
        name: its name for :func:`rnnkern.ops.recurrence` and in exported programs: that of the function with a hash of
            the equations, so that a redefined cell uses its new equations.
        gates, recurrent: names of the gates, and of the gates that have rows in R.
        states, params: names of the states and of the parameters, which are (H,) each.
        rows: for each parameter 1, or G if it is the weight or bias of a norm over all gates, (G*H,).
        saved: number of floats per unit and step that the backward pass needs in addition to the states.
        save: the variables whose values are saved, if they were given.
        init: the bounds of the uniform distributions that initialize parameters in a module, by parameter.
        source: the C++ header from which kernels are compiled.
    """

    def __init__(self, function: Callable, gates: Sequence[str], recurrent: Sequence[str],
                 init: Mapping[str, tuple[float, float]], save: Sequence[str] | None) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        self.function = function
        self._derived = derived = derive(trace(function, tuple(gates), tuple(recurrent), save))
        traced = derived.traced
        self.gates, self.recurrent, self.states, self.params, self.rows = traced[1:6]
        self.saved, self.save = len(derived.saved), save
        self.init = {name: (value, value) for name, value in traced.initial.items()} | dict(init)
        given = inspect.signature(function).parameters.values()
        constant = [p for p in given if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
        self._signature = inspect.Signature([p for p in given if p not in constant])
        if unknown := set(init) - set(self.params):
            raise CellError(
                f"{function.__name__}: `init` names {sorted(unknown)}, and the parameters are {self.params}"
            )
        text = header_of(derived, "Cell", function.__name__)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.name = f"{function.__name__}-{digest}"
        type_name = re.sub(r"\W", "_", self.name, flags=re.ASCII)  # is part of the kernel's name in profilers
        self.source = header_of(derived, type_name, function.__name__)
        self._equations = equations_of(traced)
        step = step_of(traced, self._equations)
        OWN_CELLS[self.name] = Formula(
            step, len(self.gates), len(self.states), self.params, derived.joint, len(self.recurrent), traced.rows,
            bool(traced.norms),
        )  # fmt: skip
        largest = max(len(self.gates), traced.first, len(self.recurrent) - traced.first)
        library.know(self.name, library.Known(type_name, self.source, self.saved, largest))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind(*args, **kwargs).arguments
        u, r, *old = (given[name] for name in [*self._signature.parameters][: 2 + len(self.states)])
        new = self._equations(u, r, old, [given[name] for name in self.params])
        return new if len(new) > 1 else new[0]

    def compile(self) -> "Cell":
        """Compiles the CPU kernel now, for the SIMD level in use, instead of at the first call.

        Raises:
            RuntimeError: it cannot be compiled; the message contains the reason.
        """
        if why := library.refusal(self.name):
            raise RuntimeError(why)
        return self

    def verify(self) -> "Cell":
        """Checks the compiled kernels against the function, on the CPU and, if there is one, on the current GPU, with
        random inputs of moderate size: first and second derivatives by finite differences in float64, and values and
        gradients in float32, bfloat16 and float16 by :func:`rnnkern.testing.assert_close_over_draws`. Takes a few
        seconds.

        Raises:
            RuntimeError: there is no kernel, or a derivative is wrong.
            AssertionError: a value or a gradient differs too much from that of the function, for instance because a
                constant that the function reads has changed since the cell was defined.
        """
        self.compile()
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._verify_on(device)
        return self

    @contextlib.contextmanager
    def _by_the_function(self) -> Iterator[None]:
        """Within it, the reference calls the function instead of evaluating the traced equations."""

        def untraced(u: Any, r: Any, old: Sequence[Tensor], param: Sequence[Tensor]) -> tuple[Any, ...]:
            new = self.function(u, r, *old, **dict(zip(self.params, param, strict=True)))
            return new if isinstance(new, tuple) else (new,)

        traced = OWN_CELLS[self.name]
        OWN_CELLS[self.name] = traced._replace(step=step_of(self._derived.traced, untraced))
        try:
            yield
        finally:
            OWN_CELLS[self.name] = traced

    def _verify_on(self, device: str) -> None:
        def drawn(dtype: torch.dtype, rounded: torch.dtype, seed: int = 0) -> list[Tensor]:
            generator, hidden = torch.Generator().manual_seed(seed), 5
            shapes = [(3, 2, len(self.gates) * hidden), (len(self.recurrent) * hidden, hidden)]
            shapes += [(2, hidden)] * len(self.states) + [(rows * hidden,) for rows in self.rows]
            leaves = [torch.randn(shape, generator=generator) / 2 for shape in shapes]
            return [x.to(rounded).to(device, dtype).requires_grad_() for x in leaves]

        def outputs(u: Tensor, R: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            state, params = rest[: len(self.states)], rest[len(self.states) :]
            h, final = ops.recurrence(self, u, R, state, params=params, save_u=True)
            return h, *final

        def values(implementation: str, dtype: torch.dtype, rounded: torch.dtype, seed: int) -> list[Tensor]:
            leaves = drawn(dtype, rounded, seed)
            by_the_function = self._by_the_function() if implementation == "reference" else contextlib.nullcontext()
            with use(implementation), by_the_function:
                found = outputs(*leaves)
                gradients = torch.autograd.grad(sum(y.sum() for y in found), leaves, allow_unused=True)
            return [*found, *(g for g in gradients if g is not None and g.numel())]

        leaves = drawn(torch.float64, torch.float64)
        torch.autograd.gradcheck(outputs, leaves)
        torch.autograd.gradgradcheck(outputs, leaves, fast_mode=True)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):

            def compared(seed: int, dtype: torch.dtype = dtype) -> dict[str, Triple]:
                found, naive = values(device, dtype, dtype, seed), values("reference", dtype, dtype, seed)
                triples = zip(found, naive, values("reference", torch.float64, dtype, seed), strict=True)
                return {f"result {k}": triple for k, triple in enumerate(triples)}

            assert_close_over_draws(map(compared, range(DRAWS)), f"{self.name}: ")

    def __reduce__(self):
        options = {"gates": self.gates, "recurrent": self.recurrent, "init": self.init, "save": self.save}
        return _restored, (self.__module__, self.__qualname__, self.name, _text_of(self.function), options)

    def __deepcopy__(self, memo: dict) -> "Cell":
        return self  # cells are immutable

    def __repr__(self) -> str:
        derived = self._derived
        params = zip(self.params, self.rows, strict=True)
        shown = ["u, r", *self.states, *(f"{name}=({'H' if rows == 1 else f'{rows}*H'},)" for name, rows in params)]
        lines = [f"rnnkern.cell {self.__name__}({', '.join(shown)}): {_counted(len(self.gates), 'gate')}"]
        if any(self.gates):
            lines[0] += f" {', '.join(self.gates)}"
        if self.recurrent != self.gates:
            lines.append(f"  recurrent: {', '.join(self.recurrent) or 'none'}")
        equations, names = _equations(derived)
        kept = f": {', '.join(names[node] for node in derived.saved)}" if derived.saved else ""
        lines.append(f"  kept for the backward pass, per unit and step: {_counted(self.saved, 'float')}{kept}")
        return "\n".join([*lines, *(f"  {line}" for line in equations)])


def cell(
    function: Callable | None = None, *, gates: str | int | Sequence[str] = 1,
    recurrent: str | Sequence[str] | None = None, init: Mapping[str, tuple[float, float]] | None = None,
    save: str | Sequence[str] | None = None,
) -> Any:  # fmt: skip
    """Makes a fused recurrent cell from the equations of one unit at one step.

    The function takes ``(u, r, *states, *, ...)``. ``u`` is the projected input :math:`W x_t + b_{ih}` and ``r`` the
    product :math:`R h_{t-1} + b_{hh}`; their gates are attributes, as in ``u.f + r.f``, but with a single gate ``u``
    and ``r`` are the values. The first state is multiplied by R and returned by layers. The function returns the new
    states in the same order. Keyword-only arguments without a default are parameters of the cell, tensors of shape
    (H,); those with a default are constants. ``r.n(x)`` is a second product, :math:`R_n x + b_n`, whose operand may
    depend on the results of the first product.

    The function is ordinary elementwise PyTorch, and :func:`rnnkern.layer_norm` and :func:`rnnkern.rms_norm`. The
    decorator traces it once and derives the backward pass. Kernels, the reference and second derivatives all compute
    the traced equations, so a constant from outside the function has the value of that moment, whatever becomes of it.
    The first call compiles kernels for both with the system's C++ compiler, in one to six seconds, and on a GPU also
    with NVRTC; they are cached on disk (``RNNKERN_CACHE_DIR``). Without a compiler the equations run in a loop over
    time, with a warning.

    Args:
        function: may contain arithmetic, comparisons, ``torch.where``, ``clamp``, ``minimum``, ``maximum``, ``abs``,
            ``sign``, ``square``, ``sqrt``, ``rsqrt``, ``reciprocal``, powers by constants, ``exp``, ``expm1``, ``log``,
            ``log1p``, ``sin``, ``cos``, ``sigmoid``, ``tanh``, and ``relu``, ``leaky_relu``, ``elu``, ``softplus``,
            ``silu``, ``gelu`` (``approximate="tanh"``), ``hardtanh``, ``hardsigmoid``, ``softsign``, ``logsigmoid``.
        gates: their names, one letter each (``"fn"``) or a sequence; or 1.
        recurrent: names of the gates that have rows in R; by default those of ``gates``. Gates may lack a recurrent
            part, and recurrent gates need not be gates of u. Gates of a second product come last.
        init: the bounds of the uniform distributions that initialize parameters in a module, by parameter; by default
            those of the weights, :math:`\\pm 1 / \\sqrt{H}`.
        save: variables of the function, named like ``gates``, whose values (as they are when the function returns) are
            saved for the backward pass. The backward pass computes from them what it can, transcendental functions
            included; if it needs more, the smallest set that suffices is saved too. ``save=()`` therefore saves the
            least. By default the smallest set is saved from which the backward pass evaluates no transcendental
            function again.

    Returns:
        A :class:`Cell`, for :class:`rnnkern.nn.Recurrent` and :func:`rnnkern.ops.recurrence`.

    Raises:
        CellError: the function contains what kernels cannot express: a condition on a value, an in-place operation, a
            reduction, a matrix product, or a tensor from outside. The message contains the line and the remedy.

    >>> @rnnkern.cell(gates="fn")
    ... def mgu(u, r, h):
    ...     f = torch.sigmoid(u.f + r.f)
    ...     n = torch.tanh(u.n + f * r.n)
    ...     return (1 - f) * h + f * n
    >>> layer = rnnkern.nn.Recurrent(mgu, 8, 16)
    >>> output, h_n = layer(torch.randn(5, 2, 8))
    >>> output.shape
    torch.Size([5, 2, 16])
    """
    if function is None:
        return functools.partial(cell, gates=gates, recurrent=recurrent, init=init, save=save)
    names = ("",) if gates == 1 else tuple(map(str, range(gates))) if isinstance(gates, int) else tuple(gates)
    wanted = names if recurrent is None else tuple(recurrent)
    if not names or len(set(names)) < len(names) or len(set(wanted)) < len(wanted):
        raise CellError(
            f"{function.__name__}: `gates` and `recurrent` must be different names each, got {gates!r} and "
            f"{recurrent!r}"
        )
    for name in (*names, *wanted):
        if name and (name.startswith("_") or not (name.isidentifier() or name.isdigit())):
            raise CellError(f"{function.__name__}: a gate must have a name like `f` or `new_gate`, got {name!r}")
    if save is not None and len(set(save)) < len(save):
        raise CellError(f"{function.__name__}: `save` must name different variables, got {save!r}")
    return Cell(function, names, wanted, init or {}, None if save is None else tuple(save))


# ---- pickling and printing


def _text_of(function: Callable) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except OSError:
        return None


def _restored(module: str, name: str, wanted: str, text: str | None, options: dict[str, Any]) -> Cell:
    """The cell from its module if its equations are unchanged, otherwise a new one from its source."""
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
        if isinstance(found, Cell) and found.name == wanted:
            return found
    except (ImportError, AttributeError):
        pass
    if text is None:
        raise CellError(f"the cell {wanted!r} of {module}.{name} is not there any more, and its source was not kept")
    body = text[text.index("def ") :]
    names: dict[str, Any] = {"torch": torch, "F": F, "rnnkern": importlib.import_module("rnnkern")}
    exec(compile(body, f"<cell {name}>", "exec"), names)
    return cell(names[name.rpartition(".")[2]], **options)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _equations(derived: Derived) -> tuple[list[str], dict[Node, str]]:
    """The steps of the forward pass and the gradients, in the order of computation, and the names of their values."""
    traced = derived.traced
    names: dict[Node, str] = {}
    make = traced.graph.make
    for kind, of in (("u", traced.gates), ("r", traced.recurrent), ("old", traced.states)):
        for k, name in enumerate(of):
            names[make(kind, data=k)] = (f"{kind}.{name}" if name else kind) if kind in "ur" else name
    for data in traced.values_of_params():
        k, j = data if isinstance(data, tuple) else (data, None)
        names[make("param", data=data)] = traced.params[k] if j is None else f"{traced.params[k]}[{j}]"
    for k, norm in enumerate(traced.norms):
        for j in range(len(norm.inputs)):
            names[make("dinput", data=(k, j))] = f"dinput{k}[{j}]"
    for k, name in enumerate(traced.states):
        names[traced.graph.make("grad", data=k)] = f"d{name}'"
    lines: list[str] = []

    def of_each(kind: str, of: tuple[str, ...], nodes: tuple[Node | None, ...]) -> dict[str, Node | None]:
        dot = "." if kind != "d" and any(of) else ""
        return {f"{kind}{dot}{name}": node for name, node in zip(of, nodes, strict=True)}

    operand = {} if traced.operand is None else {"operand": traced.operand}
    results = operand | {f"{name}'": node for name, node in zip(traced.states, traced.next, strict=True)}
    results |= {f"dnorm{k}[{j}]": node for k, nodes in enumerate(derived.dnorms) for j, node in enumerate(nodes)}
    results |= of_each("du", traced.gates, derived.du)
    results |= {} if derived.joint else of_each("dr", traced.recurrent, derived.dr)
    results |= of_each("d", traced.states, derived.dold)
    results |= {f"d{names[traced.graph.make('param', data=data)]}": node for data, node in derived.dparams.items()}
    added = of_each("du", traced.gates, derived.operand_du) if operand else {}
    added |= of_each("dr", traced.recurrent, derived.operand_dr) if operand and not derived.joint else {}
    added |= of_each("d", traced.states, derived.operand_dold) if operand else {}
    for name, node in (*results.items(), *((f"{name} +", node) for name, node in added.items() if node)):
        for step in in_order([node] if node else [], stop=names.__contains__):
            if step not in names and step.args:
                text = expression(step, names).replace("V(", "(")
                if step.op == "norm":
                    k, j = step.data
                    text = f"{traced.norms[k].kind}({', '.join(names[a] for a in step.args)})[{j}]"
                names[step] = f"x{len(lines)}"
                lines.append(f"{names[step]} = {text}")
        lines.append(f"{name} = {0 if node is None else names.get(node) or leaf(node)}".replace(" + = ", " += "))
    return lines, names
