"""How orthogonal a recurrent weight stays during training: docs/images/orthogonality.png and .svg.

``python -m perf.orthogonality_picture`` trains four networks for 1,000 updates on noise, in seconds, and draws the
largest element of |W^T W - I|.
"""

from pathlib import Path

import torch
from torch.nn.utils import parametrizations

from perf import record
from perf.figure import COLOURS, STYLE, plt, save
from perf.progress import Progress
from rnnkern import nn, optim

HIDDEN, UPDATES, EVERY = 64, 1000, 20


def initialized() -> nn.RNN:
    rnn = nn.RNN(8, HIDDEN)
    torch.nn.init.orthogonal_(rnn.weight_hh_l0)
    return rnn


def of_torch() -> torch.nn.RNN:
    rnn = torch.nn.RNN(8, HIDDEN)
    parametrizations.orthogonal(rnn, "weight_hh_l0", "matrix_exp")
    return rnn


NETWORKS = {
    "torch.nn.init.orthogonal_ alone": initialized,
    "torch.nn.utils.parametrizations.orthogonal": of_torch,
    "rnnkern.nn.ExpRNN": lambda: nn.ExpRNN(8, HIDDEN),
    "rnnkern.nn.CayleyRNN": lambda: nn.CayleyRNN(8, HIDDEN),
}


def errors(make) -> list[float]:
    """Before the first update and after every ``EVERY`` updates."""
    torch.manual_seed(0)
    rnn, head = make(), torch.nn.Linear(HIDDEN, 8)
    optimizer = torch.optim.Adam(optim.param_groups(torch.nn.ModuleList([rnn, head]), lr=1e-3))
    found = []
    for update in range(UPDATES + 1):
        if update % EVERY == 0:
            with torch.no_grad():
                W = rnn.weight_hh_l0.double()
                found.append((W.T @ W - torch.eye(HIDDEN, dtype=W.dtype)).abs().max().item())
        x = torch.randn(20, 16, 8)
        loss = (head(rnn(x)[0]) - x.roll(5, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def main(path: Path = record.PICTURES / "orthogonality.png") -> None:
    torch.set_num_threads(1)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
        with Progress("networks in training", len(NETWORKS), "network") as progress:
            for (name, make), colour in zip(NETWORKS.items(), COLOURS, strict=False):
                axes.semilogy(range(0, UPDATES + 1, EVERY), errors(make), color=colour, label=name)
                progress.advance()
        axes.set(xlabel="update", ylabel="largest element of |W$^T$W - I|", xlim=(0, UPDATES), ylim=(1e-8, 10))
        axes.grid(color="#eeeeee")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="center right")
        save(figure, path)


if __name__ == "__main__":
    main()
