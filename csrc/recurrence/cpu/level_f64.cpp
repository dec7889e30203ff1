#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<double> rnnkern::kernels_at<double, rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(int);
