"""Contents of the wheel, the symbols that its library needs, and training with it on a machine without a compiler."""

import json
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.utils import parse_wheel_filename

ALLOWED_PYTHON = {"PyModule_Create2"}  # part of the limited API of 3.11
LATER = {"torch_exception_get_what_without_backtrace"}  # new in torch 2.13; used only if available
LARGEST = 10_000_000  # bytes
TRAIN = """
import json, re, rnnkern, torch
from rnnkern import _compiler
torch.manual_seed(0)
torch.set_num_threads(2)
lstm = rnnkern.nn.LSTM(8, 64)
optimizer = torch.optim.Adam(lstm.parameters(), 0.01)
x, losses = torch.randn(20, 64, 8), []
for _ in range(10):
    loss = (lstm(x)[0][..., 0] - x.mean(-1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
try:
    torch.ops.rnnkern.set_simd_level("sse9")
except RuntimeError as error:
    refusal = str(error)
facts = json.loads(torch.ops.rnnkern.build_info())
maps = open("/proc/self/maps").read()
kernels = [
    ("recurrence/cuda/cluster_forward.cuh", "rnnkern::ClusterForwardKernel<rnnkern::Lstm, float, 256>"),
    ("relevancy/cuda/stepwise_attention_forward.cuh", "rnnkern::relevancy::StepwiseAttentionForwardKernel<float>"),
    ("orthogonal/cuda/givens_forward.cuh", "rnnkern::givens::ForwardKernel<float, 1, 2>"),
] if _compiler.nvrtc() else []
print(json.dumps({
    "file": rnnkern.__file__,
    "losses": losses,
    "counts": json.loads(torch.ops.rnnkern.kernel_counts()),
    "refusal": refusal,
    "processor": facts["processor_simd_level"],
    "headers": str(_compiler.sources()),
    "cubins": [_compiler.compile_now(_compiler.Program(*kernel, "sm_90"))[:4] == b"\\x7fELF" for kernel in kernels],
    "openmp": sorted(set(re.findall(r"/.*/lib(?:gomp|i?omp5?)\\b.*", maps))),
}))
"""


@pytest.fixture(scope="module")
def names(wheel) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")]


@pytest.fixture(scope="module")
def library(wheel, names, tmp_path_factory) -> Path:
    (name,) = [name for name in names if name.endswith(".so")]
    return Path(zipfile.ZipFile(wheel).extract(name, tmp_path_factory.mktemp("library")))


@pytest.fixture(scope="module")
def undefined(library) -> dict[str, str]:
    """Undefined symbols of the library, C++ names demangled: "U" strong, "w" weak."""
    command = ["nm", "-D", "-C", "--undefined-only", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name.split("@")[0]: kind for kind, name in (line.split(maxsplit=1) for line in lines)}


@pytest.fixture(scope="module")
def trained(wheel, tmp_path_factory) -> dict[str, Any]:
    """Output of a process that trains with the installed wheel, in a new environment with this PyTorch, and with only
    Python on PATH. Warnings, such as that of a slow SIMD level, are errors."""
    venv = tmp_path_factory.mktemp("trained") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))
    python = venv / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel]
    for command in (install, [python, "-W", "error", "-c", TRAIN]):
        done = subprocess.run(command, env={"PATH": str(venv / "bin")}, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    for name in ("file", "headers"):
        assert facts[name].startswith(str(packages))
    return facts


def test_tag_and_size(wheel):
    assert wheel.stat().st_size <= LARGEST
    _, _, _, tags = parse_wheel_filename(wheel.name)
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("cp311", "abi3")}
    for tag in tags:
        found = re.fullmatch(rf"manylinux_2_(\d+)_{platform.machine()}", tag.platform)
        assert int(found[1]) <= 28, "the oldest on which PyTorch's wheels run"


def test_it_trains_at_the_highest_level_of_the_processor(trained):
    assert trained["losses"][-1] < 0.7 * trained["losses"][0]
    level = trained["processor"]
    assert trained["counts"] == {f"recurrence/cpu/{way}/lstm/{level}": 10 for way in ("forward", "backward")}


def test_an_error_passes_through_pytorch(trained):
    """Exceptions are thrown by the wheel's libstdc++ and caught by that of the system."""
    assert "`sse9` is not a level" in trained["refusal"]


def test_cuda_kernels_compile_from_its_own_headers(trained):
    if not trained["cubins"]:
        pytest.skip("no NVRTC")
    assert all(trained["cubins"])


def test_it_computes_with_the_openmp_of_torch_alone(trained):
    (openmp,) = trained["openmp"]
    assert Path(openmp).is_relative_to(Path(torch.__file__).parent), "PyTorch's wheels bring theirs"


def test_contents(names, sources):
    package = [name for name in names if ".dist-info/" not in name and not name.startswith("rnnkern/csrc/")]
    wanted = [path.relative_to(sources) for path in (sources / "rnnkern").rglob("*.py")]
    assert sorted(package) == sorted([*map(str, wanted), "rnnkern/py.typed", "rnnkern/_C.abi3.so"])
    headers = {name for name in names if name.startswith("rnnkern/csrc/")}
    assert {"rnnkern/csrc/device/entry.cuh", "rnnkern/csrc/device/standard/cmath"} <= headers
    assert not {name for name in headers if name.endswith((".cpp", ".cu", ".py")) or "interpreter" in name}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_library_asks_no_more_of_torch_than_2_11_has(undefined):
    text = Path(__file__).with_name("torch_2_11_symbols.txt").read_text()
    cpu, cuda = (set(re.findall(r"^\w+$", part, re.M)) for part in text.split("# libtorch_cuda.so"))
    ours = r"aoti_torch_|torch_|.*\b(at|c10|torch|aoti)::"
    torch = {name for name in undefined if re.match(ours, name)}
    assert torch, "nothing is registered"
    assert torch - cpu - cuda == LATER
    assert {undefined[name] for name in LATER} == {"w"}, "these would keep torch 2.11 from loading the library"
    strong = {name for name in torch & cuda if undefined[name] != "w"}
    assert strong == set(), "these would keep a PyTorch without CUDA from loading the library"


def test_library_keeps_to_the_limited_api(undefined):
    assert {name for name in undefined if re.match(r"_?Py", name)} <= ALLOWED_PYTHON


def test_library_needs_libtorch_and_no_cuda_library(library):
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", dynamic))
    assert "libtorch" in needed, "without it the stream of a PyTorch with CUDA is not found"
    assert needed <= {"libtorch", "libm", "libgomp", "libgcc_s", "libc", "ld-linux-x86-64"}
    assert "RUNPATH" not in dynamic


def test_library_shows_nothing_but_its_module(library):
    command = ["nm", "-D", "--defined-only", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    functions = [line.split()[2] for line in lines if line.split()[1] == "T"]
    assert functions == ["PyInit__C", "rnnkern_has_cell", "rnnkern_register_cell"]
