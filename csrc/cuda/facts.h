// The properties of a device that launch plans use.
#pragma once

#include <cstdint>

namespace rnnkern::cuda {

struct Facts {
  int major, minor;  // compute capability
  int multiprocessors;
  int64_t shared_bytes;  // per block
  int clusters[2];       // of 8 and of 16 such blocks that can run at once; zero below 9.0

  int resident(int blocks) const { return blocks <= 8 ? clusters[0] : clusters[1]; }
};

// Those of the current device, queried from the driver once per thread.
Facts facts_of_current(void* stream);

}  // namespace rnnkern::cuda
