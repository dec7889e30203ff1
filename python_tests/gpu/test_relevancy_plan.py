"""Which kernels run a call of relevancy_recurrence on which device, and the reason: the edges of the table."""

import json

import pytest
import torch

from rnnkern import _extension

if not _extension.available:
    pytest.skip(f"no compiled part: {_extension.reason}", allow_module_level=True)

H200, A100 = (9, 0, 132, 232448), (8, 0, 108, 166912)
CLUSTERS = (*H200, 16, 7)
BLOCK, NARROW = "{} units stay on one block", "{} units stay on one block in 16 bits"
OF_8, OF_16 = "{} units stay on a cluster of 8 blocks", "{} units stay on a cluster of 16 blocks"

# cell, dtype, (samples, units, buffer, relevant), facts, the kernels, and a part of the reason
TABLE = [
    ("tanh", "float32", (64, 128, 10, 10), H200, "block", BLOCK),
    ("lstm", "float32", (64, 64, 10, 10), A100, "block", BLOCK),
    ("lstm", "float32", (64, 128, 20, 19), H200, "block", BLOCK),
    ("lstm", "float32", (64, 128, 20, 22), H200, "stepwise", "a memory of 42 and the weights"),
    ("lstm", "float32", (64, 65, 10, 10), A100, "stepwise", "a memory of 20 and the weights"),
    ("lstm", "float32", (64, 65, 1, 1), (9, 0, 132, 200000), "block, stepwise", "backward they do not"),
    ("lstm", "float32", (64, 129, 10, 10), H200, "stepwise", "129 units and 4 gates do not fit"),
    ("relu", "float32", (64, 129, 10, 10), H200, "stepwise", "129 units and 1 gate do not fit"),
    ("tanh", "float32", (64, 128, 10, 10), (7, 5, 68, 65536), "stepwise", "capability 8.0"),
    ("tanh", "float32", (529, 128, 10, 10), H200, "stepwise", "529 samples are more than 4 for each"),
    ("tanh", "float32", (64, 128, 500, 0), H200, "stepwise", "a memory of 500 and the weights"),
    ("tanh", "float32", (64, 128, 2**62, 0), H200, "stepwise", "a memory without bound has no block"),
    ("tanh", "bfloat16", (64, 256, 10, 10), H200, "block", NARROW),
    ("relu", "float16", (64, 129, 13, 10), H200, "block", NARROW),
    ("lstm", "float16", (64, 128, 10, 10), A100, "block", NARROW),
    ("lstm", "bfloat16", (64, 64, 10, 10), H200, "block", BLOCK),
    ("tanh", "bfloat16", (64, 256, 14, 10), H200, "stepwise", "a memory of 24 and the weights"),
    ("tanh", "bfloat16", (64, 257, 10, 10), H200, "stepwise", "257 units and 1 gate do not fit"),
    ("lstm", "bfloat16", (64, 129, 10, 10), H200, "stepwise", "129 units and 4 gates do not fit"),
    ("tanh", "float64", (64, 128, 10, 10), CLUSTERS, "stepwise", "float64 has no block kernel"),
    # A cluster comes before a block that widens its weights, but only for a few samples.
    ("tanh", "bfloat16", (32, 256, 10, 10), CLUSTERS, "cluster", OF_8),
    ("tanh", "bfloat16", (33, 256, 10, 10), CLUSTERS, "block", NARROW),
    ("tanh", "bfloat16", (1, 128, 10, 10), CLUSTERS, "block", BLOCK),
    ("lstm", "bfloat16", (1, 128, 10, 10), CLUSTERS, "block", NARROW),
    ("tanh", "float32", (16, 129, 10, 10), CLUSTERS, "cluster", OF_8),
    ("tanh", "float32", (16, 512, 10, 10), CLUSTERS, "cluster", OF_16),
    ("tanh", "float32", (16, 512, 70, 10), CLUSTERS, "stepwise", "a memory of 80 needs"),
    ("tanh", "float32", (16, 513, 10, 10), CLUSTERS, "stepwise", "do not fit one block, and they are too large for a"),
    ("lstm", "float32", (16, 129, 10, 10), CLUSTERS, "cluster", OF_16),
    ("lstm", "float32", (16, 384, 10, 10), CLUSTERS, "cluster", OF_16),
    ("lstm", "float32", (16, 385, 10, 10), CLUSTERS, "stepwise", "they are too large for a cluster"),
    ("tanh", "float32", (64, 256, 10, 10), CLUSTERS, "cluster", OF_8),
    ("tanh", "float32", (65, 256, 10, 10), CLUSTERS, "stepwise", "65 samples are more than 4 for each of 16 clusters"),
    ("tanh", "float32", (29, 512, 10, 10), CLUSTERS, "stepwise", "29 samples are more than 4 for each of 7 clusters"),
    ("tanh", "float32", (4, 512, 10, 10), (*H200, 16, 0), "stepwise", "the GPU runs no cluster of 16 blocks"),
    ("tanh", "float32", (4, 256, 10, 10), H200, "stepwise", "the GPU runs no cluster of 8 blocks"),
    ("tanh", "float32", (4, 256, 10, 10), A100, "stepwise", "clusters need compute capability 9.0"),
]


@pytest.mark.parametrize(("cell", "dtype", "sizes", "facts", "kernels", "reason"), TABLE)
def test_which_kernels_run(cell, dtype, sizes, facts, kernels, reason, monkeypatch):
    def plan():
        return json.loads(torch.ops.rnnkern.relevancy_plan(cell, dtype, (60, *sizes), facts))

    monkeypatch.delenv("RNNKERN_CUDA_KERNELS", raising=False)
    found = plan()
    assert (found["forward"], found["backward"]) == (kernels.split(", ")[0], kernels.split(", ")[-1])
    if reason in (BLOCK, NARROW, OF_8, OF_16):
        assert found["reason"] == "weights of " + reason.format(sizes[1])
    else:
        assert reason in found["reason"]
    monkeypatch.setenv("RNNKERN_CUDA_KERNELS", "stepwise")
    found = plan()
    assert found["forward"] == "stepwise"
    said = "RNNKERN_CUDA_KERNELS leaves out the {} kernel"
    assert found["reason"] == f"{said.format('block')}, and {said.format('cluster')}"
