"""The linear recurrent unit."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn.utils.rnn import PackedSequence

from rnnkern.nn.options import with_options
from rnnkern.nn.recurrent import TimeFirst
from rnnkern.nn.single import SingleLayer
from rnnkern.ops import linear_scan

DTYPES = (torch.float32, torch.float64)
LEAST = 2.0**-24
"""How near to its ends a draw from (0, 1) comes: at an end a modulus of 1, or a phase of 0, has no logarithm."""


@with_options
class LRU(SingleLayer):
    r"""A linear recurrent unit: a linear recurrence with complex factors that are constant in time.

    .. math::
        \lambda &= \exp(-e^{\nu} + i e^{\theta}), \qquad \gamma = \sqrt{1 - |\lambda|^2} \\
        h_t &= \lambda \odot h_{t-1} + \gamma \odot B x_t \\
        y_t &= \operatorname{Re}(C h_t) + D x_t

    One layer and one direction, for a stack of any depth: norm, gate, nonlinearity and skip connection stand between
    layers, where the user puts them. Whatever an optimizer does, :math:`|\lambda| < 1`. T steps, B sequences, I inputs,
    N complex hidden units, O outputs.

    Args:
        input_size, hidden_size: I and N.
        output_size: O; I if not given.
        r_min, r_max: of the ring on which :math:`\lambda` begins, uniform in its area; from 0 to 1.
        max_phase: its angles begin uniform in (0, ``max_phase``), in radians.
        batch_first: input and output are (B, T, .).
        device, dtype: of the parameters; float32 or float64.

    Parameters, all real: :math:`\nu` ``nu_log`` and :math:`\theta` ``theta_log`` (N,); ``B`` (N, I, 2) and ``C`` (O, N,
    2), of which the last size holds real and imaginary part, from N(0, 1 / 2I) and N(0, 1 / N); ``D`` (I,), a diagonal,
    where O = I, else (O, I), from N(0, 1).

    :math:`\gamma` follows :math:`\lambda`; in the published code it begins so, and is learnt.

    Raises:
        ValueError, TypeError: a size, a radius, the phase or the dtype is wrong.

    Source: Orvieto et al. 2023, section 3 and appendix A.

    >>> lru = rnnkern.nn.LRU(8, 16, r_min=0.9, r_max=0.99)
    >>> output, h_n = lru(torch.randn(30, 4, 8))
    >>> output.shape, h_n.shape, h_n.dtype
    (torch.Size([30, 4, 8]), torch.Size([4, 16]), torch.complex64)
    >>> output, h_n = lru(torch.randn(30, 4, 8), h_n)  # goes on
    >>> lru.eigenvalues().abs().min().item() >= 0.9
    True
    """

    _operator = staticmethod(linear_scan)
    _plain: ClassVar = {"output_size": None, "r_min": 0.0, "r_max": 1.0, "max_phase": 2 * math.pi, "batch_first": False}

    def __init__(
        self, input_size: int, hidden_size: int, output_size: int | None = None, *, r_min: float = 0.0,
        r_max: float = 1.0, max_phase: float = 2 * math.pi, batch_first: bool = False, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        output_size = input_size if output_size is None else output_size
        super().__init__({"input_size": input_size, "hidden_size": hidden_size, "output_size": output_size}, {}, {})
        if not (0 <= r_min <= r_max <= 1 and r_min < 1 and r_max > 0):
            raise ValueError(
                f"r_min and r_max must be 0 <= r_min <= r_max <= 1, and not both 0 or 1, got {r_min} and {r_max}"
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase must be in (0, 2 pi], got {max_phase}")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        _check_dtype(dtype)
        self.r_min, self.r_max, self.max_phase, self.batch_first = r_min, r_max, max_phase, batch_first

        def parameter(*shape: int) -> Parameter:
            return Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.nu_log, self.theta_log = parameter(hidden_size), parameter(hidden_size)
        self.B, self.C = parameter(hidden_size, input_size, 2), parameter(output_size, hidden_size, 2)
        self.D = parameter(input_size) if output_size == input_size else parameter(output_size, input_size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        drawn = torch.rand(2, self.hidden_size, dtype=torch.float64, device=self.nu_log.device)
        area, angle = drawn.clamp(LEAST, 1 - LEAST)
        square = area * (self.r_max**2 - self.r_min**2) + self.r_min**2
        self.nu_log.copy_((-0.5 * square.log()).log())
        self.theta_log.copy_((angle * self.max_phase).log())
        init.normal_(self.B, std=(2 * self.input_size) ** -0.5)
        init.normal_(self.C, std=self.hidden_size**-0.5)
        init.normal_(self.D)

    def eigenvalues(self) -> Tensor:
        r""":math:`\lambda`, (N,), complex."""
        return torch.complex(-self.nu_log.exp(), self.theta_log.exp()).exp()

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Runs the layer over a sequence.

        Args:
            input: (T, B, I), (B, T, I) with ``batch_first``, (T, I), or a
                :class:`~torch.nn.utils.rnn.PackedSequence`; of the parameters' dtype. T may be 0.
            hx: h_0, (B, N), complex; without B for (T, I). In the caller's batch order. None is zeros.
            reset: bool, (T, B), (B, T) with ``batch_first``, also when packed, (T,) for (T, I). In the caller's
                batch order. Where true a sequence begins at step t.

        Returns:
            The output, like ``input`` with O columns, and h_n, like ``hx``. Under autocast the projections are in
            its dtype, and the recurrence stays in the parameters'.

        Raises:
            ValueError: a shape is wrong.
            TypeError: a type, dtype or device is wrong.
        """
        sequence = self._sequence(input, hx, reset)
        args, options = self._arguments(sequence)
        (h, last), x = self._operator(*args, **options), sequence.x
        shape, h = x.shape[:-1], torch.view_as_real(h).flatten(-2)  # (..., 2N), real and imaginary part side by side
        C = torch.stack([self.C[..., 0], -self.C[..., 1]], -1).flatten(-2)
        skip = x * self.D if self.D.dim() == 1 else F.linear(x, self.D)
        output = torch.addmm(skip.flatten(0, -2), h.flatten(0, -2), C.mT).unflatten(0, shape)
        return self._returned(input, output), self._returned_state(input, (last,))[0]

    def _call(self, input, hx, reset) -> tuple[tuple, dict[str, Any]]:
        return self._arguments(self._sequence(input, hx, reset))

    def _sequence(self, input, hx, reset) -> TimeFirst:
        if hx is not None and not isinstance(hx, Tensor):
            raise TypeError(f"LRU: `hx` must be a tensor, got {type(hx).__name__}")
        return self._time_first(input, None if hx is None else (hx,), reset)

    def _arguments(self, sequence: TimeFirst) -> tuple[tuple, dict[str, Any]]:
        x, (h0,), batch_sizes, reset = sequence
        gamma = (-torch.expm1(-2 * self.nu_log.exp())).sqrt()  # 1 - |lambda|^2 without its rounding
        B = (gamma[:, None, None] * self.B).transpose(1, 2).flatten(0, 1)  # (2N, I): one real product
        u = torch.view_as_complex(F.linear(x, B).to(self._dtype).unflatten(-1, (self.hidden_size, 2)))
        return (self.eigenvalues(), u, h0), {"batch_sizes": batch_sizes, "reset": reset}

    def _apply(self, fn, recurse=True):
        """What ``half()``, ``to()`` and the like call: refuses a dtype before a parameter has it."""
        _check_dtype(fn(self.nu_log.detach()[:0]).dtype)
        return super()._apply(fn, recurse)

    @property
    def _dtype(self) -> torch.dtype:
        return self.nu_log.dtype

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor]:
        zeros = x.new_zeros(batch, self.hidden_size, dtype=self._dtype)
        return (torch.complex(zeros, zeros),)

    def extra_repr(self) -> str:
        given = {name: getattr(self, name) for name in self._plain}
        given["output_size"] = None if self.output_size == self.input_size else self.output_size
        shown = (f", {name}={value}" for name, value in given.items() if value != self._plain[name])
        return f"{self.input_size}, {self.hidden_size}" + "".join(shown)


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise TypeError(f"LRU supports float32 and float64, got {dtype}")
