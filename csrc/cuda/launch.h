// How much of the device a kernel starts on.
#pragma once

#include <cstdint>

namespace rnnkern::cuda {

struct Launch {
  int64_t blocks;
  int64_t shared_bytes = 0;
  int cluster = 1;           // blocks that share their shared memory
  bool cooperative = false;  // all blocks run at once, or none does
};

}  // namespace rnnkern::cuda
