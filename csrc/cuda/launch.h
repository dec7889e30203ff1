// The size of a launch.
#pragma once

#include <cstdint>

namespace rnnkern::cuda {

struct Launch {
  int64_t blocks;
  int64_t shared_bytes = 0;
  int cluster = 1;           // blocks per cluster
  bool cooperative = false;  // fails unless all blocks can run at once
};

}  // namespace rnnkern::cuda
