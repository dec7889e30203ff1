#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<float> rnnkern::kernels_at<float, rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(int);
