"""What only a weight in real Schur form promises: its angles, and the form of every matrix that is assigned."""

import pytest
import torch

from python_tests.samples.parametrizations import originals, registered
from rnnkern.parametrizations import orthogonal_matrix, schur
from rnnkern.parametrizations._schur import schur_form

F64 = torch.float64


def made(size, dtype=F64):
    return schur(torch.nn.Linear(size, size, bias=False, dtype=dtype), "weight")


def test_begins_without_a_triangle_with_angles_drawn():
    A, theta, gamma, T = originals(made(33))
    assert not A.any()
    assert not T.any()
    assert (gamma == 1).all()
    assert 0 <= theta.min() < 1.5
    assert 5 < theta.max() <= 6.2832


def rotation(size):
    return orthogonal_matrix(torch.empty(size, size, dtype=F64), "haar")


MATRICES = {
    "gaussian": lambda n: torch.randn(n, n, dtype=F64),
    "orthogonal": rotation,
    "reflection": lambda n: rotation(n) * torch.tensor([-1.0] + [1.0] * (n - 1), dtype=F64),
    "symmetric": lambda n: (lambda x: x + x.T)(torch.randn(n, n, dtype=F64)),
    "identity": lambda n: torch.eye(n, dtype=F64),
    "zero": lambda n: torch.zeros(n, n, dtype=F64),
    "jordan": lambda n: torch.eye(n, dtype=F64) + torch.ones(n, n, dtype=F64).triu(1).tril(1),
    "diagonal": lambda n: torch.arange(n, dtype=F64).diag(),
}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_any_matrix_may_be_assigned(matrix, size):
    V = matrix(size)
    for dtype, limit in ((F64, 1e-12), (torch.float32, 1e-6)):
        module = made(size, dtype)
        module.weight = V.to(dtype)
        atol = limit * size * max(1, V.abs().max().item())
        torch.testing.assert_close(module.weight, V.to(dtype), rtol=0, atol=atol)


def test_a_rotation_s_form_has_no_triangle_and_its_angles():
    V = rotation(8)
    _, theta, gamma, T = schur_form(V)
    torch.testing.assert_close(gamma, torch.ones(4, dtype=F64))
    torch.testing.assert_close(T.abs().max(), torch.zeros((), dtype=F64), atol=1e-12, rtol=0)
    angles = torch.linalg.eigvals(V).angle()
    torch.testing.assert_close(theta.abs().sort().values, angles[angles > 0].sort().values)


def test_what_has_no_form_is_refused(monkeypatch):
    module, eig = registered("schur"), torch.linalg.eig
    monkeypatch.setattr(torch.linalg, "eig", lambda V: (eig(V)[0], torch.randn(7, 7, dtype=torch.complex128)))
    with pytest.raises(ValueError, match="schur: eigenvectors must be independent; the Schur form is off by"):
        module.weight = torch.randn(7, 7, dtype=F64)
