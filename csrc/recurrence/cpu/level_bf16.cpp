#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<rnnkern::device::bfloat16>
rnnkern::Kernels<rnnkern::device::bfloat16>::at<rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(int);
