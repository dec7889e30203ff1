#include "recurrence/grid_table.h"

template struct rnnkern::GridKernels<rnnkern::device::bfloat16>;
