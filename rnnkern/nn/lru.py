"""LRU is the linear recurrent unit, whose recurrence has complex factors that are constant in time."""

import math
from functools import partial
from typing import Any, ClassVar, Never

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import init
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn.ecosystem import refuse_or_trace, shown
from rnnkern.nn.options import with_options
from rnnkern.nn.recurrent import TimeFirst
from rnnkern.nn.single import SingleLayer, Whole, empty_parameter
from rnnkern.ops import linear_scan
from rnnkern.ops._recurrence.linear import linear

DTYPES = (torch.float32, torch.float64)
LEAST = 2.0**-24
"""Least distance of a draw from 0 and from 1: a modulus of 1 or a phase of 0 has no logarithm."""


@with_options
class LRU(SingleLayer):
    r"""Linear recurrent unit: a linear recurrence with complex factors that are constant in time.

    .. math::
        \lambda &= \exp(-e^{\nu} + i e^{\theta}), \qquad \gamma = \sqrt{1 - |\lambda|^2} \\
        h_t &= \lambda \odot h_{t-1} + \gamma \odot B x_t \\
        y_t &= \operatorname{Re}(C h_t) + D x_t

    The module has one layer and one direction. To build a deep network, you add normalization, gates, nonlinearities
    and skip connections between such layers. :math:`|\lambda| < 1` holds for all values of the parameters. T is the
    number of time steps, B the batch size, I the input size, N the number of complex hidden units and O the output
    size.

    Args:
        input_size, hidden_size: I and N.
        output_size: O. The default is I.
        r_min, r_max: inner and outer radius, between 0 and 1, of the ring from which :math:`\lambda` is initialized,
            uniformly in its area.
        max_phase: the angles of :math:`\lambda` are initialized uniformly in (0, ``max_phase``), in radians.
        batch_first: if True, input and output have shape (B, T, features) instead of (T, B, features).
        device, dtype: device and dtype of the parameters; the dtype is float32 or float64.

    All parameters are real. :math:`\nu` is ``nu_log`` (N,) and :math:`\theta` is ``theta_log`` (N,). ``B`` (N, I, 2)
    and ``C`` (O, N, 2) hold real and imaginary parts in their last dimension and are initialized from N(0, 1 / 2I) and
    N(0, 1 / N). ``D`` is a diagonal (I,) if O = I and a matrix (O, I) otherwise, initialized from N(0, 1).

    :math:`\gamma` is computed from :math:`\lambda`. The published code only initializes it in this way and then trains
    it.

    Raises:
        ValueError, TypeError: a size, a radius, the phase or the dtype has a wrong value or type.

    Source: Orvieto et al. 2023, section 3 and appendix A.

    >>> lru = rnnkern.nn.LRU(8, 16, r_min=0.9, r_max=0.99)
    >>> output, h_n = lru(torch.randn(30, 4, 8))
    >>> output.shape, h_n.shape, h_n.dtype
    (torch.Size([30, 4, 8]), torch.Size([4, 16]), torch.complex64)
    >>> output, h_n = lru(torch.randn(30, 4, 8), h_n)  # continues the sequence
    >>> lru.eigenvalues().abs().min().item() >= 0.9
    True
    """

    _operator = staticmethod(linear_scan)
    _first, _complex = "nu_log", True
    _plain: ClassVar = {"r_min": 0.0, "r_max": 1.0, "max_phase": 2 * math.pi, "batch_first": False}

    def __init__(
        self, input_size: int, hidden_size: int, output_size: int | None = None, *, r_min: float = 0.0,
        r_max: float = 1.0, max_phase: float = 2 * math.pi, batch_first: bool = False, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        output_size = input_size if output_size is None else output_size
        super().__init__({"input_size": input_size, "hidden_size": hidden_size, "output_size": output_size})
        if not (0 <= r_min <= r_max <= 1 and r_min < 1 and r_max > 0):
            raise ValueError(
                f"r_min and r_max must satisfy 0 <= r_min <= r_max <= 1, not both 0 or 1, got {r_min} and {r_max}"
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase must be in (0, 2 pi], got {max_phase}")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        _check_dtype(dtype)
        self.r_min, self.r_max, self.max_phase, self.batch_first = r_min, r_max, max_phase, batch_first
        parameter = partial(empty_parameter, device=device, dtype=dtype)
        self.nu_log, self.theta_log = parameter(hidden_size), parameter(hidden_size)
        self.B, self.C = parameter(hidden_size, input_size, 2), parameter(output_size, hidden_size, 2)
        self.D = parameter(input_size) if output_size == input_size else parameter(output_size, input_size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        drawn = torch.rand(2, self.hidden_size, dtype=torch.float64, device=self.nu_log.device)
        area, angle = drawn.clamp(LEAST, 1 - LEAST)
        square = area * (self.r_max**2 - self.r_min**2) + self.r_min**2
        self.nu_log.copy_((-0.5 * square.log()).log())
        self.theta_log.copy_((angle * self.max_phase).log())
        init.normal_(self.B, std=(2 * self.input_size) ** -0.5)
        init.normal_(self.C, std=self.hidden_size**-0.5)
        init.normal_(self.D)

    def eigenvalues(self) -> Tensor:
        r"""Returns :math:`\lambda`, complex, of shape (N,)."""
        return torch.complex(-self.nu_log.exp(), self.theta_log.exp()).exp()

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None, **unknown: Never
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Runs the layer over a sequence.

        Args:
            input, reset: as in :meth:`rnnkern.nn.RNN.forward`.
            hx: h_0, complex, of shape (B, N), or (N,) for unbatched input, in the caller's batch order. None means
                zeros.

        Returns:
            The output, shaped like ``input`` with O columns, and h_n, shaped like ``hx``. Under autocast the
            projections use the autocast dtype, and the recurrence uses the dtype of the parameters.

        Raises:
            ValueError: a tensor has the wrong shape.
            TypeError: an argument has the wrong type, dtype or device.
        """
        if isinstance(input, Proxy) or isinstance(hx, Proxy) or unknown:
            return refuse_or_trace(self, unknown, input, hx, reset)
        sequence = self._sequence(input, hx, reset)
        weights = self._weights()
        args, options = self._arguments(sequence, *weights[:2])
        (h, last), x = self._operator(*args, **options), sequence.x
        h = torch.view_as_real(h).flatten(-2)  # (..., 2N), real and imaginary part side by side
        skip = x * self.D if self.D.dim() == 1 else linear(x, self.D)
        output = linear(h, weights[2])
        output = output + skip.to(output.dtype)  # under autocast x * D has the wider dtype
        return self._returned(input, output), self._returned_state(input, (last,))[0]

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        return self._arguments(self._sequence(input, hx, reset), *self._weights()[:2])

    def _engine(self, x: Tensor) -> Whole:
        engine = super()._engine(x)
        weights = engine.layer._weights()
        engine.layer._weights = lambda: weights
        return engine

    def _sequence(self, input, hx, reset) -> TimeFirst:
        return self._time_first(input, None if hx is None else (hx,), reset)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        r""":math:`\lambda`; and :math:`\gamma B` and C as matrices of real products, (2N, I) and (O, 2N)."""
        gamma = (-torch.expm1(-2 * self.nu_log.exp())).sqrt()  # 1 - |lambda|^2 without cancellation
        B = (gamma[:, None, None] * self.B).transpose(1, 2).flatten(0, 1)
        return self.eigenvalues(), B, torch.stack([self.C[..., 0], -self.C[..., 1]], -1).flatten(-2)

    def _arguments(self, sequence: TimeFirst, eigenvalues: Tensor, B: Tensor) -> tuple[tuple, dict[str, Any]]:
        x, (h0,), batch_sizes, reset = sequence
        u = torch.view_as_complex(linear(x, B).to(self._dtype).unflatten(-1, (self.hidden_size, 2)))
        return (eigenvalues, u, h0), {"batch_sizes": batch_sizes, "reset": reset}

    def _apply(self, fn, recurse=True):
        """Called by ``half()``, ``to()`` and similar methods: rejects an unsupported dtype before any parameter
        changes."""
        _check_dtype(fn(self.nu_log.detach()[:0]).dtype)
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        plain = {"output_size": self.input_size} | self._plain
        return f"{self.input_size}, {self.hidden_size}{shown(self, plain)}"


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise TypeError(f"LRU supports float32 and float64, got {dtype}")
