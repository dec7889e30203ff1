#include "relevancy/sample_table.h"

template struct rnnkern::relevancy::SampleKernels<float>;
