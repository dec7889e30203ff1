"""What proves an operator: the closeness rule, and one list of samples for tests, opcheck and benchmarks alike."""

import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnkern import reference
from rnnkern.reference import CELLS

FACTORS = {torch.float32: 4.0, torch.bfloat16: 2.0, torch.float16: 2.0, torch.float64: 4.0}
"""How many times the error of honest low precision a kernel may make, by dtype."""

GROSS = 1000.0
"""How many times the naive error no luck explains."""


def assert_close(actual: Tensor, naive: Tensor, truth: Tensor, name: str = "", factor: float | None = None) -> None:
    """Judges a kernel's result by the error that plain PyTorch makes in the same dtype, both against float64.

    The error may be ``FACTORS[dtype]`` times the naive one, by root mean square and by its largest element. Above 1,000
    elements the direction (the sine of the angle to the truth) and the bias (the mean signed error) are judged alike: a
    small error everywhere in one direction passes the first tests and not these.

    A naive error can be small by luck, and then a floor stands in its place: for the root mean square the rounding of a
    result, ``eps`` of its largest element; for the largest error three times the root mean square; for the bias an
    eighth of it, as 64 independent errors would have (those of one sequence are not independent).

    Args:
        actual: the kernel's result.
        naive: the reference's result in the dtype of ``actual``.
        truth: the reference's result in float64, from the same inputs.
        name: what is compared, for the message.
        factor: another than that of the dtype, for what is computed in less precision than it is stored in.

    Raises:
        AssertionError: shape, dtype or device differ, NaN or infinity stand in other places, or an error is too large.
    """
    assert actual.shape == truth.shape == naive.shape, f"{name}: shapes {actual.shape}, {naive.shape}, {truth.shape}"
    assert actual.dtype == naive.dtype, f"{name}: dtype {actual.dtype}, wanted {naive.dtype}"
    assert actual.device == naive.device, f"{name}: device {actual.device}, wanted {naive.device}"
    if actual.numel() == 0:
        return
    a, n, t = (x.detach().double().flatten().cpu() for x in (actual, naive, truth))
    same = torch.where(n.isfinite(), a.isfinite(), (a == n) | (a.isnan() & n.isnan()))
    assert same.all(), f"{name}: {int((~same).sum())} of {a.numel()} elements are not finite where plain PyTorch's are"
    a, n, t = (x[n.isfinite() & t.isfinite()] for x in (a, n, t))
    if a.numel() == 0:
        return
    factor, eps = factor or FACTORS[actual.dtype], torch.finfo(actual.dtype).eps

    def judge(what: str, error: float, naive_error: float, floor: float) -> None:
        bound = factor * max(naive_error, floor)
        assert error <= bound, (
            f"{name}: {what} {error:.3g} exceeds {bound:.3g} = {factor:g} * max(naive {naive_error:.3g}, {floor:.3g})"
        )

    scale = t.abs().max().item()
    rms, naive_rms = (_rms(x - t) for x in (a, n))
    floor = max(naive_rms, eps * scale)
    judge("root mean square error", rms, naive_rms, eps * scale)
    judge("largest error", (a - t).abs().max().item(), (n - t).abs().max().item(), 3 * floor)
    if a.numel() > 1000 and scale > 0:
        rounding = 64 * torch.finfo(torch.float64).eps  # of the sine itself
        judge("sine of the angle to the truth", _sine(a, t), _sine(n, t), max(eps, rounding))
        judge("bias", abs((a - t).mean().item()), abs((n - t).mean().item()), floor / 8)


def assert_close_over_draws(draws: Iterable[tuple[Tensor, Tensor, Tensor]], name: str = "") -> None:
    """:func:`assert_close` of a result of few elements, over many random calls at once.

    Of one such call the naive error may be small by luck: of two honest errors of one element either is more than four
    times the other in one of three cases. So a single call is held to :data:`GROSS` times the naive error, or to as
    many roundings of its largest element, which finds what is wrong and not what is inexact. The factor of the dtype
    holds for all calls together, each measured by the larger one of its two errors: what is worse in most calls is
    found, and no single call decides.

    Args:
        draws: (actual, naive, truth) as :func:`assert_close` takes them.
        name: what is compared, for the message.

    Raises:
        AssertionError: as :func:`assert_close` does.
    """
    errors: tuple[list[Tensor], list[Tensor]] = ([], [])
    dtype = torch.float32
    for k, (actual, naive, truth) in enumerate(draws):
        assert_close(actual, naive, truth, f"{name} of call {k}", GROSS)
        dtype, eps = actual.dtype, torch.finfo(actual.dtype).eps
        known = naive.isfinite() & truth.isfinite()
        t = truth[known].double()
        if t.numel() == 0:
            continue
        pair = [x[known].double() - t for x in (actual, naive)]
        unit = max(*map(_rms, pair), eps * t.abs().max().item())
        for pool, x in zip(errors, pair, strict=True):
            pool.append(x / unit if unit > 0 else x)
    if errors[0]:
        all_errors, all_naive = (torch.cat(pool) for pool in errors)
        rms, bound = _rms(all_errors), FACTORS[dtype] * _rms(all_naive)
        assert rms <= bound, f"{name}: of {len(errors[0])} calls, pooled error {rms:.3g} exceeds {bound:.3g}"


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _sine(x: Tensor, truth: Tensor) -> float:
    along = torch.dot(x, truth) / torch.dot(truth, truth)
    return ((x - along * truth).norm() / x.norm().clamp_min(1e-300)).item()


class Sample(NamedTuple):
    """One call ``rnnkern.ops.recurrence(*args, **kwargs)``."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def leaves(self) -> list[Tensor]:
        """The tensors that gradients flow to."""
        _, u, R, state = self.args
        rest = [self.kwargs.get("bias"), *self.kwargs.get("params", ())]
        rest += [self.kwargs.get("weight_ih"), self.kwargs.get("bias_ih")]
        return [x for x in (u, R, *state, *rest) if x is not None]

    def noise(self) -> tuple[Any, ...]:
        """(zoneout of h, zoneout of c, dropout, seed), as the operator takes them."""
        rates = (*self.kwargs.get("zoneout", ()), 0.0, 0.0)
        return (*rates[:2], self.kwargs.get("dropout", 0.0), self.kwargs.get("seed"))

    def to(self, dtype: torch.dtype, requires_grad: bool | None = None) -> "Sample":
        """The same values in a dtype, as new leaves that require gradients (None: where they did before)."""

        def cast(x):
            if isinstance(x, (tuple, list)):
                return tuple(map(cast, x))
            if not isinstance(x, Tensor) or not x.is_floating_point():
                return x
            return (
                x.detach()
                .to(dtype, copy=True)
                .requires_grad_(x.requires_grad if requires_grad is None else requires_grad)
            )

        kwargs = {key: cast(value) for key, value in self.kwargs.items()}
        if kwargs.get("grad_scale") is not None:
            kwargs["grad_scale"].requires_grad_(False)  # a constant
        return Sample(self.name, cast(self.args), kwargs)


RECURRENCE_PARAMS = {
    "modrelu": lambda hidden: (torch.randn(hidden) * 0.1,),
    "euler": lambda hidden: (torch.rand(hidden) * 0.5,),
    "lstm_projected": lambda hidden: (torch.randn(max(hidden // 2, 1), hidden) / math.sqrt(hidden),),
    "lstm_layer_norm": lambda hidden: (*(0.5 + torch.rand(n * hidden) for n in (4, 1)), 0.2 * torch.randn(hidden)),
    "gru_layer_norm": lambda hidden: (0.5 + torch.rand(3 * hidden),),
}
"""Sample values of the cells' own tensors."""

RECURRENCE_OPTIONS = {
    "plain": {},
    "packed": {"packed": True},
    "reset": {"reset": True},
    "reverse": {"reverse": True},
    "heads": {"heads": 2},
    "packed-reset-reverse": {"packed": True, "reset": True, "reverse": True},
    "grad_scale": {"grad_scale": 1},
    "packed-grad_scale-heads": {"packed": True, "grad_scale": 2, "heads": 2},
    "no bias": {"bias": False},
    "weight_ih": {"inputs": 5},
    "packed-reset-reverse-heads-weight_ih": {"inputs": 3, "packed": True, "reset": True, "reverse": True, "heads": 2},
    "no bias-weight_ih": {"inputs": 3, "bias": False},
    "zoneout": {"zoneout": 0.3},
    "zoneout-mean": {"zoneout": 0.3, "drawn": False},
    "dropout": {"dropout": 0.4},
    "packed-reset-reverse-heads-weight_ih-zoneout-dropout": {
        "packed": True,
        "reset": True,
        "reverse": True,
        "heads": 2,
        "inputs": 3,
        "zoneout": 0.2,
        "dropout": 0.3,
    },
}


def recurrence_sample(
    cell: str,
    steps: int = 4,
    batch: int = 3,
    hidden: int = 4,
    *,
    heads: int = 1,
    bias: bool = True,
    packed: bool = False,
    reset: bool = False,
    reverse: bool = False,
    grad_scale: int = 0,
    inputs: int = 0,
    zoneout: float = 0.0,
    dropout: float = 0.0,
    drawn: bool = True,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> Sample:
    """Random arguments of :func:`rnnkern.ops.recurrence`, drawn from torch's generator.

    Args:
        cell, steps, batch, hidden, heads: T, B, H and K; R is scaled so that the state neither dies nor grows.
        bias, packed, reset, reverse: what the call has. Packed lengths fall evenly from ``steps`` to 1.
        grad_scale: 0 for none, 1 for (T,), 2 for (T, B).
        inputs: I, with ``weight_ih`` and, where ``bias`` is, ``bias_ih``; 0 for a call that is given ``u``.
        zoneout, dropout: their rates; half of the first for c. ``drawn``: whether there is a seed.
    """
    _, gates, states, *_ = CELLS[cell]
    params = RECURRENCE_PARAMS.get(cell, lambda hidden: ())(hidden)
    width = params[0].shape[0] if cell == "lstm_projected" else hidden
    d = hidden // heads
    R = torch.randn(gates * hidden, width) if heads == 1 else torch.randn(heads, gates * d, d)
    batch_sizes, rows = None, (steps, batch)
    if packed:
        lengths = torch.linspace(steps, min(steps, 1), batch).round().long()
        batch_sizes = (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)
        rows = (int(batch_sizes.sum()),)
    tensors = {
        "u": torch.randn(*rows, inputs or gates * hidden),
        "R": 0.8 * R / math.sqrt(d),
        "state": (torch.randn(batch, width), torch.randn(batch, hidden))[:states],
        "bias": 0.5 * torch.randn(gates * hidden) if bias else None,
        "params": params,
    }
    if inputs:
        tensors["weight_ih"] = torch.randn(gates * hidden, inputs) / math.sqrt(inputs)
        tensors["bias_ih"] = 0.5 * torch.randn(gates * hidden) if bias else None

    def leaf(x):
        if isinstance(x, tuple):
            return tuple(map(leaf, x))
        return None if x is None else x.to(dtype).requires_grad_(requires_grad)

    tensors = {name: leaf(x) for name, x in tensors.items()}
    kwargs = {"bias": tensors["bias"], "params": tensors["params"], "batch_sizes": batch_sizes, "reverse": reverse}
    kwargs |= {name: tensors[name] for name in ("weight_ih", "bias_ih") if name in tensors}
    if reset:
        kwargs["reset"] = torch.rand(steps, batch) < 0.3
    if grad_scale:
        kwargs["grad_scale"] = torch.rand((steps, batch)[:grad_scale]).to(dtype)
    if zoneout:
        kwargs["zoneout"] = (zoneout, zoneout / 2)[:states]
    if dropout:
        kwargs["dropout"] = dropout
    if (zoneout or dropout) and drawn:
        kwargs["seed"] = torch.randint(-(2**63), 2**63 - 1, ())
    return Sample(cell, (cell, tensors["u"], tensors["R"], tensors["state"]), kwargs)


DENSE = {"lstm_projected", *(name for name, cell in CELLS.items() if cell.normalised)}
"""Cells whose R has no heads: h is projected, or R h normalised."""


def takes(cell: str, options: Collection[str]) -> bool:
    """Whether a cell has the options."""
    return not ("heads" in options and cell in DENSE)


def recurrence_samples(cells: Sequence[str] = tuple(CELLS), **sizes: Any) -> Iterator[Sample]:
    """Every cell with every option of ``RECURRENCE_OPTIONS``; ``sizes`` as in :func:`recurrence_sample`."""
    for cell in cells:
        for name, options in RECURRENCE_OPTIONS.items():
            if takes(cell, options):
                yield recurrence_sample(cell, **{**sizes, **options})._replace(name=f"{cell}-{name}")


def outputs_and_gradients(op: Any, sample: Sample, seed: int = 0) -> dict[str, Tensor]:
    """Runs a call and its backward with random gradients of h and of the final state; all by name."""
    h, state = op(*sample.args, **sample.kwargs)
    results = {"h": h, **{f"final state[{k}]": s for k, s in enumerate(state)}}
    generator = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in results.values()]
    pairs = [(y, g) for y, g in zip(results.values(), upstream, strict=True) if y.requires_grad]
    leaves = sample.leaves()
    outputs, upstream = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(outputs, leaves, upstream, materialize_grads=True)
    names = ["u", "R", *(f"state[{k}]" for k in range(len(sample.args[3])))]
    names += ["bias"] if sample.kwargs.get("bias") is not None else []
    names += [f"params[{k}]" for k in range(len(sample.kwargs.get("params", ())))]
    names += [name for name in ("weight_ih", "bias_ih") if sample.kwargs.get(name) is not None]
    return {**results, **{f"grad of {name}": g for name, g in zip(names, gradients, strict=True)}}


def check_recurrence(op: Any, sample: Sample) -> None:
    """Holds results and gradients of a recurrence in the sample's dtype to :func:`assert_close`."""
    actual = outputs_and_gradients(op, sample)
    naive = outputs_and_gradients(reference.recurrence, sample)
    truth = outputs_and_gradients(reference.recurrence, sample.to(torch.float64))
    for name in actual:
        assert_close(actual[name], naive[name], truth[name], f"{sample.name}: {name}")


def gather_sample(
    batch: int = 2,
    queries: int = 5,
    memories: int = 7,
    slots: int = 4,
    hidden: int = 9,
    *,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Random (q, u, h, idx, v) of :func:`rnnkern.ops.gather_attention`, drawn from torch's generator: with -1, and one
    memory twice in a list beside another, and in each sample a query whose list is empty."""
    q, u, h = (torch.randn(batch, rows, hidden) for rows in (queries, memories, memories))
    idx = torch.randint(-1, memories, (batch, queries, slots), dtype=torch.int32)
    if slots > 2:
        idx[..., 1], idx[..., 2] = idx[..., 0], (idx[..., 0] + 1) % memories
    idx[:, :1] = -1
    q, u, h, v = (x.to(dtype).requires_grad_(requires_grad) for x in (q, u, h, torch.randn(hidden)))
    return q, u, h, idx, v


class Scan(NamedTuple):
    """One call ``rnnkern.ops.linear_scan(a, x, h0, **kwargs)``."""

    a: Tensor
    x: Tensor
    h0: Tensor | None
    kwargs: dict[str, Any]

    def leaves(self) -> dict[str, Tensor]:
        """The tensors that gradients flow to."""
        return {name: y for name, y in zip(("a", "x", "h0"), self[:3], strict=True) if y is not None}

    def to(self, dtype: torch.dtype, requires_grad: bool = False) -> "Scan":
        """The same values in a dtype; of a complex sample in the complex dtype of that precision."""
        dtype = dtype.to_complex() if self.x.is_complex() and not dtype.is_complex else dtype

        def cast(y):
            return None if y is None else y.detach().to(dtype, copy=True).requires_grad_(requires_grad)

        return Scan(*map(cast, self[:3]), self.kwargs)


SCAN_OPTIONS = {
    "constant": {},
    "per step": {"per_step": True},
    "no h0": {"initial": False},
    "reverse": {"reverse": True},
    "reset": {"reset": True},
    "packed": {"packed": True},
    "per step-reverse": {"per_step": True, "reverse": True},
    "per step-packed": {"per_step": True, "packed": True},
    "packed-reverse": {"packed": True, "reverse": True},
    "packed-reset-reverse": {"packed": True, "reset": True, "reverse": True},
    "per step-packed-reset-reverse-no h0": {
        "per_step": True,
        "packed": True,
        "reset": True,
        "reverse": True,
        "initial": False,
    },
    "per step-reset": {"per_step": True, "reset": True},
}
"""What :func:`scan_sample` takes beside sizes."""


def scan_sample(
    steps: int = 5,
    batch: int = 3,
    channels: int = 4,
    *,
    per_step: bool = False,
    initial: bool = True,
    packed: bool = False,
    reset: bool = False,
    reverse: bool = False,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> Scan:
    """Random arguments of :func:`rnnkern.ops.linear_scan`, drawn from torch's generator: factors of magnitude 0.5 to 1,
    of any sign or phase. Packed lengths fall evenly from ``steps`` to 1."""
    if packed and not initial and not steps:
        batch = 0  # which nothing says
    batch_sizes, rows = None, (steps, batch)
    if packed:
        lengths = torch.linspace(steps, min(steps, 1), batch).round().long()
        batch_sizes = (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)
        rows = (int(batch_sizes.sum()),)
    drawn = dtype if dtype.is_complex else torch.float64
    a = torch.randn(*(rows if per_step else ()), channels, dtype=drawn)
    a = a / a.abs().clamp_min(1e-6) * (0.5 + 0.5 * torch.rand(a.shape))
    x, h0 = torch.randn(*rows, channels, dtype=drawn), torch.randn(batch, channels, dtype=drawn)
    kwargs = {"batch_sizes": batch_sizes, "reverse": reverse}
    if reset:
        kwargs["reset"] = torch.rand(steps, batch) < 0.3
    return Scan(a, x, h0 if initial else None, kwargs).to(dtype, requires_grad)


def scan_samples(**sizes: Any) -> Iterator[tuple[str, Scan]]:
    """Every option of ``SCAN_OPTIONS``, by name; ``sizes`` as in :func:`scan_sample`."""
    for name, options in SCAN_OPTIONS.items():
        yield name, scan_sample(**{**sizes, **options})


def scan_outputs_and_gradients(op: Any, sample: Scan, seed: int = 0) -> dict[str, Tensor]:
    """Runs a call and its backward with random gradients of h and of the final state; all by name."""
    leaves = {name: y.detach().requires_grad_() for name, y in sample.leaves().items()}
    h, last = op(**leaves, **sample.kwargs)
    generator = torch.Generator().manual_seed(seed)
    upstream = [
        torch.randn(*y.shape, 2 if y.is_complex() else 1, generator=generator, dtype=torch.float64) for y in (h, last)
    ]
    upstream = [torch.view_as_complex(g) if h.is_complex() else g.squeeze(-1) for g in upstream]
    upstream = [g.to(y) for g, y in zip(upstream, (h, last), strict=True)]
    pairs = [(y, g) for y, g in zip((h, last), upstream, strict=True) if y.requires_grad]  # of no steps, perhaps none
    gradients = [torch.zeros_like(y) for y in leaves.values()]
    if pairs:
        outputs, upstream = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(outputs, list(leaves.values()), upstream, materialize_grads=True)
    found = {"h": h.detach(), "final state": last.detach()}
    return {**found, **{f"grad of {name}": g for name, g in zip(leaves, gradients, strict=True)}}


def as_reals(x: Tensor) -> Tensor:
    """Complex numbers as pairs, for :func:`assert_close`."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def check_scan(op: Any, sample: Scan, name: str = "") -> None:
    """Holds results and gradients of a linear scan in the sample's dtype to :func:`assert_close`."""
    actual = scan_outputs_and_gradients(op, sample)
    naive = scan_outputs_and_gradients(reference.linear_scan, sample)
    truth = scan_outputs_and_gradients(reference.linear_scan, sample.to(torch.float64))
    for what in actual:
        assert_close(*(as_reals(y[what]) for y in (actual, naive, truth)), f"{name}: {what}")


def householder_sample(
    size: int = 7, reflections: int = 4, *batch: int, dtype: torch.dtype = torch.float64, requires_grad: bool = False
) -> Tensor:
    """Random V (..., N, m) of :func:`rnnkern.ops.householder_product`, of lengths from 1e-3 to 1e3."""
    lengths = torch.exp((2 * torch.rand(*batch, 1, reflections) - 1) * math.log(1e3))
    return (torch.randn(*batch, size, reflections, dtype=dtype) * lengths).to(dtype).requires_grad_(requires_grad)


def givens_sample(
    size: int = 7, layers: int = 5, vectors: int = 6, *batch: int, dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Random (angles, x) of :func:`rnnkern.ops.givens_product`, x (..., R, N)."""
    drawn = 4 * torch.randn(*batch, layers, size // 2), torch.randn(*batch, vectors, size)
    angles, x = (t.to(dtype).requires_grad_(requires_grad) for t in drawn)
    return angles, x


def covering_rows(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """A covering array: rows in which any two values of any two factors meet at least once. Greedy, always the same."""
    draw = random.Random(0)
    names = list(factors)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    rows = []
    while missing:
        best, most = None, -1
        for _ in range(30):  # candidates: one missing pair, the rest at random
            row = {name: draw.randrange(len(factors[name])) for name in names}
            row.update(draw.choice(sorted(missing)))
            covered = sum(pair in missing for pair in itertools.combinations(row.items(), 2))
            if covered > most:
                best, most = row, covered
        missing -= set(itertools.combinations(best.items(), 2))
        rows.append({name: factors[name][index] for name, index in best.items()})
    return rows
