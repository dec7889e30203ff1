"""Elman networks here have a recurrent weight that begins or stays (nearly) orthogonal, or has a Schur form."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn import Module, init
from torch.nn.utils import parametrize

from rnnkern import parametrizations
from rnnkern.nn import autocast
from rnnkern.nn.options import ExpRNNOptions, LayerOptions, RebasedOptions, RNNOptions, with_options
from rnnkern.nn.rnn import RNN
from rnnkern.ops._recurrence.linear import linear

INPUT_NONLINEARITIES = {"relu": torch.relu, "tanh": torch.tanh, "identity": lambda x: x}
"""Functions of the projected input of :class:`HenaffRNN`."""


class _OrthogonalRNN(RNN):
    """Base class: h' = modrelu(W x + R h; b), without other biases, as published. ``constrain(module, name)`` makes the
    recurrent weight of that name what it is to be."""

    def __init__(
        self, constrain: Callable[[Module, str], Any], input_size: int, hidden_size: int, num_layers: int = 1, *,
        nonlinearity: str = "modrelu", bias: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, bias, **options)
        for names in self._all_weights:
            constrain(self, names[1])

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for names in self._all_weights:
            init.xavier_normal_(getattr(self, names[0]))
            self._draw(names[1])

    def _draw(self, name: str) -> None:
        if parametrize.is_parametrized(self, name):
            parametrizations.reset_parameters(self, name)


@with_options
class ExpRNN(_OrthogonalRNN):
    r"""expRNN: a modReLU network whose recurrent weight stays orthogonal by the matrix exponential.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + B \exp(A) \, h_{t-1}; b)

    Shapes, input, output and errors are those of :class:`rnnkern.nn.RNN`. ``weight_hh_l{k}`` is parametrized by
    :func:`rnnkern.parametrizations.orthogonal`, which computes it once per optimizer step. The input weight is
    initialized from Glorot's normal distribution, and b from U(-0.01, 0.01). :func:`rnnkern.optim.param_groups` gives A
    a tenth of the learning rate.

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers.
        init: initialization of the recurrent weight: ``"henaff"``, ``"cayley"``, ``"haar"`` or ``"identity"``. Use the
            default, ``"henaff"``: in one run of the copy task, ``"cayley"`` with ``base="dynamic"`` stayed at an
            accuracy of 0.65, and the default reached 1.00.
        base, rebase_every: ``"static"`` keeps B fixed. ``"dynamic"`` sets B <- B exp(A) and A <- 0 after every
            ``rebase_every`` optimizer steps.
        options: all other options of :class:`rnnkern.nn.RNN`. The default ``nonlinearity`` is ``"modrelu"``, and
            ``bias`` is False, as in the published network; True adds b_ih and b_hh.

    Raises:
        ValueError, TypeError: as for RNN, or ``init``, ``base`` or ``rebase_every`` has a wrong value.

    Source: Lezcano-Casado and Martinez-Rubio 2019; dynamic base: Lezcano-Casado 2019.

    >>> rnn = rnnkern.nn.ExpRNN(10, 20, base="dynamic", rebase_every=100)
    >>> output, h_n = rnn(torch.randn(4, 3, 10))
    >>> R = rnn.weight_hh_l0
    >>> output.shape, torch.allclose(R.T @ R, torch.eye(20), atol=1e-6)
    (torch.Size([4, 3, 20]), True)
    """

    _map = staticmethod(partial(parametrizations.orthogonal, orthogonal_map="exp"))

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, init: str = "henaff", base: str = "static",
        rebase_every: int = 1, **options: Unpack[RNNOptions],
    ) -> None:  # fmt: skip
        constrain = partial(self._map, init=init, base=base, rebase_every=rebase_every)
        super().__init__(constrain, input_size, hidden_size, num_layers, **options)


@with_options
class CayleyRNN(ExpRNN):
    r"""scoRNN: a modReLU network whose recurrent weight stays orthogonal by the scaled Cayley transform.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + B (I + A)^{-1} (I - A) D \, h_{t-1}; b)

    Everything else is as in :class:`ExpRNN`.

    Args:
        num_negative: number of entries of the diagonal D that are -1; the others are 1. The default is half of them.
        input_size, hidden_size, num_layers, init, base, rebase_every, options: as in :class:`ExpRNN`, except that the
            default ``init`` is ``"cayley"``.

    Source: Helfrich, Willmott and Ye 2018.

    >>> rnn = rnnkern.nn.CayleyRNN(10, 20, num_negative=5)
    >>> torch.linalg.det(rnn.weight_hh_l0).round().item()
    -1.0
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, init: str = "cayley",
        num_negative: int | None = None, **options: Unpack[RebasedOptions],
    ) -> None:  # fmt: skip
        self._map = partial(parametrizations.orthogonal, orthogonal_map="scaled_cayley", num_negative=num_negative)
        super().__init__(input_size, hidden_size, num_layers, init=init, **options)


@with_options
class NonNormalRNN(ExpRNN):
    r"""nnRNN: a modReLU network whose recurrent weight has a real Schur form.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + P (\Lambda + T) P^\top h_{t-1}; b)

    ``weight_hh_l{k}`` is parametrized by :func:`rnnkern.parametrizations.schur`: P = B exp(A) is orthogonal, Lambda is
    block-diagonal with rotations by theta, scaled by gamma, and T is strictly lower triangular. For training, add
    ``delta * schur_penalty(model)`` to the loss and give T weight decay with :func:`rnnkern.optim.param_groups`.

    Args:
        gamma: the value that all moduli gamma keep, such as 1 or 0.958 (Kerg et al. 2019, appendix A.6). None, the
            default, trains them from 1.
        input_size, hidden_size, num_layers, init, base, rebase_every, options: as in :class:`ExpRNN`; ``init``,
            ``base`` and ``rebase_every`` apply to P.

    Source: Kerg et al. 2019.

    >>> rnn = rnnkern.nn.NonNormalRNN(10, 20, num_layers=2)
    >>> loss = rnn(torch.randn(4, 3, 10))[0].square().mean() + 1e-4 * rnnkern.nn.schur_penalty(rnn)
    >>> loss.backward()
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, gamma: float | None = None,
        **options: Unpack[ExpRNNOptions],
    ) -> None:  # fmt: skip
        self._map = partial(parametrizations.schur, gamma=gamma)
        super().__init__(input_size, hidden_size, num_layers, **options)


@with_options
class HouseholderRNN(_OrthogonalRNN):
    r"""oRNN: a network whose recurrent weight is a product of m Householder reflections.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + H_1 H_2 \cdots H_m \, h_{t-1}; b)

    ``weight_hh_l{k}`` is parametrized by :func:`rnnkern.parametrizations.orthogonal` with V (H, m) and computed once
    per optimizer step, in O(H^2 m). At least H - m of its eigenvalues are 1, and its determinant is :math:`(-1)^m`.
    Everything else is as in :class:`ExpRNN`.

    Args:
        reflections: m, from 1 to H (with heads: to the units of a head). The default is the maximum.
        init: initialization of the recurrent weight: ``"haar"``, ``"henaff"``, ``"cayley"`` or ``"identity"``.
        input_size, hidden_size, num_layers, options: as in :class:`ExpRNN`. The paper's nonlinearity is
            ``"leaky_relu"``.

    Raises:
        ValueError, TypeError: as for RNN, or ``init`` or ``reflections`` has a wrong value.

    Source: Mhammedi et al. 2017.

    >>> rnn = rnnkern.nn.HouseholderRNN(10, 20, reflections=4)
    >>> R = rnn.weight_hh_l0
    >>> torch.allclose(R.T @ R, torch.eye(20), atol=1e-6), rnn.parametrizations.weight_hh_l0.original.shape
    (True, torch.Size([20, 4]))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, reflections: int | None = None,
        init: str = "haar", **options: Unpack[RNNOptions],
    ) -> None:  # fmt: skip
        how = {"orthogonal_map": "householder", "init": init, "reflections": reflections}
        super().__init__(partial(parametrizations.orthogonal, **how), input_size, hidden_size, num_layers, **options)


@with_options
class SpectralRNN(_OrthogonalRNN):
    r"""A modReLU network whose recurrent weight keeps its singular values within a margin m around 1.

    .. math::
        h_t = \mathrm{modrelu}(W x_t + U \operatorname{diag}(s) V^\top h_{t-1}; b), \qquad 1 - m < s_i < 1 + m

    ``weight_hh_l{k}`` is parametrized by :func:`rnnkern.parametrizations.spectral_margin` and computed once per
    optimizer step. :func:`rnnkern.optim.param_groups` gives the parameters of U and V a tenth of the learning rate.
    Everything else is as in :class:`ExpRNN`.

    Args:
        margin: m, from 0 to 1. With 0 the weight stays orthogonal.
        input_size, hidden_size, num_layers, init, options: as in :class:`ExpRNN`.

    Raises:
        ValueError, TypeError: as for RNN, or ``init`` or ``margin`` has a wrong value.

    Source: Vorontsov et al. 2017.

    >>> rnn = rnnkern.nn.SpectralRNN(10, 20, margin=0.05)
    >>> output, h_n = rnn(torch.randn(4, 3, 10))
    >>> output.shape, torch.linalg.cond(rnn.weight_hh_l0).item() < 1.05 / 0.95
    (torch.Size([4, 3, 20]), True)
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, margin: float = 0.1, init: str = "henaff",
        **options: Unpack[RNNOptions],
    ) -> None:  # fmt: skip
        constrain = partial(parametrizations.spectral_margin, margin=margin, init=init)
        super().__init__(constrain, input_size, hidden_size, num_layers, **options)


@with_options
class OrthogonalInitRNN(_OrthogonalRNN):
    """RNN-orth: a network whose recurrent weight is initialized orthogonal and then trained without a constraint.

    Everything else is as in :class:`ExpRNN`.

    Args:
        init: initialization of the recurrent weight: ``"haar"``, ``"cayley"``, ``"henaff"`` or ``"identity"``.
        input_size, hidden_size, num_layers, options: as in :class:`ExpRNN`.

    Raises:
        ValueError, TypeError: as for RNN, or ``init`` has a wrong value.

    IRNN (Le et al. 2015) is ``OrthogonalInitRNN(..., init="identity", nonlinearity="relu")``.

    Source: Saxe et al. 2014.

    >>> R = rnnkern.nn.OrthogonalInitRNN(10, 20).weight_hh_l0
    >>> torch.allclose(R.T @ R, torch.eye(20), atol=1e-6)
    True
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, init: str = "haar",
        **options: Unpack[RNNOptions],
    ) -> None:  # fmt: skip
        self._init = init
        super().__init__(OrthogonalInitRNN._draw, input_size, hidden_size, num_layers, **options)

    @torch.no_grad()
    def _draw(self, name: str) -> None:
        weight = getattr(self, name)
        weight.copy_(parametrizations.orthogonal_matrix(weight, self._init))


@with_options
class HenaffRNN(OrthogonalInitRNN):
    r"""LT-RNN: a network with a linear recurrence, whose nonlinearity only acts on the input.

    .. math::
        h_t = \sigma(W x_t + b_{ih}) + R h_{t-1} + b_{hh}

    Shapes, input, output and errors are those of :class:`rnnkern.nn.RNN`. R is initialized orthogonal and then trained
    without a constraint.

    Args:
        input_size, hidden_size, num_layers: I, H and the number of layers.
        input_nonlinearity: :math:`\sigma`, ``"relu"``, ``"tanh"`` or ``"identity"``.
        init: initialization of R: ``"henaff"``, rotations of planes by uniform angles; ``"cayley"``, ``"haar"`` or
            ``"identity"``.
        bias: if True, adds the biases b_ih and b_hh. They start at 0; the published network has only b_ih.
        options: all other options of :class:`rnnkern.nn.RNN` except ``nonlinearity`` and ``filter``.

    Raises:
        ValueError, TypeError: as for RNN, or ``init`` or ``input_nonlinearity`` has a wrong value.

    Source: Henaff, Szlam and LeCun 2016, section 3; Kerg 2022, appendix D.2.

    >>> rnn = rnnkern.nn.HenaffRNN(10, 20)
    >>> output, h_n = rnn(torch.randn(4, 3, 10))
    >>> output.shape
    torch.Size([4, 3, 20])
    """

    _plain: ClassVar = RNN._plain | {"input_nonlinearity": None}  # is always shown
    _projects = True

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, input_nonlinearity: str = "relu",
        init: str = "henaff", bias: bool = True, **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        if input_nonlinearity not in INPUT_NONLINEARITIES:
            wanted = tuple(INPUT_NONLINEARITIES)
            raise ValueError(f"HenaffRNN: `input_nonlinearity` must be one of {wanted}, got {input_nonlinearity!r}")
        options |= {"init": init, "bias": bias, "nonlinearity": "identity"}
        super().__init__(input_size, hidden_size, num_layers, **options)
        self.input_nonlinearity = input_nonlinearity
        self._zero_biases()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._zero_biases()

    def _zero_biases(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith("bias"):
                init.zeros_(parameter)

    def _projected(self, x: Tensor, call: dict, reverse: bool) -> tuple[Tensor, dict[str, Any], tuple[Tensor, ...]]:
        def project(*inputs):
            return INPUT_NONLINEARITIES[self.input_nonlinearity](linear(*inputs))

        inputs = x, call.pop("weight_ih"), call.pop("bias_ih")
        return project(*inputs), call | {"save_u": autocast.recomputed(project, *inputs)}, ()


def orthogonal_penalty(model: Module, norm: str = "frobenius") -> Tensor:
    r"""A soft orthogonality penalty, :math:`\sum_V \|V^\top V - I\|^2`, summed over all recurrent weights V.

    Multiply it by a coefficient (lambda in Vorontsov et al. 2017, section 3.2) and add it to the loss.

    Args:
        model: a module that contains Elman networks: instances of :class:`rnnkern.nn.RNN`, :class:`torch.nn.RNN` or
            their subclasses. All layers and directions count, and each block of a block-diagonal weight.
        norm: ``"frobenius"``, or ``"spectral"``, the largest singular value, as in the paper; its gradient reaches
            only the singular value of V that is furthest from 1, and costs a singular value decomposition.

    Returns:
        A scalar tensor. Gradients flow to each V.

    Raises:
        ValueError: the model contains no Elman network, or ``norm`` is unknown.

    >>> model = rnnkern.nn.OrthogonalInitRNN(10, 20)
    >>> rnnkern.nn.orthogonal_penalty(model).item() < 1e-8
    True
    """
    if norm not in ("frobenius", "spectral"):
        raise ValueError(f"orthogonal_penalty: `norm` must be 'frobenius' or 'spectral', got {norm!r}")
    networks = [module for module in model.modules() if isinstance(module, torch.nn.RNN)]
    if not networks:
        raise ValueError("orthogonal_penalty: `model` must contain an Elman network such as rnnkern.nn.RNN, got none")
    weights = [getattr(network, names[1]) for network in networks for names in network._all_weights]
    grams = [V.mT @ V - torch.eye(V.shape[-1], dtype=V.dtype, device=V.device) for V in weights]
    if norm == "spectral":
        squares = [torch.linalg.matrix_norm(gram, 2).square().sum() for gram in grams]
    else:
        squares = [gram.square().sum() for gram in grams]
    return torch.stack([square.to(squares[0]) for square in squares]).sum()
