"""What may be assigned to a weight and what is refused, over the table of parametrizations."""

import math

import pytest
import torch

from python_tests.samples.parametrizations import ROWS, moved, originals, plain, registered

F64 = torch.float64
ASSIGNABLE = [name for name, row in ROWS.items() if row.assignable]
ORTHOGONAL = [name for name in ASSIGNABLE if ROWS[name].function == "orthogonal"]


@pytest.mark.parametrize("name", ASSIGNABLE)
def test_a_weight_that_keeps_the_promise_may_be_assigned(name):
    module, other = moved(registered(name)), moved(registered(name))
    W = other.weight.detach().clone()
    module.weight = W
    torch.testing.assert_close(module.weight, W)
    torch.testing.assert_close(module.weight, plain(name, module))
    if module.parametrizations.weight[0].bases:
        assert not originals(module)[0].any()


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_an_orthogonal_matrix_of_either_determinant_is_kept_to_the_bit(name):
    """No exponential has determinant -1."""
    module = moved(registered(name, torch.float32))
    W = moved(registered(name, torch.float32)).weight.detach().clone()
    for _ in range(2):
        W[..., 0] *= -1
        module.weight = W
        assert torch.equal(module.weight, W)
        assert not originals(module)[0].any()


ORTHONORMAL = r"orthogonal: the weight must be orthogonal, got max \|V\^T V - I\| ="


@pytest.mark.parametrize(
    ("name", "W", "said"),
    [
        ("exp", torch.ones(6, 6), ORTHONORMAL),
        ("exp", torch.full((6, 6), math.nan), ORTHONORMAL),
        ("exp-dynamic", torch.eye(6) * 1.01, ORTHONORMAL),
        ("exp-tall", 2 * torch.eye(7, 4), ORTHONORMAL),
        ("exp-tall", torch.eye(4, 7), r"orthogonal: the weight must be \(7, 4\), got \(4, 7\)"),
        ("householder", torch.eye(6), "right_inverse"),
        ("givens", torch.eye(5), "right_inverse"),
        ("schur", torch.eye(4), r"schur: the weight must be \(7, 7\), got \(4, 4\)"),
        ("schur", torch.full((7, 7), math.nan), "schur: the weight must be finite"),
        ("spectral_margin", 1.3 * torch.eye(6), "must be strictly between 0.8 and 1.2, got 1.3 to 1.3"),
        ("spectral_margin", torch.diag(torch.tensor([0.79, 1, 1, 1, 1, 1])), "between 0.8 and 1.2, got 0.79 to 1"),
        ("spectral_margin-0", 1.001 * torch.eye(6), "strictly between 1 and 1, got 1.001 to 1.001"),
        ("spectral_margin", torch.eye(6) * torch.nan, "the weight must be finite"),
        ("spectral_margin", torch.eye(5), r"the weight must be \(6, 6\), got \(5, 5\)"),
        ("stable-exp-1-None", torch.zeros(5), r"the weight must be in \[-inf, 0\), got 0 to 0"),
        ("stable-exp-1-0.3", torch.tensor([0.5, 1, 1, 1, 0.9]), r"must be in \[0, 1\), got 0.5 to 1"),
        ("stable-inverse-1-None", torch.tensor([-3.0, -1, -1, -1, -1]), r"must be in \[-2, 0\), got -3 to -1"),
        ("stable-exp-1-None", -torch.eye(5), r"the weight must be \(5,\), got \(5, 5\)"),
        ("stable-exp-2-None", -torch.eye(4) + torch.eye(4).roll(1, 1), "must be symmetric"),
        ("stable-exp-2-None", torch.eye(4), r"eigenvalues of the weight must be in \[-inf, 0\)"),
        ("stable-direct-1-None", torch.full((5,), math.nan), "must be finite"),
        ("stable-direct-2-0.3", torch.eye(4), "with the map 'direct' and a `dt`, assign to"),
        ("unitary-fourier", torch.eye(5), "right_inverse"),
        ("unitary-givens", torch.eye(4), "right_inverse"),
        ("unitary-exp", 2 * torch.eye(4), r"unitary: the weight must be unitary, got max \|W\^H W - I\|"),
        ("unitary-exp", torch.eye(5), r"unitary: the weight must be \(4, 4\), got \(5, 5\)"),
    ],
)
def test_what_is_refused_changes_nothing(name, W, said):
    module = registered(name)
    before = module.weight.detach().clone()
    with pytest.raises((ValueError, RuntimeError), match=said):
        module.weight = W.to(before.dtype)
    assert torch.equal(module.weight, before)
