// g_t = dL/dh_t + conj(a_{t+1}) g_{t+1}, which is dL/dx_t; dL/da_t = conj(h_{t-1}) g_t. Included once per SIMD level.
#pragma once

#include "scan/cpu/strips.h"

namespace rnnkern {
namespace {

// The row of h before the k-th step, or null where that is zero. `begin` is the sequence's first step.
template <class T>
RNNKERN_INLINE const T* state_before(const ScanBackward<T>& p, int64_t k, int64_t begin, int64_t place) {
  if (k == begin) return p.h0 ? p.h0 + place : nullptr;
  return p.h + p.sizes.row(step_at(p.sizes, k - 1)) + place;
}

template <bool complex, bool per_step, bool needs_a, class T, class Block>
RNNKERN_INLINE void backward_block(const ScanBackward<T> p, const Block block) {
  using V = Vec<T>;
  using F = Factor<complex, T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = block.place(sizes);
  V s[Block::count], sums[Block::count];
  F a[Block::count];
  for (int i = 0; i < Block::count; ++i) {
    s[i] = block.load_if(block.last < sizes.steps ? p.grad_h0 : p.grad_last, place, i);
    sums[i] = V(0);
    if (!per_step) a[i] = F(block.load(p.a + block.column, i), true);
  }
  const Span span(sizes, block.group, block.first, block.last);
  const int64_t begin = Span(sizes, block.group, 0, sizes.steps).first;
  for (int64_t k = span.last - 1; k >= span.first; --k) {
    const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
    const bool zeroed = sizes.is_reset(t, block.group);
    const T* const before = needs_a && !zeroed ? state_before(p, k, begin, place) : nullptr;
#pragma GCC unroll 4
    for (int i = 0; i < Block::count; ++i) {
      const V g = p.grad_h ? s[i] + block.load(p.grad_h + at, i) : s[i];
      block.store(g, p.grad_x + at, i);
      if constexpr (needs_a) {
        const F h(block.load_if(before, 0, i), true);
        if constexpr (per_step)
          block.store(h.times(g), p.grad_a + at, i);
        else
          sums[i] = h.times(g, sums[i]);
      }
      if (per_step) a[i] = F(block.load(p.a + at, i), true);
      s[i] = zeroed ? V(0) : vanishing<complex>(g, a[i].times(g), V(0));
    }
    if (needs_a && !per_step && (k % few_steps == 0 || k == span.first))
      for (int i = 0; i < Block::count; ++i) {
        block.store(block.load(p.grad_a + place, i) + sums[i], p.grad_a + place, i);
        sums[i] = V(0);
      }
  }
  for (int i = 0; i < Block::count; ++i) block.store(s[i], p.grad_h0 + place, i);
}

template <bool complex, bool per_step, bool needs_a, class T>
void backward_share(const ScanBackward<T>& p, ThreadContext me) {
  const int64_t few = per_step && needs_a ? few_steps / 2 : few_steps;
  over_blocks<T, true>(p.sizes, few, me,
                       [&](auto block) RNNKERN_INLINE_LAMBDA { backward_block<complex, per_step, needs_a>(p, block); });
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
