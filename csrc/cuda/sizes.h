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
    std::common_type_t<decltype(f(std::integral_constant<int, sizes>()))...> found;
    ((wanted == sizes ? void(found = f(std::integral_constant<int, sizes>())) : void()), ...);
    return found;
  }
};

}  // namespace rnnkern::cuda
