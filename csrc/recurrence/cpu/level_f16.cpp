#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<rnnkern::device::float16>
rnnkern::Kernels<rnnkern::device::float16>::at<rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(int);
