// Leaves no room on its multiprocessor for a second block, as kernels do that keep all they can on the chip: the driver
// says how many clusters of it run at once.
#pragma once

#include "device/device.h"

namespace rnnkern::cuda {

struct AloneKernel {
  struct Problem {};
  static constexpr char header[] = "cuda/alone.cuh";
  static constexpr int threads = 256;

  RNNKERN_DEVICE static void run(const Problem&) {}
};

}  // namespace rnnkern::cuda
