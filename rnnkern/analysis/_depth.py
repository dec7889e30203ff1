"""Lengths of the gradient paths that attention opens."""

import torch
from torch import Tensor


def dependency_depth(ids: Tensor) -> Tensor:
    r"""Returns, for each event of an attending recurrence, the length of the shortest gradient path from the last step.

    Event i is the state :math:`h_i`. A path from :math:`s_b` to :math:`h_a` exists if step b attends to event a, or if
    a = b; a path from :math:`h_{b+1}` to :math:`s_b` goes through the recurrent weight. The depth of an event is the
    smallest number of recurrent weights on a path from :math:`s_{T-1}` to it: 0 if the last step attends to it, and T -
    1 - i if only recurrence connects the two. For a linear recurrence whose steps attend to at most :math:`\kappa`
    events with equal weights, the gradient of :math:`s_{T-1}` with respect to an event of depth d is at least
    :math:`\lambda^d / \kappa^{d+1}` in norm, where :math:`\lambda` is a positive eigenvalue of the recurrent weight,
    which is normal. T is the number of time steps, B the batch size and K the number of slots.

    Args:
        ids: (T, B, K) int64, the events that each step attends to, -1 for an empty slot, as
            :meth:`rnnkern.nn.RelRNN.attention` returns them for a sequence that starts with an empty memory and is not
            reset.

    Returns:
        (T, B) int64.

    Raises:
        ValueError: ``ids`` has a wrong shape, or a step attends to a later event.
        TypeError: ``ids`` is not int64.

    Source: Kerg 2022, section 4.4 and appendix B.1.4.

    >>> ids = torch.tensor([[0, -1], [0, 1], [2, 1], [3, 1]]).unsqueeze(1)
    >>> dependency_depth(ids).flatten().tolist()
    [1, 0, 1, 0]
    """
    if ids.dtype != torch.int64:
        raise TypeError(f"dependency_depth: `ids` must be int64, got {ids.dtype}")
    if ids.dim() != 3:
        raise ValueError(f"dependency_depth: `ids` must be (T, B, K), got {tuple(ids.shape)}")
    steps, batch, _ = ids.shape
    if bool((ids > torch.arange(steps, device=ids.device)[:, None, None]).any()):
        raise ValueError("dependency_depth: `ids` must be at most the step that attends to them")
    depth = ids.new_full((batch, steps + 1), steps)  # the last column takes the empty slots
    for step in reversed(range(steps)):
        now = depth.new_zeros(batch) if step == steps - 1 else depth[:, step + 1] + 1
        members = torch.cat([ids[step], ids.new_full((batch, 1), step)], 1)
        members = torch.where(members < 0, steps, members)
        depth.scatter_reduce_(1, members, now.unsqueeze(1).expand_as(members), "amin")
    return depth[:, :steps].T
