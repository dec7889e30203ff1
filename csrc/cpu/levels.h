// What the CPU drivers of the families share: kernels by the SIMD level in use.
#pragma once

#include "build_levels.h"  // written by setup.py: RNNKERN_BUILT_LEVELS(X), X(level) for each level that was compiled
#include "common/counters.h"
#include "common/simd_level.h"
#include "common/tensor.h"

namespace rnnkern {

// Whether this library contains code for a level.
constexpr bool is_built(SimdLevel wanted) {
#define RNNKERN_IS_WANTED(level) wanted == SimdLevel::level ||
  return RNNKERN_BUILT_LEVELS(RNNKERN_IS_WANTED) false;
#undef RNNKERN_IS_WANTED
}

// What `make` returns for the level in use. Only that level's code runs: the processor may not have the others. The
// levels above avx512 have no code of their own but that of bfloat16 products (kernels_at in recurrence/problem.h) and
// of tiles, which kernels of avx512 use if the level in use is amx.
template <class Make>
auto at_level_in_use(Make make) {
  constexpr auto own = [](SimdLevel level) { return level < SimdLevel::avx512 ? level : SimdLevel::avx512; };
  switch (simd_level()) {
#define RNNKERN_CASE(level) \
  case SimdLevel::level:    \
    return make.template operator()<own(SimdLevel::level)>();
    RNNKERN_BUILT_LEVELS(RNNKERN_CASE)
#undef RNNKERN_CASE
    default:
      STD_TORCH_CHECK(false, "rnnkern: no kernels were built for the SIMD level in use");
  }
}

// A family's kernels for the level in use.
template <class Kernels>
Kernels kernels_in_use() {
  return at_level_in_use([]<SimdLevel level>() { return Kernels::template at<level>(); });
}

// A kernel of that level is entered.
inline void count_kernel(const char* family, const char* direction, const char* what) {
  count(family, direction, what, name(simd_level()));
}

inline void count_kernel(const char* family, const char* direction, const Tensor& x) {
  count_kernel(family, direction, x.scalar_type() == ScalarType::Double ? "float64" : "float32");
}

}  // namespace rnnkern
