#include "recurrence/cpu/kernels.h"

template rnnkern::Kernels<double> rnnkern::Kernels<double>::at<rnnkern::SimdLevel::RNNKERN_SIMD_LEVEL>(int);
