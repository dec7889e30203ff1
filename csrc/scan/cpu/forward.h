// h_t = a_t h_{t-1} + x_t. Included once per SIMD level.
#pragma once

#include "scan/cpu/strips.h"

namespace rnnkern {
namespace {

template <bool complex, bool per_step, class T, class Block>
RNNKERN_INLINE void forward_block(const ScanForward<T> p, const Block block) {
  using V = Vec<T>;
  using F = Factor<complex, T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = block.place(sizes);
  V s[Block::count];
  F a[Block::count];
  for (int i = 0; i < Block::count; ++i) {
    s[i] = block.load_if(block.first ? p.last : p.h0, place, i);
    if (!per_step) a[i] = F(block.load(p.a + block.column, i));
  }
  const Span span(sizes, block.group, block.first, block.last);
  for (int64_t k = span.first; k < span.last; ++k) {
    const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
    if (sizes.is_reset(t, block.group))
      for (V& x : s) x = V(0);
#pragma GCC unroll 4
    for (int i = 0; i < Block::count; ++i) {
      if (per_step) a[i] = F(block.load(p.a + at, i));
      const V x = block.load(p.x + at, i);
      s[i] = vanishing<complex>(s[i], a[i].times(s[i], x), x);
      if (p.h) block.store(s[i], p.h + at, i);
    }
  }
  for (int i = 0; i < Block::count; ++i) block.store(s[i], p.last + place, i);
}

template <bool complex, bool per_step, class T>
void forward_share(const ScanForward<T>& p, ThreadContext me) {
  over_blocks<T, false>(p.sizes, few_steps, me,
                        [&](auto block) RNNKERN_INLINE_LAMBDA { forward_block<complex, per_step>(p, block); });
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
