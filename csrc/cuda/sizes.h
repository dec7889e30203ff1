// Sizes that kernels are compiled for, selected at run time.
#pragma once

#include <cstdint>
#include <type_traits>

namespace rnnkern::cuda {

// In ascending order.
template <int... sizes>
struct Sizes {
  // The smallest size that is at least n and for which `exists` is true, or 0.
  template <class Exists>
  static int least(int64_t n, Exists exists) {
    for (const int size : {sizes...})
      if (size >= n && exists(size)) return size;
    return 0;
  }

  // Calls f(std::integral_constant<int, wanted>()); `wanted` must be one of the sizes.
  template <class F>
  static auto visit(int wanted, F f) {
    return visit_from<F, sizes...>(wanted, f);
  }

 private:
  template <class F, int first, int... rest>
  static auto visit_from(int wanted, F& f) {
    if constexpr (sizeof...(rest) > 0) {
      if (wanted != first) return visit_from<F, rest...>(wanted, f);
    }
    return f(std::integral_constant<int, first>());
  }
};

}  // namespace rnnkern::cuda
