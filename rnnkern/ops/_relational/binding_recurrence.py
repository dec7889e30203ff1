"""The recurrence of an emergent symbol binding network: the public function and its checks."""

from collections.abc import Sequence

from torch import Tensor

from rnnkern import reference
from rnnkern.ops.checks import check_dtype, check_like, check_shape, shape_of
from rnnkern.ops.dispatch import Choice, choose, forced, operator

OP = "binding_recurrence"
WHY = "no kernel: its time is that of its products"
NAMES = ("W_ih", "W_hh", "b_ih", "b_hh", "W_k", "b_k", "w_g", "b_g")


def _check(w: Tensor, conf: Tensor, weights: Sequence[Tensor]) -> None:
    check_dtype(OP, "w", w)
    if w.dim() != 3 or w.shape[1] != w.shape[2] or w.shape[1] == 0:
        raise ValueError(f"{OP}: `w` must be (B, T, T) with T of at least 1, got {shape_of(w)}")
    check_like(OP, "conf", conf, "w", w)
    check_shape(OP, "conf", conf, "(B, T)", tuple(w.shape[:2]))
    if not isinstance(weights, (tuple, list)) or len(weights) != len(NAMES):
        got = f"{len(weights)} items" if isinstance(weights, (tuple, list)) else type(weights).__name__
        raise TypeError(f"{OP}: `weights` must be ({', '.join(NAMES)}), got {got}")
    for k, weight in enumerate(weights):
        check_like(OP, f"weights[{k}]", weight, "w", w)
    W_hh, W_k = weights[1], weights[4]
    for k, weight in ((1, W_hh), (4, W_k)):
        if weight.dim() != 2:
            wanted = {1: "(4 H, H)", 4: "(K, H)"}[k]
            raise ValueError(f"{OP}: `weights[{k}]` must be {wanted}, got {shape_of(weight)}")
    H, K = W_hh.shape[1], W_k.shape[0]
    shapes = (
        ("(4 H, 1 + K)", (4 * H, 1 + K)), ("(4 H, H)", (4 * H, H)), ("(4 H,)", (4 * H,)), ("(4 H,)", (4 * H,)),
        ("(K, H)", (K, H)), ("(K,)", (K,)), ("(1, H)", (1, H)), ("(1,)", (1,)),
    )  # fmt: skip
    for k, (symbols, wanted) in enumerate(shapes):
        check_shape(OP, f"weights[{k}]", weights[k], symbols, wanted)


def _choose() -> Choice:
    return choose(OP, {}) if forced() else Choice("reference", WHY)


@operator(_check, _choose)
def binding_recurrence(w: Tensor, conf: Tensor, weights: Sequence[Tensor]) -> Tensor:
    r"""The recurrence of an emergent symbol binding network (ESBN; Webb et al. 2021): an LSTM that sees no object. It
    writes a key at each object, and reads the keys of earlier objects by the similarity of the objects.

    .. math::
        h_t, c_t &= \mathrm{LSTM}(r_t, h_{t-1}, c_{t-1}), \quad
        k_t = \mathrm{relu}(W_k h_t + b_k), \quad g_t = \sigma(w_g \cdot h_t + b_g) \\
        r_{t+1} &= g_t \left[ \textstyle\sum_{i<t} w_{ti} k_i; \; \mathrm{conf}_t \right]
        \quad \text{for } 1 \le t < T, \qquad r_0 = r_1 = 0

    for t = 0, ..., T, from a state of zeros. B is the batch size, T the number of objects, K the size of a key and H
    the number of hidden units. Steps 0 and 1 are the same for all samples and are computed once.

    Args:
        w: (B, T, T), weights of earlier objects, such as :func:`rnnkern.ops.similarity` with ``mask="strict"``; entries
            on and above the diagonal are not read. float32, float64, bfloat16 or float16.
        conf: (B, T), confidence: how similar the object is to those that it reads, :math:`\sum_i w_{ti} \sigma(a S_{ti}
            + b)`.
        weights: W_ih (4H, K + 1), whose last column is that of the confidence, W_hh (4H, H), b_ih (4H,), b_hh (4H,),
            with gates in torch.nn's order; W_k (K, H), b_k (K,), w_g (1, H), b_g (1,).

    Returns:
        :math:`h_T`, (B, H). Plain PyTorch on every device, with all derivatives that PyTorch has.

    Raises:
        ValueError: a size or a rank is wrong, or :func:`rnnkern.use` forces a kernel.
        TypeError: an argument has the wrong type, dtype or device.

    See also: :class:`rnnkern.nn.ESBN`.

    >>> shapes = (16, 4), (16, 4), (16,), (16,), (3, 4), (3,), (1, 4), (1,)
    >>> w, conf = torch.zeros(2, 5, 5), torch.zeros(2, 5)
    >>> binding_recurrence(w, conf, [torch.randn(shape) for shape in shapes]).shape
    torch.Size([2, 4])
    """
    _check(w, conf, weights)
    _choose()
    return reference.binding_recurrence(w, conf, weights)
