"""EURNN is an Elman network whose recurrent weight is a product of plane rotations."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrize

from rnnkern import parametrizations
from rnnkern.nn.options import RNNOptions, with_options
from rnnkern.nn.orthogonal import _OrthogonalRNN
from rnnkern.nn.recurrent import TimeFirst
from rnnkern.ops import Choice, givens_recurrence, recurrence
from rnnkern.ops._orthogonal.givens_recurrence import DTYPES, pays
from rnnkern.ops._recurrence.linear import linear
from rnnkern.ops.dispatch import autocasts
from rnnkern.parametrizations._factors import Givens
from rnnkern.parametrizations._unitary import ComplexGivens


@with_options
class EURNN(_OrthogonalRNN):
    r"""EURNN (real): a network whose recurrent weight is a product of L layers of plane rotations.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + F_L \cdots F_2 F_1 \, h_{t-1}; b)

    ``weight_hh_l{k}`` is parametrized by :func:`rnnkern.parametrizations.orthogonal` with angles (L, H // 2). Either
    the layers are applied to the state inside the recurrence (:func:`rnnkern.ops.givens_recurrence`), in O(H L) per
    sequence and step, or the matrix is formed once per optimizer step, in O(H^2 L), and every step multiplies by it, in
    O(H^2).

    Args:
        rotation_layers: L. The default is H for ``"tunable"``, which reaches every rotation, and :math:`\log_2 H` for
            ``"butterfly"``.
        style: ``"tunable"`` rotates pairs of neighbors. ``"butterfly"`` pairs units as a fast Fourier transform does; H
            (with heads: the units of a head) must then be a power of two.
        init: initialization of the recurrent weight: ``"uniform"``, ``"henaff"``, ``"cayley"`` or ``"identity"``.
        fused: True applies the layers inside the recurrence, False forms the matrix, and None chooses what was measured
            to be faster. The matrix is always used for 16-bit dtypes and under autocast, and with options that the
            fused recurrence does not support: a nonlinearity other than modReLU, heads, zoneout, recurrent dropout and
            filters. With one of these options, True is an error.
        input_size, hidden_size, num_layers, options: as in :class:`rnnkern.nn.ExpRNN`, like everything else.

    Raises:
        ValueError, TypeError: as for RNN, or ``init``, ``rotation_layers``, ``style`` or ``fused`` has a wrong value.

    Source: Jing et al. 2017.

    >>> rnn = rnnkern.nn.EURNN(10, 32, style="butterfly")
    >>> R = rnn.weight_hh_l0
    >>> torch.allclose(R.T @ R, torch.eye(32), atol=1e-6), rnn.parametrizations.weight_hh_l0.original.shape
    (True, torch.Size([5, 16]))
    """

    fused: bool | None = None

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, rotation_layers: int | None = None,
        style: str = "tunable", init: str = "uniform", fused: bool | None = None, **options: Unpack[RNNOptions],
    ) -> None:  # fmt: skip
        if not (fused is None or isinstance(fused, bool)):
            raise TypeError(f"EURNN: `fused` must be True, False or None, got {fused!r}")
        how = {"orthogonal_map": "givens", "init": init, "layers": rotation_layers, "style": style}
        super().__init__(partial(parametrizations.orthogonal, **how), input_size, hidden_size, num_layers, **options)
        self.fused = fused
        if fused and (unserved := self._unserved()):
            raise ValueError(f"EURNN: `fused` must be False or None with {unserved}, got True")

    def _unserved(self) -> str:
        """The options in use that the fused recurrence does not support."""
        given = {
            f"nonlinearity {self.nonlinearity!r}": self.nonlinearity != "modrelu",
            "heads": self.num_heads > 1,
            "zoneout": bool(self.zoneout),
            "recurrent_dropout": bool(self.recurrent_dropout),
            "filter": self.filter is not None,
        }
        return ", ".join(name for name, there in given.items() if there)

    def _weight(self, name: str, sequence: TimeFirst) -> Any:
        """The rotation layers of a recurrent weight, by name, if the recurrence applies them; else the matrix."""
        if name.startswith("weight_hh") and not self._unserved():
            x, batch = sequence.x, len(sequence.state[0][0])
            found = {names[1]: layers_inside(self, names[1], self.fused, x, batch) for names in self._all_weights}
            if None not in found.values():
                return found[name]
        return super()._weight(name, sequence)

    def _calls(self, sequence: TimeFirst) -> list[list[dict[str, Any]]]:
        calls = super()._calls(sequence)
        if self.bidirectional or not isinstance(calls[0][0]["R"], dict):
            return calls
        return [[call] for stacked in calls for call in stacked]

    def _layer(self, x, calls, one, both) -> Sequence[Any]:
        if not isinstance(calls[0]["R"], dict):
            return super()._layer(x, calls, one, both)
        results = []
        for call, reverse in zip(calls, (False, True), strict=False):
            bias = None if call["bias_ih"] is None else call["bias_ih"] + call["bias"]
            h = linear(x, call["weight_ih"], bias)
            options = {name: call[name] for name in ("batch_sizes", "reset")} | {"reverse": reverse}
            options |= call["R"] | {"state": call["state"][0], "modrelu_bias": call["params"][0]}
            if one is recurrence:
                h, last = givens_recurrence(h, **options)
                results.append((h, (last,)))
            else:
                results.append(said_inside(givens_recurrence._choose(h, **options)))
        return results


def layers_inside(module: Module, name: str, fused: bool | None, x: Tensor, batch: int) -> dict[str, Any] | None:
    """The rotation layers of a weight as arguments of :func:`rnnkern.ops.givens_recurrence`, or None if the recurrence
    should use the matrix.

    Args:
        module, name: the module and the name of its weight.
        fused: True uses the layers wherever possible, False never, and None where they are faster.
        x: a tensor with the dtype and device of the input.
        batch: B.
    """
    if fused is False or not parametrize.is_parametrized(module, name) or len(module.parametrizations[name]) != 1:
        return None
    made = module.parametrizations[name][0]
    if not isinstance(made, (Givens, ComplexGivens)) or autocasts(x.device.type):
        return None
    angles, *phases = made.originals
    if angles.dim() != 2 or angles.dtype not in DTYPES or x.dtype != angles.dtype:
        return None
    sequences = None if torch.compiler.is_compiling() else batch  # compiled code serves any batch size
    if fused is None and not pays(made.sizes[-1], angles.shape[0], sequences, bool(phases), x.device):
        return None
    layers = {"angles": angles, "style": made.style}
    return layers | dict(zip(("phases", "diagonal_phases"), phases, strict=False))


def said_inside(choice: Choice) -> Choice:
    """Adds to the reason that the recurrence applies the rotation layers, for :func:`rnnkern.ops.explain`."""
    return choice._replace(reason=f"{choice.reason}, which applies the rotation layers inside the recurrence")
