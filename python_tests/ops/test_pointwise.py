"""The pointwise stage by itself: the cells' scalar code, which is what a CUDA device runs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import rnnkern
from rnnkern.ops import recurrence
from rnnkern.ops.recurrence import KERNEL_CELLS
from rnnkern.testing import recurrence_sample

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
ARCHS = rnnkern.build_info()["cuda_archs"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cell", KERNEL_CELLS)
def test_one_step_in_two_stages(cell, dtype, device):
    """A product by PyTorch and the pointwise stage make one step of the recurrence."""
    _, (_, u, R, state), kwargs = recurrence_sample(cell, steps=1, batch=3, hidden=37, dtype=dtype)
    wanted = recurrence(cell, u, R, state, **kwargs)[1]
    u, R, *rest = (x.to(device) for x in (u[0], R, kwargs["bias"], *state, *kwargs["params"]))
    bias, state, params = rest[0], rest[1 : 1 + len(state)], rest[1 + len(state) :]
    r = state[0] @ R.T + bias
    first = KERNEL_CELLS[cell]["first_gates"] * 37
    if first < r.shape[1]:
        (operand,) = torch.ops.rnnkern.recurrence_pointwise(cell, u, r, state, params, True)
        r[:, first:] = operand @ R[first:].T + bias[first:]
    actual = torch.ops.rnnkern.recurrence_pointwise(cell, u, r, state, params, False)
    torch.testing.assert_close([x.cpu() for x in actual], list(wanted))


def test_refuses_what_does_not_fit():
    u, h = torch.zeros(2, 3), torch.zeros(2, 3)
    for r, state, match in ((torch.zeros(2, 2), [h], "`r`"), (u, [h, h], "`state`"), (u, [h.double()], "`state`")):
        with pytest.raises(RuntimeError, match=match):
            torch.ops.rnnkern.recurrence_pointwise("tanh", u, r, state, [], False)


@pytest.mark.skipif(not ARCHS, reason="built without nvcc")
@pytest.mark.parametrize("arch", [arch.removesuffix("+PTX").replace(".", "") for arch in ARCHS])
def test_the_device_compiler_spills_nothing(arch, tmp_path):
    nvcc = next(filter(None, map(shutil.which, ("nvcc", "/usr/local/cuda/bin/nvcc"))), None)
    source = Path(__file__).parents[2] / "csrc/recurrence/pointwise.cu"
    if not (nvcc and source.exists()):
        pytest.skip("no nvcc or no sources here")
    command = [nvcc, "-std=c++20", "-O3", f"-I{source.parents[1]}", "-cubin", f"-arch=sm_{arch}", "-Xptxas=-v"]
    done = subprocess.run(
        [*command, source, "-o", tmp_path / "pointwise.cubin"], check=True, capture_output=True, text=True
    )
    report = done.stdout + done.stderr
    kernels = re.findall(r"Compiling entry function '(\w*pointwise\w*)'", report)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert len(kernels) == len(frames) == 2 * len(KERNEL_CELLS)  # float32 and float64
    assert set(frames) == {("0", "0", "0")}
