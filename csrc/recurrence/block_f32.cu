#include "recurrence/block_table.h"

template struct rnnkern::BlockKernels<float>;
