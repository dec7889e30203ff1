"""Relational models see a few encoded objects and answer a question about how the objects are alike.

Source: Kerg et al. 2022; Webb et al. 2020, 2021.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Proxy
from torch.nn import LayerNorm, Linear, Module, Parameter, ReLU, Sequential, init

from rnnkern.nn.ecosystem import as_leaf, shown
from rnnkern.nn.options import with_options
from rnnkern.ops import Choice, binding_recurrence, similarity
from rnnkern.ops._relational.context_norm import context_norm
from rnnkern.ops._relational.similarity import check_eps, check_norm, check_segments
from rnnkern.ops.checks import check_number
from rnnkern.ops.dispatch import autocasts
from rnnkern.reference._relational import MASKS, NORMS

RULES = ("similarity", "asymmetric", "difference")
DECODERS = ("mlp", "transformer")


def _check_size(owner: Module, **sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{type(owner).__name__}: `{name}` must be an int, got {size!r}")
        if size < 1:
            raise ValueError(f"{type(owner).__name__}: `{name}` must be at least 1, got {size}")


def _check_choice(owner: Module, **choices: tuple[str | None, Sequence[str | None]]) -> None:
    for name, (choice, known) in choices.items():
        if choice not in known:
            raise ValueError(f"{type(owner).__name__}: `{name}` must be one of {tuple(known)}, got {choice!r}")


def _reset_parts(module: Module) -> None:
    for part in module.children():
        getattr(part, "reset_parameters", lambda part=part: _reset_parts(part))()


class _Normalized(Module):
    """Holds the weight and the bias of a context normalization, and its options."""

    def __init__(self, d: int, segments: Sequence[int] | None, norm: str | None, eps: float, affine: bool, **factory):
        super().__init__()
        name = type(self).__name__
        _check_size(self, d=d)
        _check_choice(self, norm=(norm, NORMS), affine=(affine, (False, True)))
        if segments is not None:
            check_segments(name, segments)
        check_eps(name, eps)
        self.d, self.norm, self.eps = d, norm, eps
        self.segments = None if segments is None else tuple(segments)
        affine = affine and norm is not None
        self.weight, self.bias = (Parameter(torch.empty(d, **factory)) if affine else None for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        if self.weight is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)
        _reset_parts(self)

    def _options(self) -> dict[str, Any]:
        """The arguments of :func:`rnnkern.ops.similarity` that concern the normalization."""
        options = {"norm": self.norm, "eps": self.eps, "segments": self.segments}
        return {"weight": self.weight, "bias": self.bias} | options

    def _widened(self, x: Tensor | None) -> Tensor | None:
        """Under autocast, ``x`` in the dtype of the weight, as torch.nn.LayerNorm computes it."""
        if x is None or self.weight is None or not autocasts(x.device.type):
            return x
        return x.to(torch.promote_types(x.dtype, self.weight.dtype))

    def _check_objects(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != self.d or x.shape[1] == 0:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{type(self).__name__}: `x` must be (B, T, d) = (B, T, {self.d}), got {got}")

    def extra_repr(self) -> str:
        affine = "" if self.weight is not None else ", affine=False"
        return f"{self.d}{shown(self, {'segments': None, 'norm': 'unbiased', 'eps': 1e-8}, repr)}{affine}"


@with_options
class ContextNorm(_Normalized):
    r"""Context normalization over time (TCN): normalizes each feature over the objects of a sample.

    .. math::
        z = \gamma \frac{x - \mu}{\sqrt{\mathrm{var} + \epsilon}} + \beta

    B is the batch size, T the number of objects and d the number of features. The mean and the variance are over the T
    objects, or over those of a segment; there are no running averages, so training and evaluation are the same.

    Args:
        d: number of features.
        segments: numbers of consecutive objects that are normalized together; they sum to T. None means all objects.
        unbiased: if True, the variance of n objects is a sum over n - 1, as in the published code; else over n.
        eps: :math:`\epsilon`. Features that differ by less than its root count as equal.
        affine: if False, there are no :math:`\gamma` and :math:`\beta`.
        device, dtype: device and dtype of the parameters.

    Parameters: ``weight`` and ``bias``, (d,), initialized to 1 and 0.

    A segment of a single object becomes ``bias``, where torch's unbiased variance would give NaN. float16 and bfloat16
    are computed in float32.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Webb et al. 2020.

    >>> norm = rnnkern.nn.ContextNorm(128)
    >>> norm(torch.randn(4, 9, 128)).shape
    torch.Size([4, 9, 128])
    """

    def __init__(
        self, d: int, segments: Sequence[int] | None = None, unbiased: bool = True, eps: float = 1e-8,
        affine: bool = True, *, device=None, dtype=None,
    ) -> None:  # fmt: skip
        if not isinstance(unbiased, bool):
            raise TypeError(f"ContextNorm: `unbiased` must be a bool, got {unbiased!r}")
        super().__init__(d, segments, "unbiased" if unbiased else "biased", eps, affine, device=device, dtype=dtype)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Normalizes (B, T, d). With ``lengths``, (B,) int64, objects from there on are not read, and are 0."""
        if isinstance(x, Proxy):
            return as_leaf(self, x, lengths)
        self._check_objects(x)
        x, options = self._widened(x), self._options()
        check_norm(type(self).__name__, x, **options, lengths=lengths)
        return context_norm(x, **options, lengths=lengths)


@with_options
class Similarity(_Normalized):
    r"""How similar each object is to the others: :func:`rnnkern.ops.similarity` with its parameters.

    .. math::
        R = \mathrm{softmax}(\mathrm{scale} \cdot Z Z^\top), \quad Z = \mathrm{TCN}(x)

    With ``asymmetric``, :math:`S = \mathrm{scale} \cdot \mathrm{TCN}(W_1 x) \mathrm{TCN}(W_2 x)^\top`, with one
    :math:`\gamma` and :math:`\beta`. B is the batch size, T the number of objects and d the number of features.

    Args:
        d: number of features.
        asymmetric: if True, the two sides have projections of their own.
        mask: ``"causal"``, ``"strict"`` or ``"full"``: the columns j <= i, j < i, or all of row i.
        packed: if True, R is the triangle row by row, (B, T (T + 1) / 2).
        segments, eps, affine: as in :class:`ContextNorm`.
        norm: ``"unbiased"``, ``"biased"``, or None for no normalization.
        scale: factor of the products.
        device, dtype: device and dtype of the parameters.

    Parameters: ``weight`` and ``bias``, (d,), initialized to 1 and 0; with ``asymmetric`` the linear layers ``left``
    and ``right``, d to d.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Kerg et al. 2022.

    >>> layer = rnnkern.nn.Similarity(128, packed=True)
    >>> layer(torch.randn(4, 9, 128)).shape
    torch.Size([4, 45])
    """

    def __init__(
        self, d: int, asymmetric: bool = False, mask: str = "causal", packed: bool = False,
        segments: Sequence[int] | None = None, norm: str | None = "unbiased", eps: float = 1e-8, affine: bool = True,
        scale: float = 1.0, *, device=None, dtype=None,
    ) -> None:  # fmt: skip
        factory = {"device": device, "dtype": dtype}
        super().__init__(d, segments, norm, eps, affine, **factory)
        _check_choice(self, mask=(mask, MASKS), asymmetric=(asymmetric, (False, True)), packed=(packed, (False, True)))
        check_number(type(self).__name__, "scale", scale)
        if packed and mask == "full":
            raise ValueError("Similarity: `packed` must be False for `mask` 'full', got True")
        self.mask, self.packed, self.scale = mask, packed, scale
        self.left, self.right = (Linear(d, d, **factory) if asymmetric else None for _ in range(2))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, values: Tensor | None = None, return_scores: bool = False
    ) -> Tensor | tuple[Tensor, ...]:
        """Returns R of (B, T, d); with ``values`` or ``return_scores`` a tuple, as :func:`rnnkern.ops.similarity`."""
        if isinstance(x, Proxy):
            return as_leaf(self, x, lengths, values, return_scores)
        args, options = self._call(x)
        return similarity(*args, **options, lengths=lengths, values=self._widened(values), return_scores=return_scores)

    def _call(self, x: Tensor) -> tuple[tuple[Tensor, Tensor | None], dict[str, Any]]:
        self._check_objects(x)
        branches = (x, None) if self.left is None else (self.left(x), self.right(x))
        options = {"mask": self.mask, "packed": self.packed, "scale": self.scale}
        return tuple(map(self._widened, branches)), self._options() | options

    @torch.no_grad()
    def _choose(self, x: Tensor, *args, **kwargs) -> list[Choice]:
        """For :func:`rnnkern.ops.explain`."""
        branches, options = self._call(x)
        return [similarity._choose(*branches, **options)]

    def extra_repr(self) -> str:
        return super().extra_repr() + shown(self, {"mask": "causal", "packed": False, "scale": 1.0}, repr)


@with_options
class CoRelNet(Module):
    r"""CoRelNet: answers from the similarities of the objects alone, so that it must carry over to objects that it has
    never seen.

    .. math::
        R = \mathrm{softmax}(Z Z^\top) \text{ over } j \le i, \quad
        \text{answer} = W_2 \, \mathrm{relu}(W_1 \, \mathrm{triangle}(R) + b_1) + b_2

    B is the batch size, T the number of objects and d the number of features of an encoded object; the encoder is the
    user's.

    Args:
        d: number of features.
        objects: T.
        outputs: number of answers.
        hidden: number of hidden units of the decoder.
        rule: what is compared: ``"similarity"``, R as above; ``"asymmetric"``, R of two projections, as in
            :class:`Similarity`; ``"difference"``, the differences of one learned feature,
            :math:`D_{ij} = w \cdot z_i - w \cdot z_j`. A first layer on D is one on the T values themselves without
            their mean, and is computed so.
        decoder: ``"mlp"`` as above, or ``"transformer"`` (CoRelNet-T): object i becomes the token :math:`\sum_j R_{ij}
            p_j`, p (T, 8) learned; a learned query attends to the tokens with 8 heads. Not for ``"difference"``.
        segments, norm, eps, scale: as in :class:`Similarity`.
        device, dtype: device and dtype of the parameters.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Kerg et al. 2022.

    >>> model = rnnkern.nn.CoRelNet(128, objects=9, outputs=4)
    >>> model(torch.randn(32, 9, 128)).shape
    torch.Size([32, 4])
    """

    def __init__(
        self, d: int, objects: int, outputs: int, hidden: int = 256, rule: str = "similarity", decoder: str = "mlp", *,
        segments: Sequence[int] | None = None, norm: str | None = "unbiased", eps: float = 1e-8, scale: float = 1.0,
        device=None, dtype=None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_size(self, objects=objects, outputs=outputs, hidden=hidden)
        _check_choice(self, rule=(rule, RULES), decoder=(decoder, DECODERS))
        if rule == "difference" and decoder == "transformer":
            raise ValueError("CoRelNet: `decoder` must be 'mlp' for `rule` 'difference', got 'transformer'")
        if rule == "difference" and norm is None:
            raise ValueError("CoRelNet: `norm` must not be None for `rule` 'difference', got None")
        factory = {"device": device, "dtype": dtype}
        options = {"segments": segments, "norm": norm, "eps": eps} | factory
        self.objects, self.outputs, self.rule = objects, outputs, rule
        if rule == "difference":
            self.norm = ContextNorm(d, segments, norm != "biased", eps, **factory)
            self.feature = Linear(d, 1, bias=False, **factory)
            inputs = objects
        else:
            self.similarity = Similarity(d, rule == "asymmetric", packed=decoder == "mlp", scale=scale, **options)
            inputs = objects * (objects + 1) // 2
        if decoder == "mlp":
            self.decoder = Sequential(Linear(inputs, hidden, **factory), ReLU(), Linear(hidden, outputs, **factory))
        else:
            self.decoder = TokenDecoder(objects, outputs, hidden, **factory)

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        _reset_parts(self)

    def forward(self, x: Tensor) -> Tensor:
        """The answers' logits, (B, outputs), of encoded objects (B, T, d)."""
        if isinstance(x, Proxy):
            return as_leaf(self, x)
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[1] != self.objects:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"CoRelNet: `x` must be (B, T, d) with T = {self.objects}, got {got}")
        return self.decoder(self.relations(x))

    def relations(self, x: Tensor) -> Tensor:
        """What the decoder sees of (B, T, d): the triangle of R, (B, T (T + 1) / 2), for the transformer R, (B, T, T),
        and for ``"difference"`` (B, T)."""
        if self.rule != "difference":
            return self.similarity(x)
        a = self.feature(self.norm(x)).squeeze(-1)
        return a - a.mean(1, keepdim=True)

    def extra_repr(self) -> str:
        return f"objects={self.objects}, outputs={self.outputs}, rule={self.rule!r}"


class TokenDecoder(Module):
    """The decoder of CoRelNet-T: from R, (B, T, T), to logits (B, outputs)."""

    WIDTH, HEADS, INNER, FORWARD = 8, 8, 512, 128
    """Sizes of a token, the number of heads, that of all heads together, and of the hidden layer after the
    attention."""

    def __init__(self, objects: int, outputs: int, hidden: int, **factory) -> None:
        super().__init__()
        width, inner, wide = self.WIDTH, self.INNER, self.FORWARD
        self.tokens, self.query = (Parameter(torch.empty(n, width, **factory)) for n in (objects, 1))
        self._reset_tokens()
        self.to_query, self.to_key, self.to_value = (Linear(width, inner, **factory) for _ in range(3))
        self.from_heads = Linear(inner, width, **factory)
        self.norms = torch.nn.ModuleList(LayerNorm(width, **factory) for _ in range(2))
        self.forward_layers = Sequential(Linear(width, wide, **factory), ReLU(), Linear(wide, width, **factory))
        self.answer = Sequential(Linear(width, hidden, **factory), ReLU(), Linear(hidden, outputs, **factory))

    def _reset_tokens(self) -> None:
        for parameter in (self.tokens, self.query):
            init.normal_(parameter)

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        self._reset_tokens()
        _reset_parts(self)

    def forward(self, R: Tensor) -> Tensor:
        tokens = R @ self.tokens
        query = self.query.expand(R.shape[0], 1, -1)
        heads = (
            layer(part).unflatten(-1, (self.HEADS, -1)).transpose(1, 2)
            for layer, part in ((self.to_query, query), (self.to_key, tokens), (self.to_value, tokens))
        )
        read = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        y = self.norms[0](query + self.from_heads(read))
        y = self.norms[1](y + self.forward_layers(y))
        return self.answer(y.squeeze(1))


@with_options
class ESBN(Module):
    r"""Emergent symbol binding network: an LSTM that never sees an object. It writes a key for each, and reads the keys
    of earlier objects that are similar to the present one, with a confidence.

    .. math::
        h_t, c_t &= \mathrm{LSTM}(r_t, h_{t-1}, c_{t-1}), \quad k_t = \mathrm{relu}(W_k h_t + b_k), \quad
        g_t = \sigma(w_g \cdot h_t + b_g) \\
        r_{t+1} &= g_t \textstyle\sum_{i<t} w_{ti} [k_i; \sigma(a S_{ti} + b)], \quad
        \text{answer} = W_y h_T + b_y

    where S and w are the scores and the weights of :class:`Similarity` with ``mask="strict"``: they do not depend on
    the LSTM, and are computed for all objects at once. B is the batch size, T the number of objects and d the number of
    features.

    Args:
        d: number of features.
        outputs: number of answers.
        key_size, hidden_size: sizes of a key and of the LSTM's state.
        asymmetric, segments, norm, eps, scale: as in :class:`Similarity`.
        device, dtype: device and dtype of the parameters.

    Parameters: ``similarity`` (a :class:`Similarity`), ``weight_ih`` (4 ``hidden_size``, ``key_size`` + 1), whose last
    column is that of the confidence, ``weight_hh``, ``bias_ih`` and ``bias_hh``, with gates in torch.nn's order; the
    linear layers ``key``, ``gate`` and ``answer``; ``confidence``, (a, b). Weights are initialized as in the published
    code: Glorot's normal distribution, with a gain of 5/3 for the tanh of the LSTM, and He's for ``key``; biases 0, a =
    1.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type.

    Source: Webb et al. 2021.

    >>> model = rnnkern.nn.ESBN(128, outputs=4)
    >>> model(torch.randn(32, 9, 128)).shape
    torch.Size([32, 4])
    """

    def __init__(
        self, d: int, outputs: int, key_size: int = 256, hidden_size: int = 512, asymmetric: bool = False, *,
        segments: Sequence[int] | None = None, norm: str | None = "unbiased", eps: float = 1e-8, scale: float = 1.0,
        device=None, dtype=None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_size(self, outputs=outputs, key_size=key_size, hidden_size=hidden_size)
        factory = {"device": device, "dtype": dtype}
        norm = {"segments": segments, "norm": norm, "eps": eps, "scale": scale}
        self.key_size, self.hidden_size = key_size, hidden_size
        self.similarity = Similarity(d, asymmetric, "strict", **norm, **factory)
        self.weight_ih = Parameter(torch.empty(4 * hidden_size, key_size + 1, **factory))
        self.weight_hh = Parameter(torch.empty(4 * hidden_size, hidden_size, **factory))
        self.bias_ih, self.bias_hh = (Parameter(torch.zeros(4 * hidden_size, **factory)) for _ in range(2))
        self.key, self.gate = Linear(hidden_size, key_size, **factory), Linear(hidden_size, 1, **factory)
        self.confidence = Parameter(torch.tensor([1.0, 0.0], **factory))
        self.answer = Linear(hidden_size, outputs, **factory)
        self.key.qconfig = self.gate.qconfig = None  # not to be quantized: the recurrence takes their weights
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        self.similarity.reset_parameters()
        with torch.no_grad():
            n = self.hidden_size
            for weight in (self.weight_ih, self.weight_hh):
                for rows, gain in ((weight[: 2 * n], 1.0), (weight[2 * n : 3 * n], 5 / 3), (weight[3 * n :], 1.0)):
                    init.xavier_normal_(rows, gain)
            init.kaiming_normal_(self.key.weight, nonlinearity="relu")
            for layer in (self.gate, self.answer):
                init.xavier_normal_(layer.weight)
            for bias in (self.bias_ih, self.bias_hh, self.key.bias, self.gate.bias, self.answer.bias):
                bias.zero_()
            self.confidence.copy_(self.confidence.new_tensor([1.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        """The answers' logits, (B, outputs), of encoded objects (B, T, d)."""
        return as_leaf(self, x) if isinstance(x, Proxy) else self.answer(self.state(x))

    def state(self, x: Tensor) -> Tensor:
        """The state after the last step, (B, hidden_size)."""
        return binding_recurrence(*self._recurrence(x))

    def _recurrence(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The arguments of the recurrence."""
        w, S = self.similarity(x, return_scores=True)
        a, b = self.confidence
        conf = (w * torch.sigmoid(a * S + b)).sum(-1)
        of_lstm = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        return w, conf, (*of_lstm, self.key.weight, self.key.bias, self.gate.weight, self.gate.bias)

    def extra_repr(self) -> str:
        return f"key_size={self.key_size}, hidden_size={self.hidden_size}"
