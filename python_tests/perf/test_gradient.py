"""Norms of gradients of trained networks."""

import pytest
import torch

from perf import gradient
from perf.models import Network


@pytest.mark.parametrize(
    "subject", [s for s in gradient.SUBJECTS if s.name in ("RNN", "LSTM")], ids=lambda subject: subject.name
)
def test_norms_are_those_that_hooks_of_the_reference_record(subject):
    torch.manual_seed(0)
    x, y, _ = gradient.drawn(20, 2)
    network = Network(subject.build(x.shape[-1], 6), 6, y.max() + 1, each_step=True).double()
    loss = lambda h: torch.nn.functional.cross_entropy(network.head(h)[-5:].flatten(0, 1), y[-5:].flatten())  # noqa: E731
    wanted = gradient.norms_by_hooks(network.rnn, x.double(), loss).mean(1)
    torch.testing.assert_close(gradient.norms(network, x.double(), y, 5), wanted, rtol=1e-12, atol=0)
