"""In networks of continuous depth, a differential equation takes the place of layers."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module, init

from rnnkern import cells
from rnnkern.nn import autocast
from rnnkern.nn.ecosystem import as_leaf, shown
from rnnkern.nn.options import with_options
from rnnkern.nn.single import Layers, check_positive, empty_parameter, uniform_
from rnnkern.ops import Choice, recurrence
from rnnkern.ops.dispatch import autocasts


def _driven(
    x: Tensor, weight: Tensor, bias: Tensor, times: Tensor | None = None, drift: Tensor | None = None
) -> Tensor:  # fmt: skip
    """The part of the field's argument that does not depend on q: :math:`W x + b + t d`, or without time W x + b."""
    u = F.linear(x, weight, bias)
    return u if times is None else u + times * drift


class Field(Module):
    r"""A vector field, :math:`f(t, h) = W_2 \tanh(W_1 h + b_1 + t w) + b_2`, or without ``hidden_size``
    :math:`\tanh(W_1 h + b_1 + t w)`.

    Parameters: ``weight_in`` (D, H) is :math:`W_1`, ``bias_in`` (D,) is :math:`b_1`, ``weight_time`` (D,) is w and None
    without ``time_input``, ``weight_out`` (H, D) is :math:`W_2` and ``bias_out`` (H,) is :math:`b_2`; the last two are
    None without ``hidden_size``. They are drawn as those of :class:`torch.nn.Linear`.
    """

    def __init__(self, input_size: int, hidden_size: int | None, time_input: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        units = hidden_size or input_size
        parameter = partial(empty_parameter, device=device, dtype=dtype)
        self.weight_in, self.bias_in = parameter(units, input_size), parameter(units)
        self.weight_time = parameter(units) if time_input else None
        self.weight_out = parameter(input_size, units) if hidden_size else None
        self.bias_out = parameter(input_size) if hidden_size else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        uniform_(self.weight_in.shape[1], self.weight_in, self.bias_in, self.weight_time)
        uniform_(self.weight_in.shape[0], self.weight_out, self.bias_out)

    def forward(self, t: Tensor | float, h: Tensor) -> Tensor:
        """f(t, h), shaped like ``h`` (..., H); t is a number. Solvers of torchdiffeq take the module as it is."""
        inner = F.linear(h, self.weight_in, self.bias_in)
        if self.weight_time is not None:
            inner = inner + t * self.weight_time
        return torch.tanh(inner) if self.weight_out is None else F.linear(inner.tanh(), self.weight_out, self.bias_out)

    def extra_repr(self) -> str:
        units, size = self.weight_in.shape
        hidden = f", {units}" if self.weight_out is not None else ""
        return f"{size}{hidden}" + (", time_input=True" if self.weight_time is not None else "")


class _ODE(Layers):
    """Checks and sizes that both modules have in common."""

    _methods: tuple[str, ...]

    def __init__(
        self, input_size: int, hidden_size: int | None, steps: int, time: float, time_input: bool, method: str,
        device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        sizes = {"input_size": input_size, "steps": steps}
        sizes |= {} if hidden_size is None else {"hidden_size": hidden_size}
        super().__init__(sizes, {"method": (method, self._methods)})
        check_positive("time", time)
        self.hidden_size, self.time = hidden_size, time
        self.field = Field(input_size, hidden_size, time_input, device, dtype)

    def _check(self, name: str, h: Tensor, batch: int | None = None) -> None:
        owner, dtype = type(self).__name__, self.field.weight_in.dtype
        if not isinstance(h, Tensor):
            raise TypeError(f"{owner}: `{name}` must be a tensor, got {type(h).__name__}")
        if h.dim() != 2 or h.shape[1] != self.input_size or h.shape[0] != (h.shape[0] if batch is None else batch):
            wanted = f"({'B' if batch is None else batch}, {self.input_size})"
            raise ValueError(f"{owner}: `{name}` must be {wanted}, got {tuple(h.shape)}")
        if h.dtype != dtype and not autocasts(h.device.type):
            raise TypeError(f"{owner}: `{name}` must have the dtype of the parameters, {dtype}, got {h.dtype}")

    def _times(self, h: Tensor) -> Tensor:
        """The beginnings of the steps and the end, (steps + 1, 1, 1)."""
        return torch.arange(self.steps + 1, device=h.device, dtype=h.dtype).view(-1, 1, 1) * (self.time / self.steps)

    def _per_unit(self, like: Tensor, *values: float | Tensor) -> tuple[Tensor, ...]:
        units = like.shape[-1]
        return tuple(v.expand(units) if isinstance(v, Tensor) else like.new_full((units,), v) for v in values)

    @torch.no_grad()
    def _choose(self, *args: Any, **options: Any) -> list[Choice]:
        """A list with the :class:`Choice` for these arguments of :meth:`forward`, for :func:`rnnkern.ops.explain`."""
        called, call = self._call(*args)[0]
        return [recurrence._choose(*called, **call)]

    def extra_repr(self) -> str:
        hidden = "" if self.hidden_size is None else f", {self.hidden_size}"
        return f"{self.input_size}{hidden}" + shown(self, {"steps": None, "time": 1.0, "method": self._methods[0]})


@with_options
class NeuralODE(_ODE):
    r"""Neural ordinary differential equation with a field of two layers, solved in steps of equal length.

    .. math::
        \frac{dh}{dt} = W_2 \tanh(W_1 h + b_1 + t w) + b_2, \qquad 0 \le t \le \mathrm{time}

    The gradient is that of the discrete solution, exact to rounding. With :math:`h = h_0 + W_2 q + t b_2` and
    :math:`R = W_1 W_2` the equation becomes :math:`\dot q = \tanh(R q + W_1 h_0 + b_1 + t (w + W_1 b_2))`, and the
    discrete solutions are the same too. So a step is one product (D, D), and :func:`rnnkern.ops.recurrence` takes all
    of them in one call.

    Args:
        input_size: H, number of units of h.
        hidden_size: D, hidden units of the field.
        steps: number of steps.
        method: ``"adams"``, the two-step Adams-Bashforth method (second order), or ``"euler"`` (first order). Both
            evaluate the field once a step.
        time: length of the interval.
        time_input: if True, the field depends on time, by w.
        device, dtype: device and dtype of the parameters.

    The parameters belong to the submodule ``field``, see :class:`rnnkern.nn.neural_ode.Field`. For a solver that
    chooses its own steps, use ``torchdiffeq.odeint(module.field, h, t)``.

    Raises:
        ValueError, TypeError: a size or an option has a wrong value or type.

    Source: Chen et al. 2018, eq. 2; Hairer, Norsett and Wanner 1993, III.1, for Adams' methods.

    >>> ode = rnnkern.nn.NeuralODE(5, 32, steps=20)
    >>> h = torch.randn(8, 5)
    >>> ode(h).shape, ode(h, return_path=True).shape
    (torch.Size([8, 5]), torch.Size([21, 8, 5]))
    """

    _methods = ("adams", "euler")

    def __init__(
        self, input_size: int, hidden_size: int, *, steps: int, method: str = "adams", time: float = 1.0,
        time_input: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        if hidden_size is None:
            raise TypeError("hidden_size should be of type int, got: NoneType")
        super().__init__(input_size, hidden_size, steps, time, time_input, method, device, dtype)

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        self.field.reset_parameters()

    def forward(self, h: Tensor, return_path: bool = False) -> Tensor:
        """Solves the equation.

        Args:
            h: h at time 0, (B, H). B may be 0.
            return_path: if True, returns h at the beginning and after each step.

        Returns:
            h at the end, (B, H), or (steps + 1, B, H) with ``return_path``.

        Raises:
            ValueError, TypeError: ``h`` has a wrong shape or dtype.
        """
        if isinstance(h, Proxy):
            return as_leaf(self, h, return_path)
        (args, options), times = self._call(h)
        q, final = recurrence(*args, **options)
        W, b = self.field.weight_out, self.field.bias_out
        if return_path:
            return torch.cat([h.unsqueeze(0), h + F.linear(q, W) + times[1:] * b])
        return h + F.linear(final[0], W) + self.time * b

    def _call(self, h: Tensor) -> tuple[tuple[tuple, dict[str, Any]], Tensor]:
        self._check("h", h)
        field, times = self.field, self._times(h)
        drift = field.weight_in @ field.bias_out
        if field.weight_time is not None:
            drift = drift + field.weight_time
        inputs = h, field.weight_in, field.bias_in, times[:-1], drift
        u = _driven(*inputs)
        q = torch.zeros_like(u[0])
        cell, state = ("euler", (q,)) if self.method == "euler" else (cells.adams, (q, u[0].tanh()))
        call = {
            "R": field.weight_in @ field.weight_out,
            "state": state,
            "save_u": autocast.recomputed(_driven, *inputs),
        }
        call["params"] = self._per_unit(u, self.time / self.steps)
        u, call = autocast.cast(u, call)
        return ((cell, u), call), times


@with_options
class HeavyBallODE(_ODE):
    r"""Heavy-ball neural ODE (HBNODE), a second-order equation with damping, and its generalization (GHBNODE).

    .. math::
        \dot h &= m, & \dot m &= -\gamma m + f(t, h) && \text{(HBNODE)} \\
        \dot h &= \tanh(m), & \dot m &= -\gamma m + f(t, h) - \xi h && \text{(GHBNODE)}

    f is the field of :class:`NeuralODE`, :math:`W_2 \tanh(W_1 h + b_1 + t w) + b_2`, or without ``hidden_size``
    :math:`\tanh(W_1 h + b_1 + t w)`. Paths of h can cross, which those of a :class:`NeuralODE` cannot. A step is one
    product; with two layers in the coordinates q of :math:`h = \alpha(t) + W_2 q`, where :math:`\alpha` is the solution
    for :math:`f = b_2`.

    Args:
        input_size: H, number of units of h.
        hidden_size: D, hidden units of the field, or None for a field of one layer.
        steps: number of steps.
        gamma: :math:`\gamma \ge 0`, a number. None learns it: it is the sigmoid of ``gamma_logit``, which starts at -3
            (:math:`\gamma` = 0.047).
        generalized: if True, GHBNODE. Its field has one layer, because tanh(m) is not affine, so ``hidden_size`` must
            be None. :math:`\xi` is the softplus of ``xi_logit``, which starts at 0.
        method: ``"leapfrog"``, of second order, or ``"semi_implicit_euler"``, of first order. On a linear force
            -w^2 h they are stable for dt w <= 2, and for :math:`(dt \, w)^2 \le 4 - 2 \gamma dt`.
        time: length of the interval.
        time_input: if True, the field depends on time, by w.
        learn_momentum: if True, m at time 0 is the parameter ``momentum`` (H,), which starts at 0.
        device, dtype: device and dtype of the parameters.

    The other parameters belong to the submodule ``field``, see :class:`rnnkern.nn.neural_ode.Field`. For a solver that
    chooses its own steps, use ``torchdiffeq.odeint(module.system, (h, m), t)``.

    Raises:
        ValueError, TypeError: a size or an option has a wrong value or type.

    Source: Xia et al. 2021. The leapfrog method is velocity Verlet (Hairer, Lubich and Wanner 2006, I.1.4).

    >>> ode = rnnkern.nn.HeavyBallODE(2, 32, steps=20)
    >>> h, m = ode(torch.randn(8, 2))
    >>> h.shape, m.shape
    (torch.Size([8, 2]), torch.Size([8, 2]))
    """

    _methods = ("leapfrog", "semi_implicit_euler")

    def __init__(
        self, input_size: int, hidden_size: int | None = None, *, steps: int, gamma: float | None = None,
        generalized: bool = False, method: str = "leapfrog", time: float = 1.0, time_input: bool = False,
        learn_momentum: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, steps, time, time_input, method, device, dtype)
        if generalized and hidden_size is not None:
            raise ValueError(f"HeavyBallODE: `hidden_size` must be None with generalized = True, got {hidden_size}")
        if gamma is not None:
            check_positive("gamma", gamma, zero=True)
        self.generalized, self.given_gamma = generalized, gamma
        parameter = partial(empty_parameter, device=device, dtype=dtype)
        self.gamma_logit = parameter() if gamma is None else None
        self.xi_logit = parameter() if generalized else None
        self.momentum = parameter(input_size) if learn_momentum else None
        self._reset_scalars()

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        self.field.reset_parameters()
        self._reset_scalars()

    def _reset_scalars(self) -> None:
        for parameter, value in ((self.gamma_logit, -3.0), (self.xi_logit, 0.0), (self.momentum, 0.0)):
            if parameter is not None:
                init.constant_(parameter, value)

    @property
    def gamma(self) -> Tensor:
        """The damping, a scalar tensor."""
        if self.gamma_logit is None:
            return self.field.weight_in.new_tensor(self.given_gamma)
        return self.gamma_logit.sigmoid()

    @property
    def xi(self) -> Tensor | None:
        """The restoring force of the generalized form, a scalar tensor."""
        return None if self.xi_logit is None else F.softplus(self.xi_logit)

    def system(self, t: Tensor | float, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The derivatives of (h, m), each (..., H), as solvers of torchdiffeq take them."""
        h, m = state
        force = self._force(t, h)
        return (m.tanh() if self.generalized else m), force - self.gamma * m

    def _force(self, t: Tensor | float, h: Tensor) -> Tensor:
        force = self.field(t, h)
        return force - self.xi * h if self.generalized else force

    def forward(self, h: Tensor, m: Tensor | None = None, return_path: bool = False) -> tuple[Tensor, Tensor]:
        """Solves the equation.

        Args:
            h: h at time 0, (B, H). B may be 0.
            m: m at time 0, (B, H). None means ``momentum`` if that is learned, otherwise zeros.
            return_path: if True, returns h at the beginning and after each step.

        Returns:
            h at the end, (B, H), or (steps + 1, B, H) with ``return_path``; and m at the end, (B, H).

        Raises:
            ValueError, TypeError: an argument has a wrong shape or dtype.
        """
        if isinstance(h, Proxy):
            return as_leaf(self, h, m, return_path)
        (args, options), own = self._call(h, m)
        path, (last, m) = recurrence(*args, **options)
        if own is None:
            path = torch.cat([h.unsqueeze(0), path]) if return_path else None
        else:
            alpha, beta = own
            last, m = alpha[-1] + F.linear(last, self.field.weight_out), beta + F.linear(m, self.field.weight_out)
            path = torch.cat([alpha[:1], alpha[1:] + F.linear(path, self.field.weight_out)]) if return_path else None
        if self.method == "leapfrog":  # from half a step before the end
            half = self.time / self.steps / 2
            m = (m + half * self._force(self.time, last)) / (1 + half * self.gamma)
        return (path if return_path else last), m

    def _call(self, h: Tensor, m: Tensor | None = None) -> tuple[tuple[tuple, dict[str, Any]], Any]:
        """The operator's arguments; and for a field of two layers alpha at all times and the beta of the last m, of
        :math:`h = \\alpha + W_2 q` and :math:`m = \\beta + W_2 p`."""
        self._check("h", h)
        if m is None:
            m = torch.zeros_like(h) if self.momentum is None else self.momentum.expand_as(h)
        else:
            self._check("m", m, len(h))
        field, gamma, dt, times = self.field, self.gamma, self.time / self.steps, self._times(h)
        if self.method == "leapfrog":  # m begins half a step before 0
            half = dt / 2
            a, b = (1 - half * gamma) / (1 + half * gamma), dt / (1 + half * gamma)
            m = (1 + half * gamma) * m
        else:
            half, a, b = 0.0, 1 - dt * gamma, torch.full_like(gamma, dt)
        drift = () if field.weight_time is None else (times[:-1], field.weight_time)
        if field.weight_out is None:
            own, m, save_u = None, m - half * self._force(0.0, h), True
            u = field.bias_in.expand(1, len(h), -1)  # of all steps
            u = u + drift[0] * drift[1] if drift else u
        else:
            own = self._own_path(h, m - half * field.bias_out, a, b, dt)
            inputs = own[0][:-1], field.weight_in, field.bias_in, *drift
            u, save_u = _driven(*inputs), autocast.recomputed(_driven, *inputs)
        params = (a, b, dt) if self.xi is None else (a, b, dt, self.xi)
        if own is None:
            R, state = field.weight_in, (h, m)
        else:
            p = -half * u[0].tanh()
            R, state = field.weight_in @ field.weight_out, (torch.zeros_like(p), p)
        cell = cells.heavy_ball_tanh if self.generalized else cells.heavy_ball
        call = {"R": R, "state": state, "params": self._per_unit(u, *params), "save_u": save_u}
        u, call = autocast.cast(u, call)
        return ((cell, u), call | ({"steps": self.steps} if len(u) < self.steps else {})), own

    def _own_path(self, h: Tensor, beta: Tensor, a: Tensor, b: Tensor, dt: float) -> tuple[Tensor, Tensor]:
        """alpha at all times (steps + 1, B, H) and the last beta: the method's solution for a constant force b_2."""
        powers = a ** torch.arange(self.steps + 1, device=h.device, dtype=h.dtype)
        sums = F.pad(powers.cumsum(0)[:-1], (1, 0))  # 0, 1, 1 + a, ...
        from_beta, from_force = (dt * x.cumsum(0).view(-1, 1, 1) for x in (F.pad(powers[1:], (1, 0)), b * sums))
        force = self.field.bias_out
        return h + from_beta * beta + from_force * force, powers[-1] * beta + b * sums[-1] * force

    def extra_repr(self) -> str:
        gamma = "" if self.given_gamma is None else f", gamma={self.given_gamma}"
        return f"{super().extra_repr()}{gamma}{shown(self, {'generalized': False})}"
