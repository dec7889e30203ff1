#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<float> rnnkern::Kernels<float>::at<rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(int);
