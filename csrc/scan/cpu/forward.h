// h_t = a_t h_{t-1} + x_t. Included once per SIMD level.
#pragma once

#include "scan/cpu/strips.h"

namespace rnnkern {
namespace {

template <bool complex, bool per_step, int count, class T, class Lanes>
RNNKERN_INLINE void forward_block(const ScanForward<T> p, int64_t group, int64_t column, Lanes lanes, int64_t first,
                                  int64_t last) {
  using V = Vec<T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = group * sizes.width + column;
  const T* const before = first ? p.last : p.h0;
  V s[count];
  Factor<complex, T> a[count];
  for (int i = 0; i < count; ++i) {
    s[i] = before ? V::load(before + place + i * V::width, lanes) : V(0);
    if (!per_step) a[i] = Factor<complex, T>(V::load(p.a + column + i * V::width, lanes));
  }
  const Span span(sizes, group, first, last);
  for (int64_t k = span.first; k < span.last; ++k) {
    const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
    if (sizes.is_reset(t, group))
      for (V& x : s) x = V(0);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      if (per_step) a[i] = Factor<complex, T>(V::load(p.a + at + i * V::width, lanes));
      const V x = V::load(p.x + at + i * V::width, lanes);
      s[i] = vanishing<complex>(s[i], a[i].times(s[i], x), x);
      if (p.h) s[i].store(p.h + at + i * V::width, lanes);
    }
  }
  for (int i = 0; i < count; ++i) s[i].store(p.last + place + i * V::width, lanes);
}

template <bool complex, bool per_step, class T>
void forward_share(const ScanForward<T>& p, ThreadContext me) {
  over_blocks<T, false>(p.sizes, few_steps, me,
                        [&](int64_t group, int64_t column, auto vectors, auto lanes, int64_t first, int64_t last)
                            RNNKERN_INLINE_LAMBDA {
                              forward_block<complex, per_step, vectors.value>(p, group, column, lanes, first, last);
                            });
}

template <class T>
void scan_forward(const ScanForward<T>& p, ThreadContext me) {
  const auto share = p.sizes.complex ? p.sizes.per_step ? forward_share<true, true, T> : forward_share<true, false, T>
                     : p.sizes.per_step ? forward_share<false, true, T>
                                        : forward_share<false, false, T>;
  share(p, me);
}

}  // namespace
}  // namespace rnnkern
