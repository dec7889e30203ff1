// What a launch plan knows of a device.
#pragma once

#include <cstdint>

namespace rnnkern::cuda {

struct Facts {
  int major, minor;  // compute capability
  int multiprocessors;
  int64_t shared_bytes;  // that a block can have
  int clusters[2];       // of 8 and of 16 such blocks that run at once; none before 9.0

  int resident(int blocks) const { return blocks <= 8 ? clusters[0] : clusters[1]; }
};

// Of the current device; asked of the driver once per thread.
Facts facts_of_current(void* stream);

}  // namespace rnnkern::cuda
