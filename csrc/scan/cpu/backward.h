// g_t = dL/dh_t + conj(a_{t+1}) g_{t+1}, which is dL/dx_t; dL/da_t = conj(h_{t-1}) g_t. Included once per SIMD level.
#pragma once

#include "scan/cpu/strips.h"

namespace rnnkern {
namespace {

template <bool complex, bool per_step, bool needs_a, int count, class T, class Lanes>
RNNKERN_INLINE void backward_block(const ScanBackward<T> p, int64_t group, int64_t column, Lanes lanes, int64_t first,
                                   int64_t last) {
  using V = Vec<T>;
  using F = Factor<complex, T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = group * sizes.width + column, back = sizes.reverse ? 1 : -1;
  const T* const after = last < sizes.steps ? p.grad_h0 : p.grad_last;
  V s[count], sums[count];
  F a[count];
  for (int i = 0; i < count; ++i) {
    s[i] = after ? V::load(after + place + i * V::width, lanes) : V(0);
    sums[i] = V(0);
    if (!per_step) a[i] = F(V::load(p.a + column + i * V::width, lanes), true);
  }
  const Span span(sizes, group, first, last);
  const int64_t begin = Span(sizes, group, 0, sizes.steps).first;  // of the sequence
  for (int64_t k = span.last - 1; k >= span.first; --k) {
    const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
    const bool zeroed = sizes.is_reset(t, group);
    const T* before = nullptr;
    if (needs_a && !zeroed) before = k > begin ? p.h + sizes.row(t + back) + place : p.h0 ? p.h0 + place : nullptr;
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      const V g = p.grad_h ? s[i] + V::load(p.grad_h + at + i * V::width, lanes) : s[i];
      g.store(p.grad_x + at + i * V::width, lanes);
      if constexpr (needs_a) {
        const V h = before ? V::load(before + i * V::width, lanes) : V(0);
        if constexpr (per_step)
          F(h, true).times(g).store(p.grad_a + at + i * V::width, lanes);
        else
          sums[i] = F(h, true).times(g, sums[i]);
      }
      if (per_step) a[i] = F(V::load(p.a + at + i * V::width, lanes), true);
      s[i] = zeroed ? V(0) : vanishing<complex>(g, a[i].times(g), V(0));
    }
    if (needs_a && !per_step && (k % few_steps == 0 || k == span.first))
      for (int i = 0; i < count; ++i) {
        T* const to = p.grad_a + place + i * V::width;
        (V::load(to, lanes) + sums[i]).store(to, lanes);
        sums[i] = V(0);
      }
  }
  for (int i = 0; i < count; ++i) s[i].store(p.grad_h0 + place + i * V::width, lanes);
}

template <bool complex, bool per_step, bool needs_a, class T>
void backward_share(const ScanBackward<T>& p, ThreadContext me) {
  over_blocks<T, true>(
      p.sizes, per_step && needs_a ? few_steps / 2 : few_steps, me,
      [&](int64_t group, int64_t column, auto vectors, auto lanes, int64_t first, int64_t last) RNNKERN_INLINE_LAMBDA {
        backward_block<complex, per_step, needs_a, vectors.value>(p, group, column, lanes, first, last);
      });
}

template <bool complex, bool per_step, class T>
void backward_by_need(const ScanBackward<T>& p, ThreadContext me) {
  (p.grad_a ? backward_share<complex, per_step, true, T> : backward_share<complex, per_step, false, T>)(p, me);
}

template <class T>
void scan_backward(const ScanBackward<T>& p, ThreadContext me) {
  const auto share = p.sizes.complex
                         ? p.sizes.per_step ? backward_by_need<true, true, T> : backward_by_need<true, false, T>
                     : p.sizes.per_step ? backward_by_need<false, true, T>
                                        : backward_by_need<false, false, T>;
  share(p, me);
}

}  // namespace
}  // namespace rnnkern
