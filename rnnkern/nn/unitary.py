"""Elman networks of complex numbers with a recurrent weight that stays unitary."""

import torch
from torch import Tensor
from torch.nn import Module, Parameter, init
from torch.nn.utils import parametrize

from rnnkern import parametrizations
from rnnkern.nn.recurrent import reset_in_order
from rnnkern.nn.rotations import layers_inside
from rnnkern.ops import givens_recurrence, recurrence

MAPS = ("fourier", "givens", "free")


class UnitaryRNN(Module):
    r"""uRNN, unitary EURNN and full-capacity uRNN: a complex modReLU network with a unitary recurrent weight.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + R h_{t-1}; b), \quad
        \mathrm{modrelu}(z; b) = \frac{z}{|z|} \mathrm{relu}(|z| + b), \quad R^H R = I

    The input is real, the state complex. The output is real, the 2*H parts of h, real and imaginary in turns: what the
    published networks send through a linear layer, which is the caller's here. T steps, B sequences, I inputs, H
    complex hidden units.

    Args:
        input_size, hidden_size, num_layers: I, H and the layers; a layer above the first has 2*H inputs.
        map: what R is. ``"fourier"``, uRNN's product of 7 H parameters, or ``"givens"``, EURNN's layers of rotations
            with phases, both by :func:`rnnkern.parametrizations.unitary` and computed once per step of an optimiser,
            with parameters that train at a tenth of the learning rate by :func:`rnnkern.optim.param_groups`; or
            ``"free"``, any unitary matrix, a complex parameter that begins as a random one and is
            :class:`rnnkern.optim.CayleySGD`'s to train: under others it does not stay unitary. Of such a network
            choose the dtype here, since ``module.double()`` leaves a complex parameter as it is.
        rotation_layers, style, inside: of ``"givens"``, as of :class:`rnnkern.nn.EURNN`.
        batch_first: input and output are (B, T, ...) instead of (T, B, ...).
        device, dtype: of the real parameters; float32 or float64.

    ``weight_ih_l{k}`` (2*H, I) has the rows of W's real and imaginary parts in turns and is drawn from Glorot's normal
    distribution, ``modrelu_bias_l{k}`` (H,) is b, drawn from U(-0.01, 0.01), ``weight_hh_l{k}`` (H, H) is R. The state
    begins as zeros, where the published network learns it.

    Raises:
        ValueError: a size is not positive, ``map`` is unknown, or an option does not fit it.

    Source: fourier Arjovsky et al. 2016; givens Jing et al. 2017; free Wisdom et al. 2016.

    >>> rnn = rnnkern.nn.UnitaryRNN(10, 20)
    >>> output, h_n = rnn(torch.randn(4, 3, 10))
    >>> output.shape, h_n.shape, h_n.dtype
    (torch.Size([4, 3, 40]), torch.Size([1, 3, 20]), torch.complex64)
    """

    inside: bool | None = None

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, map: str = "fourier",
        rotation_layers: int | None = None, style: str | None = None, inside: bool | None = None,
        batch_first: bool = False, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, size in {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"UnitaryRNN: `{name}` must be a positive number, got {size!r}")
        if map not in MAPS:
            raise ValueError(f"UnitaryRNN: `map` must be one of {MAPS}, got {map!r}")
        if not (inside is None or isinstance(inside, bool)):
            raise TypeError(f"UnitaryRNN: `inside` must be True, False or None, got {inside!r}")
        for name, value in {"rotation_layers": rotation_layers, "style": style, "inside": inside}.items():
            if value is not None and map != "givens":
                raise ValueError(f"UnitaryRNN: `{name}` is for the map 'givens' alone, got {value!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.output_size, self.map, self.batch_first = 2 * hidden_size, map, batch_first
        self.inside = inside
        for layer in range(num_layers):
            inputs = 2 * hidden_size if layer else input_size
            W = torch.empty(2 * hidden_size, inputs, device=device, dtype=dtype)
            setattr(self, f"weight_ih_l{layer}", Parameter(W))
            setattr(self, f"modrelu_bias_l{layer}", Parameter(W.new_empty(hidden_size)))
            R = W.new_empty(hidden_size, hidden_size, dtype=W.dtype.to_complex())
            setattr(self, f"weight_hh_l{layer}", Parameter(R))
            if map != "free":
                parametrizations.unitary(self, f"weight_hh_l{layer}", map, layers=rotation_layers, style=style)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for layer in range(self.num_layers):
            init.xavier_normal_(getattr(self, f"weight_ih_l{layer}"))
            init.uniform_(getattr(self, f"modrelu_bias_l{layer}"), -0.01, 0.01)
            name = f"weight_hh_l{layer}"
            if parametrize.is_parametrized(self, name):
                parametrizations.reset(self, name)
            else:
                weight = getattr(self, name)
                weight.copy_(parametrizations.unitary_matrix(weight))

    def forward(self, input: Tensor, hx: Tensor | None = None, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Runs the layers over a sequence.

        Args:
            input: (T, B, I), (B, T, I) with ``batch_first``, or (T, I); real, of the parameters' dtype. T may be 0.
            hx: h_0, (num_layers, B, H), without B for (T, I); complex. None is zeros.
            reset: bool, (T, B), (B, T) with ``batch_first``, (T,) for (T, I). Where true the state before step t is
                zeros.

        Returns:
            The output, like ``input`` with 2*H columns, and h_n, like ``hx``.

        Raises:
            ValueError, TypeError: a shape or a dtype is wrong.
        """
        batched = self._check(input, hx)
        x, state = input, hx
        if not batched:
            x, state = x.unsqueeze(1), None if hx is None else hx.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        steps, batch = x.shape[:2]
        if state is None:
            state = torch.view_as_complex(x.new_zeros(self.num_layers, batch, self.hidden_size, 2))
        if reset is not None:
            reset = reset_in_order(self, reset, x, steps, batch if batched else None)
        finals = []
        for layer in range(self.num_layers):
            W, b = (getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "modrelu_bias"))
            u = torch.view_as_complex((x @ W.mT).unflatten(-1, (self.hidden_size, 2)))
            h, final = self._recurrence(f"weight_hh_l{layer}", u, state[layer], b, reset)
            x = torch.view_as_real(h).flatten(-2)
            finals.append(final)
        h_n = torch.stack(finals)
        if not batched:
            return x.squeeze(1), h_n.squeeze(1)
        return x.transpose(0, 1) if self.batch_first else x, h_n

    def _recurrence(self, name: str, u: Tensor, h0: Tensor, b: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        layers = layers_inside(self, name, self.inside, b, h0.shape[0])
        if layers is not None:
            return givens_recurrence(u, h0=h0, modrelu_bias=b, reset=reset, **layers)
        h, (last,) = recurrence("modrelu", u, getattr(self, name), (h0,), params=(b,), reset=reset)
        return h, last

    def _check(self, input: Tensor, hx: Tensor | None) -> bool:
        """Returns whether there is a batch."""
        dtype = self.weight_ih_l0.dtype
        if not isinstance(input, Tensor):
            raise TypeError(f"UnitaryRNN: `input` must be a tensor, got {type(input).__name__}")
        if input.dtype != dtype:
            raise TypeError(f"UnitaryRNN: `input` must be of dtype {dtype} like the parameters, got {input.dtype}")
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            wanted = f"(T, B, {self.input_size}), (B, T, {self.input_size}) or (T, {self.input_size})"
            raise ValueError(f"UnitaryRNN: `input` must be {wanted}, got {tuple(input.shape)}")
        batch = (input.shape[0 if self.batch_first else 1],) if input.dim() == 3 else ()
        wanted = (self.num_layers, *batch, self.hidden_size)
        if hx is not None and tuple(hx.shape) != wanted:
            raise ValueError(f"UnitaryRNN: `hx` must be {wanted}, got {tuple(hx.shape)}")
        if hx is not None and hx.dtype != dtype.to_complex():
            raise TypeError(f"UnitaryRNN: `hx` must be of dtype {dtype.to_complex()}, got {hx.dtype}")
        return bool(batch)

    def extra_repr(self) -> str:
        layers = f", num_layers={self.num_layers}" if self.num_layers > 1 else ""
        first = ", batch_first=True" if self.batch_first else ""
        return f"{self.input_size}, {self.hidden_size}{layers}, map={self.map}{first}"
