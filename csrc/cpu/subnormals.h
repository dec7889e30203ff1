// What kernels do with subnormal numbers, with which many processors compute 10 to 100 times as slowly as with others.
#pragma once

#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rnnkern {

// While it lives, this thread takes subnormal operands and results for zero, for example gradients that vanish over
// time. Kernels of double stay exact, and processors other than x86 compute with subnormal numbers.
template <class T>
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() {
    if (flushes) _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  }
  ~FlushSubnormals() {
    if (flushes) _mm_setcsr(before_);
  }

 private:
  static constexpr bool flushes = !std::is_same_v<T, double>;
  const unsigned before_ = flushes ? _mm_getcsr() : 0;
#else
  FlushSubnormals() {}
#endif
};

}  // namespace rnnkern
