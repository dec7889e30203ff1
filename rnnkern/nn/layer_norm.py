"""The option ``layer_norm`` of LSTM and GRU."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter, init

from rnnkern.nn import autocast
from rnnkern.nn.filters import Filtered


def _normalised_projection(x: Tensor, W: Tensor, gain: Tensor, b: Tensor | None) -> Tensor:
    return F.layer_norm(F.linear(x, W), gain.shape, gain, b)


class LayerNormed(Filtered):
    """Mixin that adds the option ``layer_norm`` to :class:`Filtered`: it holds the gains and normalizes the input
    projection."""

    layer_norm: bool = False

    def __init__(self, *args, layer_norm: bool = False, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(layer_norm, bool):
            raise TypeError(f"layer_norm should be of type bool, got: {type(layer_norm).__name__}")
        for name, plain in (("num_heads", 1), ("proj_size", 0)):
            if layer_norm and getattr(self, name) != plain:
                raise ValueError(f"layer_norm must be False with {name} = {getattr(self, name)}, got True")
        if layer_norm and self.filter:
            raise ValueError(f"layer_norm must be False with a filter, got {self.filter}")
        self.layer_norm = layer_norm
        if layer_norm:
            for names in self._all_weights:
                weight_ih = getattr(self, names[0])
                sizes = {"weight_ln_ih": weight_ih.shape[0], "weight_ln_hh": weight_ih.shape[0]}
                if self.mode == "LSTM":
                    sizes |= {"weight_ln_c": self.hidden_size, "bias_ln_c": self.hidden_size}
                for kind, size in sizes.items():
                    names.append(names[0].replace("weight_ih", kind))
                    setattr(self, names[-1], Parameter(weight_ih.new_empty(size)))
            self._reset_norms()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_norms()

    def _reset_norms(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith(("weight_ln", "bias_ln")):
                init.constant_(parameter, float(name.startswith("weight")))

    def _stacks(self) -> bool:
        return not self.layer_norm and super()._stacks()

    def _layer(self, x, directions, one, both) -> Sequence[Any]:
        """Runs each direction on its own u = LN(W x) + b_ih."""
        if not self.layer_norm:
            return super()._layer(x, directions, one, both)
        results = []
        for k, call in enumerate(directions):
            (gain, *params), rest = call["params"], call.keys() - {"weight_ih", "bias_ih"}
            inputs = x, call["weight_ih"], gain, call["bias_ih"]
            save_u = autocast.recomputed(_normalised_projection, *inputs)
            u, call = autocast.cast(
                _normalised_projection(*inputs), {name: call[name] for name in rest} | {"params": tuple(params)}
            )
            results.append(one(self._cell, u, **call, save_u=save_u, reverse=k == 1))
        return results

    def extra_repr(self) -> str:
        return super().extra_repr() + (", layer_norm=True" if self.layer_norm else "")
