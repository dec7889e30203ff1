// What cell headers may use: scalar math for host and device. SIMD levels bring overloads of the same names for their
// vectors (common/simd.h), found by argument.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define RNNKERN_CELL __host__ __device__ __forceinline__ static
#else
#define RNNKERN_CELL [[gnu::always_inline]] inline static
#endif

namespace rnnkern {

RNNKERN_CELL float tanh(float x) { return ::tanhf(x); }
RNNKERN_CELL double tanh(double x) { return ::tanh(x); }
RNNKERN_CELL float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  // Without the exact division's slow path, whose branch would keep one sigmoid from overlapping the next.
  return __fdividef(1.0f, 1.0f + ::expf(-x));
#else
  return 1.0f / (1.0f + ::expf(-x));
#endif
}
RNNKERN_CELL double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
RNNKERN_CELL float abs(float x) { return ::fabsf(x); }
RNNKERN_CELL double abs(double x) { return ::fabs(x); }
RNNKERN_CELL float sqrt(float x) { return ::sqrtf(x); }
RNNKERN_CELL double sqrt(double x) { return ::sqrt(x); }
RNNKERN_CELL float exp(float x) { return ::expf(x); }
RNNKERN_CELL double exp(double x) { return ::exp(x); }
RNNKERN_CELL float expm1(float x) { return ::expm1f(x); }
RNNKERN_CELL double expm1(double x) { return ::expm1(x); }
RNNKERN_CELL float log(float x) { return ::logf(x); }
RNNKERN_CELL double log(double x) { return ::log(x); }
RNNKERN_CELL float log1p(float x) { return ::log1pf(x); }
RNNKERN_CELL double log1p(double x) { return ::log1p(x); }
RNNKERN_CELL float sin(float x) { return ::sinf(x); }
RNNKERN_CELL double sin(double x) { return ::sin(x); }
RNNKERN_CELL float cos(float x) { return ::cosf(x); }
RNNKERN_CELL double cos(double x) { return ::cos(x); }

// condition ? a : b, lane by lane for a vector.
template <class V>
RNNKERN_CELL V select(bool condition, V a, V b) {
  return condition ? a : b;
}

}  // namespace rnnkern
