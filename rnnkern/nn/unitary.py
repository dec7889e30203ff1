"""UnitaryRNN is a complex Elman network whose recurrent weight stays unitary."""

from collections.abc import Callable
from typing import Any, ClassVar, Never

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Parameter
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from rnnkern import parametrizations
from rnnkern.nn import autocast
from rnnkern.nn.ecosystem import refuse_or_trace, said_per_layer
from rnnkern.nn.eurnn import layers_inside, said_inside
from rnnkern.nn.options import with_options
from rnnkern.nn.recurrent import TimeFirst, reset_of_directions
from rnnkern.nn.single import Layers, Whole, with_constant_weights
from rnnkern.nn.stream import Streaming
from rnnkern.ops import Choice, givens_recurrence, recurrence
from rnnkern.ops._recurrence.linear import linear

INITIAL = {"fourier": "uniform", "givens": "uniform", "exp": "haar", "scaled_cayley": "cayley"}
"""Maps of :func:`rnnkern.parametrizations.unitary`, each with the default of ``init``."""
MAPS = (*INITIAL, "free")


@with_options
class UnitaryRNN(Streaming, Layers):
    r"""Complex modReLU network with a unitary recurrent weight: uRNN, unitary EURNN, full-capacity uRNN, unitary
    expRNN or scuRNN.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + R h_{t-1}; b), \quad
        \mathrm{modrelu}(z; b) = \frac{z}{|z|} \mathrm{relu}(|z| + b), \quad R^H R = I

    The input is real and the state is complex. The output is real: it holds the real and imaginary parts of h,
    alternating, so each direction has 2*H columns. The published networks pass these parts to a linear output layer,
    which you add yourself. T is the number of time steps, B the batch size, I the input size and H the number of
    complex hidden units.

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers. Each layer above the first reads the output
            columns of the layer below.
        unitary_map: how R is kept unitary. ``"fourier"`` is uRNN's product with 7 H parameters, ``"givens"`` is EURNN's
            product of rotation layers with phases. ``"exp"`` is the matrix exponential, with N^2 parameters for all
            unitary matrices, and ``"scaled_cayley"`` is scuRNN: the scaled Cayley transform with learned phases.
            :func:`rnnkern.parametrizations.unitary` computes these four once per optimizer step, and
            :func:`rnnkern.optim.param_groups` gives their parameters a tenth of the learning rate.
            ``"free"`` makes R a complex parameter, initialized to a random unitary matrix, which can become any unitary
            matrix. Train it with :class:`rnnkern.optim.CayleySGD`; with other optimizers it does not stay unitary. For
            ``"free"``, set ``dtype`` at construction, because ``module.double()`` does not convert complex parameters.
        rotation_layers, style, fused: for ``"givens"`` only, as in :class:`rnnkern.nn.EURNN`.
        init, base, rebase_every: for ``"exp"`` and ``"scaled_cayley"`` only, as in
            :func:`rnnkern.parametrizations.unitary`.
        batch_first: if True, input and output have shape (B, T, features) instead of (T, B, features).
        bidirectional: if True, each layer runs in both directions; the reverse direction has its own parameters,
            ``..._l{k}_reverse``.
        device, dtype: device and dtype of the real parameters; the dtype is float32 or float64.

    Parameters: ``weight_ih_l{k}`` (2*H, I) holds the rows of the real and imaginary parts of W, alternating, and is
    initialized from Glorot's normal distribution. ``modrelu_bias_l{k}`` (H,) is b, initialized from U(-0.01, 0.01).
    ``weight_hh_l{k}`` (H, H) is R. The initial state is zero, whereas the published network learns it.

    Raises:
        ValueError, TypeError: a size is not a positive integer, ``unitary_map`` is unknown, or an option does not apply
            to it.

    Source: fourier: Arjovsky et al. 2016; givens: Jing et al. 2017; exp: Hyland and Rätsch 2017; scaled_cayley:
    Maduranga, Helfrich and Ye 2019; free: Wisdom et al. 2016.

    >>> rnn = rnnkern.nn.UnitaryRNN(10, 20)
    >>> output, h_n = rnn(torch.randn(4, 3, 10))
    >>> output.shape, h_n.shape, h_n.dtype
    (torch.Size([4, 3, 40]), torch.Size([1, 3, 20]), torch.complex64)
    """

    _batch_dim, _complex = 1, True
    fused: bool | None = None
    _plain: ClassVar = {"num_layers": 1, "unitary_map": "fourier", "batch_first": False, "bidirectional": False}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, unitary_map: str = "fourier",
        rotation_layers: int | None = None, style: str | None = None, fused: bool | None = None,
        init: str | None = None, base: str = "static", rebase_every: int = 1,
        batch_first: bool = False, bidirectional: bool = False, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        super().__init__(sizes, {"unitary_map": (unitary_map, MAPS)})
        if not (fused is None or isinstance(fused, bool)):
            raise TypeError(f"UnitaryRNN: `fused` must be True, False or None, got {fused!r}")
        for name, value in {"rotation_layers": rotation_layers, "style": style, "fused": fused}.items():
            if value is not None and unitary_map != "givens":
                raise ValueError(f"UnitaryRNN: `{name}` applies only to the map 'givens', got {value!r}")
        how = {"init": init, "base": base, "rebase_every": rebase_every}
        if unitary_map == "free" and list(how.values()) != [None, "static", 1]:
            raise ValueError(f"UnitaryRNN: `init`, `base` and `rebase_every` do not apply to the map 'free', got {how}")
        how["init"] = init or INITIAL.get(unitary_map)
        self.batch_first, self.bidirectional, self.fused = batch_first, bidirectional, fused
        self._directions = ("", "_reverse") if bidirectional else ("",)
        self.output_size = 2 * hidden_size * len(self._directions)
        for layer in range(num_layers):
            for direction in self._directions:
                W = torch.empty(2 * hidden_size, self._columns(layer), device=device, dtype=dtype)
                setattr(self, f"weight_ih_l{layer}{direction}", Parameter(W))
                setattr(self, f"modrelu_bias_l{layer}{direction}", Parameter(W.new_empty(hidden_size)))
                R = W.new_empty(hidden_size, hidden_size, dtype=torch.promote_types(W.dtype, torch.complex64))
                setattr(self, name := f"weight_hh_l{layer}{direction}", Parameter(R))
                if unitary_map != "free":
                    parametrizations.unitary(self, name, unitary_map, layers=rotation_layers, style=style, **how)
        self.reset_parameters()

    def _columns(self, layer: int) -> int:
        """Number of input columns of a layer."""
        return self.output_size if layer else self.input_size

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        for layer in range(self.num_layers):
            for direction in self._directions:
                torch.nn.init.xavier_normal_(getattr(self, f"weight_ih_l{layer}{direction}"))
                torch.nn.init.uniform_(getattr(self, f"modrelu_bias_l{layer}{direction}"), -0.01, 0.01)
                name = f"weight_hh_l{layer}{direction}"
                if parametrize.is_parametrized(self, name):
                    parametrizations.reset_parameters(self, name)
                else:
                    weight = getattr(self, name)
                    weight.copy_(parametrizations.unitary_matrix(weight))

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None, **unknown: Never
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Runs the layers over a sequence.

        Args:
            input, reset: as in :meth:`rnnkern.nn.RNN.forward`; the input is real.
            hx: h_0, complex, of shape (num_layers * directions, B, H), without B for unbatched input, in the caller's
                batch order. None means zeros.

        Returns:
            The output, shaped like ``input`` with directions * 2*H columns, and h_n, shaped like ``hx``. Under autocast
            the projections use the autocast dtype, and the recurrence uses the dtype of the parameters.

        Raises:
            ValueError, TypeError: a shape or a dtype is wrong.
        """
        if isinstance(input, Proxy) or isinstance(hx, Proxy) or unknown:
            return refuse_or_trace(self, unknown, input, hx, reset)
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

    def _engine(self, x: Tensor) -> Whole:
        """What computes the steps of a stream, for an input like ``x``, (1, B, I)."""
        names = [f"weight_hh_l{layer}" for layer in range(self.num_layers)]
        inside = any(layers_inside(self, name, self.fused, x, x.shape[1]) for name in names)
        return Whole(self if inside else with_constant_weights(self), x)

    @torch.no_grad()
    def _choose(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, reset: Tensor | None = None
    ) -> list[Choice]:
        """The :class:`Choice` of each layer and direction, in order, for :func:`rnnkern.ops.explain`. Runs no
        recurrence."""
        sequence, choices = self._sequence(input, hx, reset), []
        for layer in range(self.num_layers):
            x = sequence.x.new_zeros(1).expand(*sequence.x.shape[:-1], self._columns(layer))
            for operator, args, options in self._calls(layer, x, sequence):
                choice = operator._choose(*args, **options)
                choices.append(choice if operator is recurrence else said_inside(choice))
        return said_per_layer(choices, self.bidirectional)

    def _sequence(self, input, hx, reset) -> TimeFirst:
        return self._time_first(input, None if hx is None else (hx,), reset)

    def _calls(self, layer: int, x: Tensor, sequence: TimeFirst) -> list[tuple[Callable, tuple, dict[str, Any]]]:
        """The operator and its arguments for each direction of a layer."""
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
        return torch.view_as_complex(linear(x, W).to(self._dtype).unflatten(-1, (self.hidden_size, 2)))

    def _state_shape(self, batch: int | None) -> tuple[int, ...]:
        return (self.num_layers * len(self._directions), *super()._state_shape(batch))
