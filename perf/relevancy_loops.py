"""RelRNN, RelLSTM and MemRNN as one writes them in PyTorch: a loop over time that gathers the members at each step."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from rnnkern.nn.relevancy import Relevancy


class PlainLoop(Module):
    """The same as ``layer``, with its parameters.

    Args:
        layer: tanh or LSTM, additive alignment, screening by attention.
        cached: keys are kept, else computed of all members at each step, as in the published code.
    """

    def __init__(self, layer: Relevancy, cached: bool = True) -> None:
        super().__init__()
        self.layer, self.cached = layer, cached

    def forward(self, x: Tensor, state: None = None) -> tuple[Tensor, Tensor]:
        layer, U_a = self.layer, self.layer.weight_key_l0
        s = c = x.new_zeros(x.shape[1], layer.hidden_size)
        rows = torch.arange(x.shape[1], device=x.device)
        buffer, scores, outputs = [], [], []  # of each event (h,) or (h, its key)
        relevant = [x.new_zeros(x.shape[1], layer.relevant_size, layer.hidden_size)] * (1 + self.cached)
        frozen = x.new_full((x.shape[1], layer.relevant_size), -1.0)
        for t, u in enumerate(F.linear(x, layer.weight_ih_l0, layer.bias_ih_l0).unbind(0)):
            query = F.linear(s, layer.weight_query_l0)
            h, c = self._cell(u + F.linear(s, layer.weight_hh_l0), c)
            buffer.append((h, F.linear(h, U_a)) if self.cached else (h,))
            scores.append(x.new_zeros(x.shape[1]))
            if len(buffer) > layer.buffer_size:
                leaving, score = buffer.pop(0), scores.pop(0)
                if layer.relevant_size:
                    least, slot = frozen.min(1)
                    taken = torch.zeros_like(frozen, dtype=torch.bool)
                    taken[rows, slot] = score > least
                    relevant = [
                        torch.where(taken.unsqueeze(-1), new.unsqueeze(1), old)
                        for new, old in zip(leaving, relevant, strict=True)
                    ]
                    frozen = torch.where(taken, score.unsqueeze(1), frozen)
            held = min(layer.relevant_size, max(0, t + 1 - layer.buffer_size))
            members = [
                torch.cat([torch.stack(new, 1), old[:, :held]], 1)
                for new, old in zip(zip(*buffer, strict=True), relevant, strict=True)
            ]
            keys = members[1] if self.cached else F.linear(members[0], U_a)
            alpha = F.softmax(torch.tanh(query.unsqueeze(1) + keys) @ layer.weight_score_l0, -1)
            s = (h + (alpha.unsqueeze(1) @ members[0]).squeeze(1)) / 2
            for k, a in enumerate(alpha.detach().unbind(1)[: len(buffer)]):
                scores[k] = scores[k] + a
            outputs.append(h)
        return torch.stack(outputs), s

    def _cell(self, r: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        if self.layer._cell == "tanh":
            return torch.tanh(r), c
        i, f, g, o = r.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
