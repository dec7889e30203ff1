#include "relevancy/sample_table.h"

template struct rnnkern::relevancy::SampleKernels<rnnkern::device::bfloat16>;
