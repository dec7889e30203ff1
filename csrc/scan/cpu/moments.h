// The moment filter. Both directions are here, because the backward repeats the forward's steps.
//
// v_t = mu v_{t-1} + s u_t, q_t = beta q_{t-1} + (1 - beta) u_t^2, y_t = v_t / sqrt(q_t + eps); without q, y_t = v_t.
//
// Backward: dL/dv_t = dL/dy_t / sqrt(q_t + eps) + mu dL/dv_{t+1},
//           dL/dq_t = -dL/dy_t v_t / (2 (q_t + eps)^(3/2)) + beta dL/dq_{t+1},
//           dL/du_t = s dL/dv_t + 2 (1 - beta) u_t dL/dq_t.
// v and q are recomputed piece by piece, from the states saved before each piece. Included once per SIMD level.
#pragma once

#include "scan/cpu/strips.h"

namespace rnnkern {
namespace {

// The state of a block, v and q, or its gradient.
template <bool squares, class T, class Block>
struct Moments {
  Vec<T> v[Block::count], q[Block::count];

  RNNKERN_INLINE void load(const Block& block, const T* from_v, const T* from_q, int64_t place) {
    for (int i = 0; i < Block::count; ++i) {
      v[i] = block.load_if(from_v, place, i);
      if (squares) q[i] = block.load_if(from_q, place, i);
    }
  }
  RNNKERN_INLINE void store(const Block& block, T* to_v, T* to_q, int64_t place) const {
    for (int i = 0; i < Block::count; ++i) {
      block.store(v[i], to_v + place, i);
      if (squares) block.store(q[i], to_q + place, i);
    }
  }
  RNNKERN_INLINE void clear() {
    for (int i = 0; i < Block::count; ++i) v[i] = q[i] = Vec<T>(0);
  }
  RNNKERN_INLINE void step(int i, const MomentRule<T>& rule, Vec<T> u) {
    v[i] = fused(Vec<T>(rule.mu), v[i], Vec<T>(rule.s) * u);
    if (squares) q[i] = fused(Vec<T>(rule.beta), q[i], Vec<T>(1 - rule.beta) * (u * u));
  }
};

// Where the state before step `begin` is saved: v of all groups, then q.
template <class T>
int64_t place_of_kept(const ScanSizes& sizes, const MomentRule<T>& rule, int64_t begin) {
  return (begin / rule.every - 1) * 2 * sizes.groups * sizes.width;
}

template <bool squares, class T, class Block>
RNNKERN_INLINE void moments_forward_block(const MomentsForward<T> p, const Block block) {
  using V = Vec<T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = block.place(sizes), all = sizes.groups * sizes.width;
  Moments<squares, T, Block> state;
  state.load(block, block.first ? p.v : p.v0, block.first ? p.q : p.q0, place);
  for (int64_t begin = block.first; begin < block.last; begin += few_steps) {
    if (p.kept && begin && begin % p.rule.every == 0) {
      T* const kept = p.kept + place_of_kept(sizes, p.rule, begin);
      state.store(block, kept, kept + all, place);
    }
    const Span span(sizes, block.group, begin, smaller(block.last, begin + few_steps));
    for (int64_t k = span.first; k < span.last; ++k) {
      const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
      if (sizes.is_reset(t, block.group)) state.clear();
#pragma GCC unroll 4
      for (int i = 0; i < Block::count; ++i) {
        state.step(i, p.rule, block.load(p.u + at, i));
        const V y = squares ? state.v[i] / root(state.q[i] + V(p.rule.eps)) : state.v[i];
        block.store(y, p.y + at, i);
      }
    }
  }
  state.store(block, p.v, p.q, place);
}

// dy_t/dv_t and dy_t/dq_t of the steps of a piece.
template <class T, int count>
struct Slopes {
  Vec<T> v[longest_piece][count], q[longest_piece][count];
};

// Recomputes v and q of a piece for its slopes.
template <class T, class Block>
RNNKERN_INLINE void find_slopes(const MomentsBackward<T>& p, const Block& block, int64_t begin, Span span,
                                Slopes<T, Block::count>& slopes) {
  using V = Vec<T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = block.place(sizes), all = sizes.groups * sizes.width;
  const T* const kept = begin ? p.kept + place_of_kept(sizes, p.rule, begin) : nullptr;
  Moments<true, T, Block> state;
  state.load(block, begin ? kept : p.v0, begin ? kept + all : p.q0, place);
  for (int64_t k = span.first; k < span.last; ++k) {
    const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
    if (sizes.is_reset(t, block.group)) state.clear();
#pragma GCC unroll 4
    for (int i = 0; i < Block::count; ++i) {
      state.step(i, p.rule, block.load(p.u + at, i));
      const V slope = V(1) / root(state.q[i] + V(p.rule.eps));
      slopes.v[k - begin][i] = slope;
      slopes.q[k - begin][i] = V(T(-0.5)) * (state.v[i] * slope) * (slope * slope);
    }
  }
}

template <bool squares, class T, class Block>
RNNKERN_INLINE void moments_backward_block(const MomentsBackward<T> p, const Block block) {
  using V = Vec<T>;
  const ScanSizes& sizes = p.sizes;
  const MomentRule<T>& rule = p.rule;
  const int64_t place = block.place(sizes);
  const bool at_end = block.last == sizes.steps;
  Moments<squares, T, Block> to;  // gradients from the following steps
  to.load(block, at_end ? p.grad_v : p.grad_v0, at_end ? p.grad_q : p.grad_q0, place);
  for (int64_t begin = (block.last - 1) / rule.every * rule.every; begin >= block.first; begin -= rule.every) {
    const Span span(sizes, block.group, begin, smaller(block.last, begin + rule.every));
    Slopes<T, Block::count> slopes;
    if constexpr (squares) find_slopes(p, block, begin, span, slopes);
    for (int64_t k = span.last - 1; k >= span.first; --k) {
      const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
      const bool zeroed = sizes.is_reset(t, block.group);
#pragma GCC unroll 4
      for (int i = 0; i < Block::count; ++i) {
        const V grad = block.load_if(p.grad_y, at, i);
        V grad_u;
        if constexpr (squares) {
          to.v[i] = fused(grad, slopes.v[k - begin][i], to.v[i]);
          to.q[i] = fused(grad, slopes.q[k - begin][i], to.q[i]);
          const V twice = V(2 * (1 - rule.beta)) * block.load(p.u + at, i);
          grad_u = fused(V(rule.s), to.v[i], twice * to.q[i]);
          to.q[i] = zeroed ? V(0) : V(rule.beta) * to.q[i];
        } else {
          to.v[i] = to.v[i] + grad;
          grad_u = V(rule.s) * to.v[i];
        }
        block.store(grad_u, p.grad_u + at, i);
        to.v[i] = zeroed ? V(0) : V(rule.mu) * to.v[i];
      }
    }
  }
  to.store(block, p.grad_v0, p.grad_q0, place);
}

template <bool squares, class T>
void moments_forward_share(const MomentsForward<T>& p, ThreadContext me) {
  over_blocks<T, false>(p.sizes, few_steps, me,
                        [&](auto block) RNNKERN_INLINE_LAMBDA { moments_forward_block<squares>(p, block); });
}

template <bool squares, class T>
void moments_backward_share(const MomentsBackward<T>& p, ThreadContext me) {
  over_blocks<T, true>(p.sizes, p.rule.every, me,
                       [&](auto block) RNNKERN_INLINE_LAMBDA { moments_backward_block<squares>(p, block); });
}

template <class T>
void moments_forward(const MomentsForward<T>& p, ThreadContext me) {
  (p.rule.squares ? moments_forward_share<true, T> : moments_forward_share<false, T>)(p, me);
}

template <class T>
void moments_backward(const MomentsBackward<T>& p, ThreadContext me) {
  (p.rule.squares ? moments_backward_share<true, T> : moments_backward_share<false, T>)(p, me);
}

}  // namespace
}  // namespace rnnkern
