"""CUDA graphs of calls with gradients."""

import torch


def captured(call):
    """A CUDA graph of a call, and the tensors that it writes.

    The call must return detached tensors, and is made first on another stream: autograd accumulates the gradient of a
    leaf on the stream where it was first used, for as long as a result is kept that depends on it, and the default
    stream cannot wait for one that is captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results
