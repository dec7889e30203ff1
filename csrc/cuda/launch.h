// The size of a launch.
#pragma once

#include <cstdint>

#include "device/types.h"

namespace rnnkern::cuda {

struct Launch {
  int64_t blocks;
  int64_t shared_bytes = 0;
  int cluster = 1;           // blocks per cluster
  bool cooperative = false;  // fails unless all blocks can run at once
};

// The blocks of a grid kernel form groups. The blocks of a group, its members, divide the units and keep their slices
// of the weights for all steps. Each group has a copy of the weights; groups divide the batch into sets of columns.
struct GridSize {
  int members = 0, groups = 0;
  int sets = 0;  // maximum number of sets per group

  RNNKERN_HOST_DEVICE int blocks() const { return members * groups; }
};

}  // namespace rnnkern::cuda
