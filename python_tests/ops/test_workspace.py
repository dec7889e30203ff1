"""The size of a CPU call's workspace is computed with null pointers, for which pointer arithmetic is undefined. Clang's
sanitizer detects such arithmetic, GCC's does not."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURE = """
#include "recurrence/cpu/includes.h"
#define RNNKERN_SIMD_LEVEL plain
#include "common/simd_target.h"
#include "recurrence/cpu/kernels.h"

namespace rnnkern {
template <class T, class Cell>
int64_t measured() {
  constexpr int64_t H = 24, I = 7, P = Cell::projected ? 20 : H;
  const T some = 0;
  T gradient = 0;
  Forward<T> forward{};
  forward.cell = numbers_of<Cell>;
  forward.steps = {11, 13, nullptr, false};
  forward.weights = {H, P, {&some, &some, Cell::gates, 1, H, P}, {&some, &some, Cell::gates, 1, H, I}, {}, {}};
  if (Cell::projected) forward.weights.W_hr = {&some, nullptr, 1, 1, P, H};
  Backward<T> backward{};
  backward.cell = forward.cell;
  backward.steps = forward.steps;
  backward.weights = forward.weights;
  backward.dR = backward.dW = backward.dW_hr = &gradient;
  int64_t sum = 0;
  for (const bool split_hidden : {false, true})
    for (const int team : {1, 2}) {
      forward.split_hidden = backward.split_hidden = split_hidden;
      sum += forward_workspace<T>(forward, team) + backward_workspace<T>(backward, team);
    }
  return sum;
}
}  // namespace rnnkern

int main() {
#define RNNKERN_MEASURE(Cell) rnnkern::measured<float, rnnkern::Cell>() > 0 &&
  return RNNKERN_ALL_CELLS(RNNKERN_MEASURE) true ? 0 : 1;
}
"""


@pytest.mark.skipif(not shutil.which("clang++"), reason="no clang++, whose sanitizer sees arithmetic on null")
def test_measuring_adds_nothing_to_null(tmp_path):
    flags = ["-std=c++20", "-O0", "-w", "-Icsrc", "-fsanitize=pointer-overflow", "-fsanitize-trap=all"]
    flags += ["-D_Float16=__fp16"]  # clang before version 15 lacks _Float16
    subprocess.run(
        ["clang++", *flags, "-x", "c++", "-", "-o", tmp_path / "measure"],
        cwd=ROOT,
        input=MEASURE,
        check=True,
        text=True,
    )
    assert subprocess.run([tmp_path / "measure"], check=False).returncode == 0
