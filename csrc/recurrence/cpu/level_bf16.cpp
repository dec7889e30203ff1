// Compiled only for the level whose products multiply bfloat16.
#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<float> rnnkern::kernels_at<rnnkern::device::bfloat16, rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(
    int);
