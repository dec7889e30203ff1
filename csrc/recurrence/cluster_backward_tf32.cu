#include "recurrence/cluster_table.h"

template struct rnnkern::ClusterKernels<rnnkern::ClusterBackward, rnnkern::device::tfloat32>;
