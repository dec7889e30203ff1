"""The memory that falls like a power, what perturbations do to it under each map, and the pictures of that."""

import pytest
import torch

from perf import polynomial, tasks
from rnnkern.analysis import perturbation_error
from rnnkern.parametrizations.stable import MAPS


@torch.no_grad()
def shifted(model, by):
    """All of m by the same: of the perturbations of a norm the one that acts most."""
    parameter = dict(model.named_parameters())[polynomial.RECURRENT]
    before = parameter.clone()
    parameter.add_(by)
    found = polynomial.error(model).item()
    parameter.copy_(before)
    return found


@pytest.mark.parametrize("map", MAPS)
def test_stable_weights_bear_perturbations_that_direct_ones_do_not(map):
    """At beta = 2.05 direct errs by at least 1e13, the stable maps by at most 0.8."""
    model, generator = polynomial.fitted(map, 64), torch.Generator().manual_seed(0)

    def largest(radius):
        names = [polynomial.RECURRENT]
        return perturbation_error(model, polynomial.error, radius, names=names, generator=generator)

    still, little, much = map_errors = [largest(radius) for radius in (0, 0.001, 2.05)]
    assert still < 0.03
    assert little < still + 0.01
    if map == "direct":
        assert much >= 1e13
    else:
        assert max(much, shifted(model, 2.05), shifted(model, -2.05)) <= 0.8
    assert largest(0) == map_errors[0]  # the model is as it was


def test_more_exponentials_come_nearer():
    fits = [polynomial.exponentials(size) for size in (3, 6, 12)]
    t = torch.linspace(2, 100, 200, dtype=torch.float64)
    errors = [((t[:, None] * rates).exp() @ c - polynomial.memory(t)).abs().max().item() for rates, c in fits]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    for rates, c in fits:
        assert ((rates < 0) & (c > 0)).all()
        torch.testing.assert_close(c.sum(), torch.ones((), dtype=torch.float64))


def test_the_task_is_the_convolution():
    x, y = polynomial.convolutions(9, 3, torch.Generator().manual_seed(0))
    assert (x.shape, y.shape) == ((9, 3, 1), (9, 3))
    for t in range(9):
        wanted = sum((1 + k) ** -1.1 * x[t - k, :, 0] for k in range(t + 1))
        torch.testing.assert_close(y[t], wanted)
    settings = tasks.TASKS["polynomial"].settings._replace(held_out=300)
    task = tasks.polynomial_memory(settings, "test", None)
    assert sum(y.shape[1] for _, y, _ in task.held_out()) == 300
    powers = polynomial.memory(torch.arange(200)).square()
    assert task.constant == pytest.approx(powers.cumsum(0).mean().item(), rel=0.03)
    with pytest.raises(ValueError, match="polynomial: the length must be at least 1, got 0"):
        tasks.polynomial_memory(settings._replace(length=0), "test", None)


def test_pictures(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from perf import stable_picture

    two = dict(list(stable_picture.layers().items())[:2])
    small = {"SIZES": (4, 4, 4, 4), "RADII": [0.001, 2.0], "STEPS": 5, "MAPS": MAPS[:2], "layers": lambda: two}
    for name, value in small.items():
        monkeypatch.setattr(stable_picture, name, value)
    stable_picture.main([str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory-functions.png", "stable.png"]
    with pytest.raises(SystemExit, match="memory functions"):
        stable_picture.main([])
