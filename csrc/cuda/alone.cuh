// A kernel that fills a multiprocessor, like kernels that keep their weights on the chip. The driver reports how many
// of its clusters run at once.
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
