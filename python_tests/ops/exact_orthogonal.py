"""cayley and schur_weight with their gradients in 40 digits: the truth for kernels in float64."""

import mpmath
import torch
from torch import Tensor


def exact(x: Tensor) -> mpmath.matrix:
    return mpmath.matrix(x.tolist())


def rounded(*matrices: mpmath.matrix) -> list[Tensor]:
    return [torch.tensor([[float(x) for x in row] for row in m.tolist()], dtype=torch.float64) for m in matrices]


@mpmath.workdps(40)
def cayley(A: Tensor, G: Tensor) -> list[Tensor]:
    """(I + S)^-1 (I - S), and the gradient of its sum of products with G."""
    lower, eye, G = exact(A.tril(-1)), mpmath.eye(len(A)), exact(G)
    S = lower - lower.T
    M = mpmath.inverse(eye + S)
    V = M * (eye - S)
    dS = -M.T * G * (V + eye).T
    V, dA = rounded(V, dS - dS.T)
    return [V, dA.tril(-1)]


@mpmath.workdps(40)
def schur_weight(P: Tensor, theta: Tensor, gamma: Tensor, T: Tensor, G: Tensor) -> list[Tensor]:
    """P (Lambda + T) P^T, and the gradients of its sum of products with G."""
    P, Theta, G = exact(P), exact(T.tril(-1)), exact(G)
    turns = [(mpmath.cos(x), mpmath.sin(x)) for x in map(mpmath.mpf, theta.tolist())]
    gamma = [mpmath.mpf(x) for x in gamma.tolist()]
    for k, (cos, sin) in enumerate(turns):
        i, j = 2 * k, 2 * k + 1
        Theta[i, i] = Theta[j, j] = gamma[k] * cos
        Theta[j, i] += gamma[k] * sin
        Theta[i, j] = -gamma[k] * sin
    single = range(len(turns), len(gamma))  # the last number of an odd size
    for k in single:
        Theta[len(T) - 1, len(T) - 1] = gamma[k]
    W, dTheta = P * Theta * P.T, P.T * G * P
    dP = G * P * Theta.T + G.T * P * Theta
    dtheta, dgamma = [], []
    for k, (cos, sin) in enumerate(turns):
        i, j = 2 * k, 2 * k + 1
        along, across = dTheta[i, i] + dTheta[j, j], dTheta[j, i] - dTheta[i, j]
        dgamma.append(cos * along + sin * across)
        dtheta.append(gamma[k] * (cos * across - sin * along))
    dgamma += [dTheta[len(T) - 1, len(T) - 1] for _ in single]
    W, dP, dT = rounded(W, dP, dTheta)
    angles = (torch.tensor([float(x) for x in of], dtype=torch.float64) for of in (dtheta, dgamma))
    return [W, dP, *angles, dT.tril(-1)]
