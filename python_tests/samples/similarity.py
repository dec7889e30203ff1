"""Samples of similarity."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from python_tests.samples.agreement import with_gradients


class SimilarityCall(NamedTuple):
    """``operator(**tensors, **options)``."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]

    def to(self, dtype: torch.dtype) -> "SimilarityCall":
        return self._replace(tensors={name: x.to(dtype) for name, x in self.tensors.items()})


def similarity_sample(
    batch: int = 3,
    objects: int = 6,
    features: int = 10,
    *,
    dtype: torch.dtype = torch.float64,
    two: bool = False,
    affine: bool = True,
    values: int = 0,
    lengths: bool = False,
    **options: Any,
) -> SimilarityCall:
    """A random call, drawn from torch's generator. Products are of order 1, so that R does not saturate. With
    ``lengths`` some samples have none or one object, one has all (of two objects, the gradient of the normalization
    cancels), and what is beyond a length is NaN."""
    tensors = {"x": torch.randn(batch, objects, features)}
    if two:
        tensors["y"] = torch.randn(batch, objects, features)
    if affine and options.get("norm", "unbiased") is not None:
        tensors |= {"weight": 0.5 + torch.rand(features), "bias": torch.randn(features)}
    if values:
        tensors["values"] = torch.randn(batch, objects, values)
    if lengths:
        counts = torch.randint(0, objects + 1, (batch,))
        counts[:3] = torch.tensor([0, 1, objects])[: counts[:3].numel()]
        gone = torch.arange(objects) >= counts.unsqueeze(1)
        for name in set(tensors) & {"x", "y", "values"}:
            tensors[name][gone] = torch.nan
        options |= {"lengths": counts}
    return SimilarityCall(
        {name: x.to(dtype) for name, x in tensors.items()},
        {"scale": features**-0.5} | options | {"return_scores": True},
    )


def similarity_outputs_and_gradients(operator, call: SimilarityCall, dtype: torch.dtype | None = None):
    """The results of a call by name, and the gradients of everything for random upstream gradients."""
    leaves = {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in call.tensors.items()}
    outputs = operator(**leaves, **call.options)
    return with_gradients(dict(zip(("R", "S", "product"), outputs, strict=False)), leaves)
