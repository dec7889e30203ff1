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

// The state of `count` vectors of columns.
template <bool squares, int count, class T>
struct Moments {
  Vec<T> v[count], q[count];

  template <class Lanes>
  RNNKERN_INLINE void load(const T* from_v, const T* from_q, int64_t place, Lanes lanes) {
    for (int i = 0; i < count; ++i) {
      const int64_t at = place + i * Vec<T>::width;
      v[i] = from_v ? Vec<T>::load(from_v + at, lanes) : Vec<T>(0);
      if (squares) q[i] = from_q ? Vec<T>::load(from_q + at, lanes) : Vec<T>(0);
    }
  }
  template <class Lanes>
  RNNKERN_INLINE void store(T* to_v, T* to_q, int64_t place, Lanes lanes) const {
    for (int i = 0; i < count; ++i) {
      const int64_t at = place + i * Vec<T>::width;
      v[i].store(to_v + at, lanes);
      if (squares) q[i].store(to_q + at, lanes);
    }
  }
  RNNKERN_INLINE void clear() {
    for (int i = 0; i < count; ++i) v[i] = q[i] = Vec<T>(0);
  }
  RNNKERN_INLINE void step(int i, const MomentRule<T>& rule, Vec<T> u) {
    v[i] = fused(Vec<T>(rule.mu), v[i], Vec<T>(rule.s) * u);
    if (squares) q[i] = fused(Vec<T>(rule.beta), q[i], Vec<T>(1 - rule.beta) * (u * u));
  }
};

template <bool squares, int count, class T, class Lanes>
RNNKERN_INLINE void moments_forward_block(const MomentsForward<T> p, int64_t group, int64_t column, Lanes lanes,
                                          int64_t first, int64_t last) {
  using V = Vec<T>;
  const ScanSizes& sizes = p.sizes;
  const int64_t place = group * sizes.width + column, all = sizes.groups * sizes.width;
  Moments<squares, count, T> state;
  state.load(first ? p.v : p.v0, first ? p.q : p.q0, place, lanes);
  for (int64_t begin = first; begin < last; begin += few_steps) {
    if (p.kept && begin && begin % p.rule.every == 0) {
      T* const kept = p.kept + (begin / p.rule.every - 1) * 2 * all;
      state.store(kept, kept + all, place, lanes);
    }
    const Span span(sizes, group, begin, smaller(last, begin + few_steps));
    for (int64_t k = span.first; k < span.last; ++k) {
      const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
      if (sizes.is_reset(t, group)) state.clear();
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        state.step(i, p.rule, V::load(p.u + at + i * V::width, lanes));
        const V y = squares ? state.v[i] / root(state.q[i] + V(p.rule.eps)) : state.v[i];
        y.store(p.y + at + i * V::width, lanes);
      }
    }
  }
  state.store(p.v, p.q, place, lanes);
}

template <bool squares, int count, class T, class Lanes>
RNNKERN_INLINE void moments_backward_block(const MomentsBackward<T> p, int64_t group, int64_t column, Lanes lanes,
                                           int64_t first, int64_t last) {
  using V = Vec<T>;
  const ScanSizes& sizes = p.sizes;
  const MomentRule<T>& rule = p.rule;
  const int64_t place = group * sizes.width + column, all = sizes.groups * sizes.width;
  const bool at_end = last == sizes.steps;
  Moments<squares, count, T> to;  // gradients from the following steps
  to.load(at_end ? p.grad_v : p.grad_v0, at_end ? p.grad_q : p.grad_q0, place, lanes);
  for (int64_t begin = (last - 1) / rule.every * rule.every; begin >= first; begin -= rule.every) {
    const Span span(sizes, group, begin, smaller(last, begin + rule.every));
    V slope_v[longest_piece][count], slope_q[longest_piece][count];  // dy_t/dv_t and dy_t/dq_t
    if (squares) {
      const T* const kept = begin ? p.kept + (begin / rule.every - 1) * 2 * all : nullptr;
      Moments<squares, count, T> state;
      state.load(begin ? kept : p.v0, begin ? kept + all : p.q0, place, lanes);
      for (int64_t k = span.first; k < span.last; ++k) {
        const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
        if (sizes.is_reset(t, group)) state.clear();
#pragma GCC unroll 4
        for (int i = 0; i < count; ++i) {
          state.step(i, rule, V::load(p.u + at + i * V::width, lanes));
          const V slope = V(1) / root(state.q[i] + V(rule.eps));
          slope_v[k - begin][i] = slope;
          slope_q[k - begin][i] = V(T(-0.5)) * (state.v[i] * slope) * (slope * slope);
        }
      }
    }
    for (int64_t k = span.last - 1; k >= span.first; --k) {
      const int64_t t = step_at(sizes, k), at = sizes.row(t) + place;
      const bool zeroed = sizes.is_reset(t, group);
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        const int64_t here = at + i * V::width;
        const V grad = p.grad_y ? V::load(p.grad_y + here, lanes) : V(0);
        V grad_u;
        if constexpr (squares) {
          to.v[i] = fused(grad, slope_v[k - begin][i], to.v[i]);
          to.q[i] = fused(grad, slope_q[k - begin][i], to.q[i]);
          const V twice = V(2 * (1 - rule.beta)) * V::load(p.u + here, lanes);
          grad_u = fused(V(rule.s), to.v[i], twice * to.q[i]);
          to.q[i] = zeroed ? V(0) : V(rule.beta) * to.q[i];
        } else {
          to.v[i] = to.v[i] + grad;
          grad_u = V(rule.s) * to.v[i];
        }
        grad_u.store(p.grad_u + here, lanes);
        to.v[i] = zeroed ? V(0) : V(rule.mu) * to.v[i];
      }
    }
  }
  to.store(p.grad_v0, p.grad_q0, place, lanes);
}

template <bool squares, class T>
void moments_forward_share(const MomentsForward<T>& p, ThreadContext me) {
  over_blocks<T, false>(p.sizes, few_steps, me,
                        [&](int64_t group, int64_t column, auto vectors, auto lanes, int64_t first, int64_t last)
                            RNNKERN_INLINE_LAMBDA {
                              moments_forward_block<squares, vectors.value>(p, group, column, lanes, first, last);
                            });
}

template <bool squares, class T>
void moments_backward_share(const MomentsBackward<T>& p, ThreadContext me) {
  over_blocks<T, true>(p.sizes, p.rule.every, me,
                       [&](int64_t group, int64_t column, auto vectors, auto lanes, int64_t first, int64_t last)
                           RNNKERN_INLINE_LAMBDA {
                             moments_backward_block<squares, vectors.value>(p, group, column, lanes, first, last);
                           });
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
