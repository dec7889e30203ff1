"""Elman networks of complex numbers with a recurrent weight that stays unitary."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from rnnkern import parametrizations
from rnnkern.nn import autocast
from rnnkern.nn.options import with_options
from rnnkern.nn.recurrent import TimeFirst, reset_of_directions
from rnnkern.nn.rotations import layers_inside, said_inside
from rnnkern.nn.single import Layers
from rnnkern.ops import Choice, givens_recurrence, recurrence

MAPS = ("fourier", "givens", "free")
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
"""``dtype.to_complex()`` for the compiler, which does not know it."""


@with_options
class UnitaryRNN(Layers):
    r"""uRNN, unitary EURNN and full-capacity uRNN: a complex modReLU network with a unitary recurrent weight.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + R h_{t-1}; b), \quad
        \mathrm{modrelu}(z; b) = \frac{z}{|z|} \mathrm{relu}(|z| + b), \quad R^H R = I

    The input is real, the state complex. The output is real, the 2*H parts of h, real and imaginary in turns, in both
    directions 2*H of each: what the published networks send through a linear layer, which is the caller's here. T
    steps, B sequences, I inputs, H complex hidden units.

    Args:
        input_size, hidden_size, num_layers: I, H and the layers; a layer above the first has the columns of the output
            as inputs.
        unitary_map: what R is. ``"fourier"``, uRNN's product of 7 H parameters, or ``"givens"``, EURNN's layers of
            rotations with phases, both by :func:`rnnkern.parametrizations.unitary` and computed once per step of an
            optimizer, with parameters that train at a tenth of the learning rate by :func:`rnnkern.optim.param_groups`;
            or ``"free"``, any unitary matrix, a complex parameter that begins as a random one and is
            :class:`rnnkern.optim.CayleySGD`'s to train: under others it does not stay unitary. Of such a network
            choose the dtype here, since ``module.double()`` leaves a complex parameter as it is.
        rotation_layers, style, fused: of ``"givens"``, as of :class:`rnnkern.nn.EURNN`.
        batch_first: input and output are (B, T, ...) instead of (T, B, ...).
        bidirectional: each layer runs in both directions, with parameters of their own, ``..._l{k}_reverse``.
        device, dtype: of the real parameters; float32 or float64.

    ``weight_ih_l{k}`` (2*H, I) has the rows of W's real and imaginary parts in turns and is drawn from Glorot's normal
    distribution, ``modrelu_bias_l{k}`` (H,) is b, drawn from U(-0.01, 0.01), ``weight_hh_l{k}`` (H, H) is R. The state
    begins as zeros, where the published network learns it.

    Raises:
        ValueError, TypeError: a size is not a positive number, ``unitary_map`` is unknown, or an option does not fit
            it.

    Source: fourier Arjovsky et al. 2016; givens Jing et al. 2017; free Wisdom et al. 2016.

    >>> rnn = rnnkern.nn.UnitaryRNN(10, 20)
    >>> output, h_n = rnn(torch.randn(4, 3, 10))
    >>> output.shape, h_n.shape, h_n.dtype
    (torch.Size([4, 3, 40]), torch.Size([1, 3, 20]), torch.complex64)
    """

    _batch_dim = 1
    fused: bool | None = None
    _plain: ClassVar = {"num_layers": 1, "unitary_map": "fourier", "batch_first": False, "bidirectional": False}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, unitary_map: str = "fourier",
        rotation_layers: int | None = None, style: str | None = None, fused: bool | None = None,
        batch_first: bool = False, bidirectional: bool = False, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        super().__init__(sizes, {}, {"unitary_map": (unitary_map, MAPS)})
        if not (fused is None or isinstance(fused, bool)):
            raise TypeError(f"UnitaryRNN: `fused` must be True, False or None, got {fused!r}")
        for name, value in {"rotation_layers": rotation_layers, "style": style, "fused": fused}.items():
            if value is not None and unitary_map != "givens":
                raise ValueError(f"UnitaryRNN: `{name}` is for the map 'givens' alone, got {value!r}")
        self.batch_first, self.bidirectional, self.fused = batch_first, bidirectional, fused
        self._directions = ("", "_reverse") if bidirectional else ("",)
        self.output_size = 2 * hidden_size * len(self._directions)
        for layer in range(num_layers):
            for direction in self._directions:
                W = torch.empty(2 * hidden_size, self._columns(layer), device=device, dtype=dtype)
                setattr(self, f"weight_ih_l{layer}{direction}", Parameter(W))
                setattr(self, f"modrelu_bias_l{layer}{direction}", Parameter(W.new_empty(hidden_size)))
                R = W.new_empty(hidden_size, hidden_size, dtype=W.dtype.to_complex())
                setattr(self, name := f"weight_hh_l{layer}{direction}", Parameter(R))
                if unitary_map != "free":
                    parametrizations.unitary(self, name, unitary_map, layers=rotation_layers, style=style)
        self.reset_parameters()

    def _columns(self, layer: int) -> int:
        """Of a layer's input."""
        return self.output_size if layer else self.input_size

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for layer in range(self.num_layers):
            for direction in self._directions:
                init.xavier_normal_(getattr(self, f"weight_ih_l{layer}{direction}"))
                init.uniform_(getattr(self, f"modrelu_bias_l{layer}{direction}"), -0.01, 0.01)
                name = f"weight_hh_l{layer}{direction}"
                if parametrize.is_parametrized(self, name):
                    parametrizations.reset_parameters(self, name)
                else:
                    weight = getattr(self, name)
                    weight.copy_(parametrizations.unitary_matrix(weight))

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Runs the layers over a sequence.

        Args:
            input: (T, B, I), (B, T, I) with ``batch_first``, (T, I), or a
                :class:`~torch.nn.utils.rnn.PackedSequence`; real, of the parameters' dtype. T may be 0.
            hx: h_0, (num_layers * directions, B, H), without B for (T, I); complex. In the caller's batch order. None
                is zeros.
            reset: bool, (T, B), (B, T) with ``batch_first``, also when packed, (T,) for (T, I). In the caller's
                batch order. Where true an episode begins at step t: no state crosses from t-1 to t, nor backwards
                from t to t-1.

        Returns:
            The output, like ``input`` with directions * 2*H columns, and h_n, like ``hx``. Under autocast the
            projections are in its dtype, and the recurrence stays in the parameters'.

        Raises:
            ValueError, TypeError: a shape or a dtype is wrong.
        """
        sequence = self._sequence(input, hx, reset)
        x, finals = sequence.x, []
        for layer in range(self.num_layers):
            outputs = []
            for operator, args, options in self._calls(layer, x, sequence):
                h, final = operator(*args, **options)
                outputs.append(torch.view_as_real(h).flatten(-2))
                finals.append(final if isinstance(final, Tensor) else final[0])
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        return self._returned(input, x), self._returned_state(input, (torch.stack(finals),))[0]

    @torch.no_grad()
    def _choose(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None
    ) -> list[Choice]:
        """For :func:`rnnkern.ops.explain`: the choice of each layer and direction, in order. Runs no recurrence."""
        sequence, choices = self._sequence(input, hx, reset), []
        for layer in range(self.num_layers):
            x = sequence.x.new_zeros(1).expand(*sequence.x.shape[:-1], self._columns(layer))
            for operator, args, options in self._calls(layer, x, sequence):
                choice = operator._choose(*args, **options)
                choices.append(choice if operator is recurrence else said_inside(choice))
        return choices

    def _sequence(self, input, hx, reset) -> TimeFirst:
        return self._time_first(input, None if hx is None else (hx,), reset)

    def _calls(self, layer: int, x: Tensor, sequence: TimeFirst) -> list[tuple[Callable, tuple, dict[str, Any]]]:
        """The operator and its arguments for each direction of a layer over its input."""
        _, (h0,), batch_sizes, reset = sequence
        resets, calls = reset_of_directions(reset, self.bidirectional), []
        for k, direction in enumerate(self._directions):
            W, b = (getattr(self, f"{name}_l{layer}{direction}") for name in ("weight_ih", "modrelu_bias"))
            u = self._projection(x, W)
            state, name = h0[layer * len(self._directions) + k], f"weight_hh_l{layer}{direction}"
            options = {"batch_sizes": batch_sizes, "reset": resets[k], "reverse": k == 1}
            layers = layers_inside(self, name, self.fused, b, state.shape[0])
            if layers is None:
                options |= {"params": (b,), "save_u": autocast.recomputed(self._projection, x, W)}
                calls.append((recurrence, ("modrelu", u, getattr(self, name), (state,)), options))
            else:
                calls.append((givens_recurrence, (u,), {"state": state, "modrelu_bias": b} | layers | options))
        return calls

    def _projection(self, x: Tensor, W: Tensor) -> Tensor:
        return torch.view_as_complex(F.linear(x, W).to(self._dtype).unflatten(-1, (self.hidden_size, 2)))

    def _zeros(self, x: Tensor, batch: int) -> tuple[Tensor]:
        rows = self.num_layers * len(self._directions)
        return (torch.view_as_complex(x.new_zeros(rows, batch, self.hidden_size, 2, dtype=self._dtype)),)

    def _check_state(self, state: tuple[Any], batch: int | None) -> None:
        hx, dtype = state[0], COMPLEX[self._dtype]
        if not isinstance(hx, Tensor):
            raise TypeError(f"UnitaryRNN: `hx` must be a tensor, got {type(hx).__name__}")
        wanted = (self.num_layers * len(self._directions), *(() if batch is None else (batch,)), self.hidden_size)
        if tuple(hx.shape) != wanted:
            raise ValueError(f"UnitaryRNN: `hx` must be {wanted}, got {tuple(hx.shape)}")
        if hx.dtype != dtype:
            raise TypeError(f"UnitaryRNN: `hx` must be of dtype {dtype}, got {hx.dtype}")
