#include "recurrence/cluster_table.h"

template struct rnnkern::ClusterKernels<rnnkern::ClusterForward, rnnkern::device::float16>;
