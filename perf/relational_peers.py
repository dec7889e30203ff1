"""What relational models are compared with: the similarities and the network as they are published, and the fastest
forms of plain PyTorch."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-8


def published(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The packed similarities of objects (B, T, d), step by step as in the code of the publications."""
    z = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + EPS).sqrt() * weight + bias
    T = x.shape[1]
    above = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
    R = torch.softmax((z @ z.mT).masked_fill(above, -torch.inf), -1)
    rows, columns = torch.tril_indices(T, T, device=x.device)
    return R[:, rows, columns]


def instance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same with PyTorch's fused normalization, and the mask as a summand of the products."""
    T = x.shape[1]
    less = (T - 1) / T
    z = torch.addcmul(bias, F.instance_norm(x.mT, eps=less * EPS).mT, less**0.5 * weight)
    above = torch.full((1, T, T), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
    R = torch.softmax(torch.baddbmm(above.expand(x.shape[0], -1, -1), z, z.mT), -1)
    rows, columns = torch.tril_indices(T, T, device=x.device)
    return R.flatten(1)[:, rows * T + columns]


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"published": published, "instance_norm": instance_norm}


def esbn(z: Tensor, weights: Sequence[Tensor], a: Tensor, b: Tensor) -> Tensor:
    """The last state of an emergent symbol binding network (Webb et al. 2021), (B, H), with the similarities step by
    step beside the LSTM; the last step has no object. Weights are those of :func:`rnnkern.ops.binding_recurrence`."""
    W_ih, W_hh, b_ih, b_hh, W_k, b_k, w_g, b_g = weights
    batch, objects, _ = z.shape
    h, c = z.new_zeros(batch, W_hh.shape[1]), z.new_zeros(batch, W_hh.shape[1])
    read, keys, seen = z.new_zeros(batch, W_ih.shape[1]), [], []
    for t in range(objects + 1):
        h, c = torch.lstm_cell(read, (h, c), W_ih, W_hh, b_ih, b_hh)
        key, gate = torch.relu(F.linear(h, W_k, b_k)), torch.sigmoid(F.linear(h, w_g, b_g))
        now = z[:, t] if t < objects else torch.zeros_like(z[:, 0])
        if t > 0:
            scores = (torch.stack(seen, 1) * now.unsqueeze(1)).sum(-1)
            bound = torch.cat([torch.stack(keys, 1), torch.sigmoid(a * scores + b).unsqueeze(-1)], -1)
            read = gate * (torch.softmax(scores, 1).unsqueeze(-1) * bound).sum(1)
        keys.append(key)
        seen.append(now)
    return h
