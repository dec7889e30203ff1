"""An Elman network whose recurrent weight is a product of plane rotations."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch.nn.functional as F

from rnnkern import parametrizations
from rnnkern.nn.options import RNNOptions, with_options
from rnnkern.nn.orthogonal import _OrthogonalRNN
from rnnkern.nn.recurrent import TimeFirst
from rnnkern.nn.rotations import layers_inside, said_inside
from rnnkern.ops import givens_recurrence, recurrence


@with_options
class EURNN(_OrthogonalRNN):
    r"""EURNN (real): a network whose recurrent weight is a product of L layers of plane rotations.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + F_L \cdots F_2 F_1 \, h_{t-1}; b)

    Shapes, input, output and errors are those of :class:`rnnkern.nn.RNN`. ``weight_hh_l{k}`` is parametrized by
    :func:`rnnkern.parametrizations.orthogonal` with angles (L, H // 2). Either the layers are applied to the state
    inside the recurrence (:func:`rnnkern.ops.givens_recurrence`), in O(H L) per sequence and step, or the matrix is
    formed once per optimizer step, in O(H^2 L), and every step multiplies by it, in O(H^2).

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers of the network.
        rotation_layers: L. The default is H for ``"tunable"``, which reaches every rotation, and :math:`\log_2 H` for
            ``"butterfly"``.
        style: ``"tunable"`` rotates pairs of neighbors. ``"butterfly"`` pairs units as a fast Fourier transform does; H
            (with heads: the units of a head) must then be a power of two.
        init: initialization of the recurrent weight: ``"uniform"``, ``"henaff"``, ``"cayley"`` or ``"identity"``.
        fused: True applies the layers inside the recurrence, False forms the matrix, and None chooses what was measured
            to be faster. The matrix is always used for 16-bit dtypes and under autocast, and with options that the
            fused recurrence does not support: a nonlinearity other than modReLU, heads, zoneout, recurrent dropout and
            filters. With one of these options, True is an error.
        bias: if True, adds the biases b_ih and b_hh, which the published network does not have.
        options: all other options of :class:`rnnkern.nn.RNN`. The default ``nonlinearity`` is ``"modrelu"``.

    The input weight is initialized from Glorot's normal distribution, and b from U(-0.01, 0.01).

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
        style: str = "tunable", init: str = "uniform", fused: bool | None = None, bias: bool = False,
        **options: Unpack[RNNOptions],
    ) -> None:  # fmt: skip
        self._how = {"init": init, "layers": rotation_layers, "style": style}
        if not (fused is None or isinstance(fused, bool)):
            raise TypeError(f"EURNN: `fused` must be True, False or None, got {fused!r}")
        super().__init__(input_size, hidden_size, num_layers, bias=bias, **options)
        self.fused = fused
        if fused and (unserved := self._unserved()):
            raise ValueError(f"EURNN: `fused` must be False or None with {unserved}, got True")

    def _constrain(self, name: str) -> None:
        parametrizations.orthogonal(self, name, orthogonal_map="givens", **self._how)

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

    def _layer(self, x, calls, one, both) -> Sequence[Any]:
        if not isinstance(calls[0]["R"], dict):
            return super()._layer(x, calls, one, both)
        results, stacked = [], len(calls) > 1 and not self.bidirectional
        for k, call in enumerate(calls):
            bias = None if call["bias_ih"] is None else call["bias_ih"] + call["bias"]
            h = F.linear(x, call["weight_ih"], bias)
            options = call["R"] | {"state": call["state"][0], "modrelu_bias": call["params"][0]}
            options |= {"batch_sizes": call["batch_sizes"], "reset": call["reset"]}
            options |= {"reverse": self.bidirectional and k == 1}
            if one is recurrence:
                h, last = givens_recurrence(h, **options)
                results.append((h, (last,)))
            else:
                choice = givens_recurrence._choose(h, **options)
                results.append(said_inside(choice))
            x = h if stacked else x
        if stacked and one is recurrence:
            (_, lower), (h, upper) = results
            return h, lower, upper
        return results
