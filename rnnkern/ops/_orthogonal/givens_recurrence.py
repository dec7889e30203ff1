"""The recurrence through layers of rotations: its public function, checks, choice of implementation and derivatives.
Kernels take complex numbers as alternating real and imaginary parts."""

import torch
from torch import Tensor

from rnnkern import _extension, reference
from rnnkern.ops._orthogonal.givens import STYLES
from rnnkern.ops._orthogonal.orthogonal import without_autocast
from rnnkern.ops._recurrence.complex import of_parts, state_in_parts
from rnnkern.ops.checks import check_choice, check_dtype, check_flags, check_input, check_like, check_shape, check_steps
from rnnkern.ops.differentiable import check_lengths_are_there, differentiable
from rnnkern.ops.dispatch import Choice, choose, cpu_refusal, cuda_refusal, operator, told
from rnnkern.ops.folds import one_by_one, over_sequences

OP = "givens_recurrence"
_operators = torch.ops.rnnkern
REALS = {
    torch.float32: torch.float32, torch.float64: torch.float64,
    torch.complex64: torch.float32, torch.complex128: torch.float64,
}  # fmt: skip
DTYPES = tuple(REALS)
MOST_NUMBERS = {torch.float32: 1024, torch.float64: 512, torch.complex64: 1024, torch.complex128: 256}
"""Largest number of units whose state fits into the registers of a warp."""
LANES = 16
"""Number of sequences that fill a float32 register of the widest SIMD level."""
MOST_LAYERS = {False: ((LANES, 8), (8, 16), (1, 64)), True: ((LANES, 4), (8, 8), (1, 16))}
"""For real and for complex numbers: pairs (least number of sequences, N / L), where L is the largest number of layers
that was faster than the matrix, on one thread with AVX-512. Measured at some sizes (real numbers: ``python -m
perf.givens_recurrence``) and interpolated or extrapolated for the others."""


def _check(u, angles, state, modrelu_bias, phases, diagonal_phases, style, batch_sizes, reset, reverse) -> None:
    check_input(OP, "u", u, batch_sizes, "N", DTYPES)
    wanted = REALS[u.dtype]
    turning = {"phases": phases, "diagonal_phases": diagonal_phases}
    turning = {name: x for name, x in turning.items() if x is not None}
    for name, x in {"angles": angles, "modrelu_bias": modrelu_bias, **turning}.items():
        check_dtype(OP, name, x, (wanted,))
        if x.device != u.device:
            raise TypeError(f"{OP}: `{name}` must be on {u.device} like `u`, got {x.device}")
    check_like(OP, "state", state, "u", u)
    for name in turning:
        if not u.is_complex():
            raise TypeError(f"{OP}: `{name}` must be None for a real `u`, got a `u` of dtype {u.dtype}")
    check_flags(OP, reverse=reverse)
    check_choice(OP, "style", style, STYLES)
    size = u.shape[-1]
    batch = u.shape[1] if batch_sizes is None else state.shape[0] if state.dim() else 0
    check_shape(OP, "state", state, "(B, N)", (batch, size))
    check_shape(OP, "modrelu_bias", modrelu_bias, "(N,)", (size,))
    if angles.dim() != 2 or angles.shape[1] != size // 2:
        raise ValueError(f"{OP}: `angles` must be (L, N // 2) with N // 2 = {size // 2}, got {tuple(angles.shape)}")
    for name, x in turning.items():
        like, symbols = (angles, "like `angles`") if name == "phases" else (modrelu_bias, "(N,)")
        check_shape(OP, name, x, symbols, tuple(like.shape))
    if style == "butterfly" and (size < 1 or size & (size - 1)):
        raise ValueError(f"{OP}: N must be a power of two for the style 'butterfly', got {size}")
    check_steps(OP, u, batch, batch_sizes, reset, of_batch="state")


def _cuda_refusal(u: Tensor) -> str | None:
    large = f"a state of {u.shape[-1]} numbers of {u.dtype} does not fit into the registers of a warp"
    return cuda_refusal(u, large if u.shape[-1] > MOST_NUMBERS[u.dtype] else None)


def _choose(u: Tensor) -> Choice:
    return choose(OP, {"cuda": _cuda_refusal(u), "cpu": cpu_refusal(u)})


def _explain(u: Tensor) -> Choice:
    return told(
        _choose(u), u.device, u.dtype.to_real(),
        lambda dtype, facts, _: f'{{"programs": {_programs(dtype, u)}}}',
        lambda _: "one warp per sequence",
    )  # fmt: skip


def _programs(dtype: str, u: Tensor) -> str:
    if dtype not in ("float32", "float64"):
        return "[]"
    return torch.ops.rnnkern.givens_programs(dtype, u.is_complex(), u.shape[-1])


@operator(_check, _explain)
@without_autocast
def givens_recurrence(
    u: Tensor,
    angles: Tensor,
    state: Tensor,
    modrelu_bias: Tensor,
    *,
    phases: Tensor | None = None,
    diagonal_phases: Tensor | None = None,
    style: str = "tunable",
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Runs the recurrence of EURNN over a sequence (Jing et al. 2017). Every step applies the layers of rotations one
    after the other, so the recurrent matrix is never formed.

    .. math::
        h_t = \mathrm{modrelu}(u_t + F_L \cdots F_2 F_1 D \, h_{t-1}; b), \quad
        \mathrm{modrelu}(z; b) = \frac{z}{|z|} \mathrm{relu}(|z| + b), \quad D = \mathrm{diag}(e^{i \omega})

    The result equals ``recurrence("modrelu", u, W, (h0,), params=(b,))`` with the W of
    :func:`rnnkern.ops.givens_product`. A step of a sequence costs O(N L), forward and backward, where a product with W
    costs O(N^2). For real numbers there are no phases, and D = I. T is the number of time steps, B the batch size and N
    the number of units.

    Args:
        u: (T, B, N), or packed (sum of ``batch_sizes``, N) as in :class:`torch.nn.utils.rnn.PackedSequence`; float32,
            float64, complex64 or complex128.
        angles: (L, N // 2), in radians, with the dtype of u or of its real part; the layers are those of
            :func:`rnnkern.ops.givens_product`.
        state: :math:`h_0`, (B, N), with the dtype of u.
        modrelu_bias: b, (N,), real.
        phases: :math:`\phi` of the layers, (L, N // 2), for complex u only; None means zeros.
        diagonal_phases: :math:`\omega`, (N,), for complex u only; None means zeros.
        style: ``"tunable"``, or ``"butterfly"``, for which N must be a power of two.
        batch_sizes, reset, reverse: as in :func:`rnnkern.ops.recurrence`.

    Returns:
        h, shaped like ``u``, and the final state, (B, N), taken at the last step of each sequence. Gradients flow to
        all floating-point tensors, and second derivatives are supported. Only u and h are saved, for any L: the
        backward pass recomputes the layers of a step and undoes them.

    Raises:
        ValueError: a shape, ``style`` or a value of ``batch_sizes`` is wrong, or :func:`rnnkern.use` forces an
            implementation that cannot run the call.
        TypeError: an argument has the wrong type, dtype or device, or phases are given for a real u.
        NotImplementedError: forward-mode AD (``torch.func.jvp``) is not supported.

    See also: :func:`rnnkern.reference.givens_recurrence`, the same equations in plain PyTorch.

    >>> u, angles = torch.randn(20, 3, 8), torch.randn(4, 4)
    >>> h0, b = torch.zeros(3, 8), torch.zeros(8)
    >>> h, last = rnnkern.ops.givens_recurrence(u, angles, h0, b)
    >>> W = rnnkern.ops.givens_product(angles)
    >>> torch.allclose(h, rnnkern.ops.recurrence("modrelu", u, W, (h0,), params=(b,))[0], atol=1e-5)
    True
    """
    _check(u, angles, state, modrelu_bias, phases, diagonal_phases, style, batch_sizes, reset, reverse)
    options = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
    if u.is_complex():
        phases = torch.zeros_like(angles) if phases is None else phases
        diagonal_phases = torch.zeros_like(modrelu_bias) if diagonal_phases is None else diagonal_phases
    if _choose(u).implementation == "reference":
        turns = {"phases": phases, "diagonal_phases": diagonal_phases, "style": style}
        return reference.givens_recurrence(u, angles, state, modrelu_bias, **turns, **options)
    rows, state = (state_in_parts(x) if x.is_complex() else x for x in (u, state))
    h, last = _givens_recurrence(
        rows, angles, phases, diagonal_phases, modrelu_bias, state, *options.values(), style == "butterfly"
    )
    return (of_parts(h), of_parts(last)) if u.is_complex() else (h, last)


def pays(size: int, layers: int, batch: int | None, is_complex: bool, device: torch.device) -> bool:
    """Whether L layers inside the recurrence are faster than their matrix, forward and backward, according to
    measurements.

    Args:
        size, layers: N and L.
        batch: B, or None for compiled code that serves any batch size.
        is_complex: whether u is complex.
        device: device of u; False is returned if no kernel exists for it.
    """
    if device.type != "cpu" or not _extension.available:
        return False
    sequences = LANES if batch is None else batch
    if not is_complex and size < 128:
        return sequences >= LANES and 32 * layers <= size
    shares = (share for least, share in MOST_LAYERS[is_complex] if sequences >= least)
    return layers * next(shares, size + 1) <= size


# ---- derivatives with respect to (u, angles, phases, diagonal, bias, state, batch_sizes, reset, reverse, butterfly)

SEQUENCES = (-2, None, None, None, None, -2, None, -1, None, None)
"""The sequence dimension of each argument, counted from the end."""


def _fold(function, info, dims, args):
    """Rule for torch.vmap. In the forward pass members that share weights become sequences of one call. In the backward
    pass each member needs its own gradients of the weights."""
    shared = len(args) == len(SEQUENCES) and info.batch_size > 0
    if not shared or any(dim is not None and at is None for dim, at in zip(dims, SEQUENCES, strict=True)):
        return one_by_one(function, info, dims, args)
    args = list(args)
    if args[6] is not None:
        args[6] = args[6] * info.batch_size
    return over_sequences(function, info, dims, args, SEQUENCES)


def _reference_backward(
    grad_h, grad_last, u, angles, phases, diagonal, bias, state, h, batch_sizes, reset, reverse, butterfly
):
    check_lengths_are_there(OP, batch_sizes)
    options = {"batch_sizes": batch_sizes, "reset": reset, "reverse": reverse}
    options["style"] = "butterfly" if butterfly else "tunable"

    def forward(u, angles, bias, state, *turns):
        if not turns:
            return reference.givens_recurrence(u, angles, state, bias, **options)
        named = dict(zip(("phases", "diagonal_phases"), turns, strict=True))
        found = reference.givens_recurrence(of_parts(u), angles, of_parts(state), bias, **named, **options)
        return tuple(map(state_in_parts, found))

    turns = () if phases is None else (phases, diagonal)
    grads = (
        torch.zeros_like(u) if grad_h is None else grad_h,
        torch.zeros_like(state) if grad_last is None else grad_last,
    )
    return torch.func.vjp(forward, u, angles, bias, state, *turns)[1](grads)


def _shapes(u, angles, phases, diagonal, bias, state, *rest):
    return [u.new_empty(u.shape), state.new_empty(state.shape)]


def _backward_shapes(grad_h, grad_last, u, angles, phases, diagonal, bias, state, *rest):
    there = (u, angles, bias, state, *((phases, diagonal) if phases is not None else ()))
    return [x.new_empty(x.shape) for x in there]


_givens_recurrence = differentiable(
    "givens_recurrence",
    forward=lambda training, *args: _operators.givens_recurrence.default(*args),
    results=2,
    saves=lambda args, outputs: (*args[:6], outputs[0], *args[6:]),
    kept=(0,),
    gradients=(0, 1, 4, 5, 2, 3),
    reference_backward=_reference_backward,
    leaves=range(8),
    fold=_fold,
    shapes=_shapes,
    backward_shapes=_backward_shapes,
)
