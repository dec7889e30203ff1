// The strip functions of a cell with layer norm, over whole rows. R h is stored with the saved values until the whole
// row is there; then one thread computes the norms and equations of the row, regardless of which threads computed the
// product. Included once per SIMD level.
#pragma once

#include <cmath>
#include <optional>

#include "cells/cell.h"
#include "recurrence/cpu/rows.h"

namespace rnnkern {
namespace {

template <class T>
RNNKERN_INLINE Vec<T> first_lanes(Vec<T> x, int64_t lanes) {
  return lanes >= Vec<T>::width ? x : select(among_first<T>(lanes), x, Vec<T>(T(0)));
}

// The mean of f(i, lanes) over n elements, with four independent sums.
template <class T, class F>
RNNKERN_INLINE T mean_of(int64_t n, F f) {
  using V = Vec<T>;
  V sums[4] = {V(0), V(0), V(0), V(0)};
  int64_t i = 0;
  for (; i + 4 * V::width <= n; i += 4 * V::width) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[k] = sums[k] + f(i + k * V::width, V::all);
  }
  for_vectors<V>(i, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA { sums[0] = sums[0] + f(j, lanes); });
  T lanes[V::width];
  ((sums[0] + sums[1]) + (sums[2] + sums[3])).store(lanes);
  for (int half = V::width / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0] / T(n);
}

// (x - mean) / sqrt(variance + eps) of a row x of n elements.
template <class T>
struct Norm {
  using V = Vec<T>;
  static constexpr T eps = T(norm_eps);

  const T* x;
  int64_t n;
  V mean, rstd;

  Norm(const T* x, int64_t n) : x(x), n(n) {
    mean = V(mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(x + i, lanes); }));
    const T variance = mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
      const V d = first_lanes(V::load(x + i, lanes) - mean, lanes);
      return d * d;
    });
    rstd = V(T(1) / std::sqrt(variance + eps));
  }

  RNNKERN_INLINE V operator()(int64_t i, int64_t lanes) const { return (V::load(x + i, lanes) - mean) * rstd; }

  // Calls store(i, lanes, dL/dx), given the gradient of the output of the norm; `store` may overwrite that gradient.
  template <class Store>
  RNNKERN_INLINE void backward(const T* grad, Store store) const {
    const V level(mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(grad + i, lanes); }));
    const V along(mean_of<T>(
        n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(grad + i, lanes) * (*this)(i, lanes); }));
    for_vectors<V>(0, n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
      store(i, lanes, rstd * (V::load(grad + i, lanes) - level - (*this)(i, lanes) * along));
    });
  }
};

// norm * gain + bias, or without bias if it is null.
template <class T>
RNNKERN_INLINE Vec<T> affine(const Norm<T>& norm, const T* gain, const T* bias, int64_t i, int64_t lanes) {
  const Vec<T> scaled = norm(i, lanes) * Vec<T>::load(gain + i, lanes);
  return bias ? scaled + Vec<T>::load(bias + i, lanes) : scaled;
}

template <class T>
RNNKERN_INLINE void add(Vec<T> x, T* sum, int64_t lanes) {
  (Vec<T>::load(sum, lanes) + x).store(sum, lanes);
}

// The forward of a cell with layer norm, for a whole row; c' is kept in s.workspace until its norm.
template <class Equations, class T>
void normalised_forward(const ForwardStrip<T>& s) {
  using V = Vec<T>;
  constexpr int gates = Equations::gates, own = Equations::saved - gates, states = Equations::states;
  const Norm<T> norm(s.saved + own * s.hidden, gates * s.hidden);
  for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
    V u[gates], r[gates], old[states], next[states], save[Equations::saved];
    load_gates(u, gates, s.u, s.hidden, unit, lanes);
    for (int g = 0; g < gates; ++g) r[g] = affine(norm, s.params[0], s.bias, g * s.hidden + unit, lanes);
    for (int k = 0; k < states; ++k) old[k] = V::load(s.old[k] + unit, lanes);
    Equations::forward(u, r, old, static_cast<const V*>(nullptr), next, save);
    store_gates(save, own, s.saved, s.hidden, unit, lanes);
    next[states - 1].store((states > 1 ? s.workspace : s.next[0]) + unit, lanes);
  });
  if constexpr (states > 1) {
    const Norm<T> norm_c(s.workspace, s.hidden);
    for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V save[own];
      load_gates(save, own, s.saved, s.hidden, unit, lanes);
      Equations::output(save, affine(norm_c, s.params[1], s.params[2], unit, lanes)).store(s.next[0] + unit, lanes);
      V::load(s.workspace + unit, lanes).store(s.next[1] + unit, lanes);
    });
  }
}

// Recomputes c'.
template <class Equations, class T, class Strip>
void cells_again(const Strip& s, T* to) {
  using V = Vec<T>;
  constexpr int own = Equations::saved - Equations::gates;
  for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
    V save[own], old[2] = {V(0), V::load(s.old[1] + unit, lanes)};
    load_gates(save, own, s.saved, s.hidden, unit, lanes);
    Equations::next_c(save, old).store(to + unit, lanes);
  });
}

// Adds the gradient of c that passes through its norm to grad[1]; s.grad[0] is dL/dh'.
template <class Equations, class T>
void output_backward(const BackwardStrip<T>& s, const Norm<T>& norm_c, T* dc_workspace) {
  using V = Vec<T>;
  constexpr int own = Equations::saved - Equations::gates;
  for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
    V save[own];
    load_gates(save, own, s.saved, s.hidden, unit, lanes);
    const V y = affine(norm_c, s.params[1], s.params[2], unit, lanes);
    const V dy = Equations::output_backward(save, y, V::load(s.grad[0] + unit, lanes));
    add(dy * norm_c(unit, lanes), s.dparams[1] + unit, lanes);
    add(dy, s.dparams[2] + unit, lanes);
    (dy * V::load(s.params[1] + unit, lanes)).store(dc_workspace + unit, lanes);
  });
  norm_c.backward(dc_workspace,
                  [&](int64_t unit, auto lanes, V dc) RNNKERN_INLINE_LAMBDA { add(dc, s.grad[1] + unit, lanes); });
}

// The backward of such a cell, for a whole row.
template <class Equations, class T>
void normalised_backward(const BackwardStrip<T>& s) {
  using V = Vec<T>;
  constexpr int gates = Equations::gates, own = Equations::saved - gates, states = Equations::states;
  const Norm<T> norm(s.saved + own * s.hidden, gates * s.hidden);
  T *const dr_workspace = s.workspace, *const dc_workspace = dr_workspace + gates * s.hidden;
  std::optional<Norm<T>> norm_c;
  if constexpr (states > 1) {
    const T* cells = s.next[1];
    if (s.mixed)
      cells_again<Equations>(s, s.workspace + (gates + 1) * s.hidden), cells = s.workspace + (gates + 1) * s.hidden;
    norm_c.emplace(cells, s.hidden);
    output_backward<Equations>(s, *norm_c, dc_workspace);
  }
  for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
    V save[Equations::saved], old[states], next[states], grad[states], du[gates], dr[gates];
    load_gates(save, own, s.saved, s.hidden, unit, lanes);
    for (int g = 0; g < gates; ++g) save[own + g] = affine(norm, s.params[0], s.bias, g * s.hidden + unit, lanes);
    for (int k = 0; k < states; ++k) {
      old[k] = V::load(s.old[k] + unit, lanes);
      grad[k] = V::load(s.grad[k] + unit, lanes);
    }
    next[0] = V::load(s.next[0] + unit, lanes);
    if constexpr (states > 1) next[1] = affine(*norm_c, s.params[1], s.params[2], unit, lanes);
    Equations::backward(save, old, next, static_cast<const V*>(nullptr), grad, du, dr, static_cast<V*>(nullptr));
    for (int k = 0; k < states; ++k) grad[k].store(s.grad[k] + unit, lanes);
    store_gates(du, gates, s.du, s.hidden, unit, lanes);
    if (s.dr_sum) add_gates(dr, 0, gates, s.dr_sum, s.hidden, unit, lanes);
    if (s.du_sum) add_gates(du, 0, gates, s.du_sum, s.hidden, unit, lanes);
    for (int g = 0; g < gates; ++g) {
      const int64_t i = g * s.hidden + unit;
      add(dr[g] * norm(i, lanes), s.dparams[0] + i, lanes);
      (dr[g] * V::load(s.params[0] + i, lanes)).store(dr_workspace + i, lanes);
    }
  });
  norm.backward(dr_workspace, [&](int64_t i, auto lanes, V dr) RNNKERN_INLINE_LAMBDA { dr.store(s.dr + i, lanes); });
}

// The tangents of such a cell, for a whole row. The gradient of the equations for one of their results is a row of
// their Jacobian. The Jacobian of a norm is symmetric, so its backward is its tangent.
template <class Equations, class T>
void normalised_tangent(const TangentStrip<T>& s) {
  using V = Vec<T>;
  constexpr int gates = Equations::gates, own = Equations::saved - gates, states = Equations::states;
  const Norm<T> norm(s.saved + own * s.hidden, gates * s.hidden);
  norm.backward(s.r_tangent, [&](int64_t i, auto lanes, V of_norm) RNNKERN_INLINE_LAMBDA {
    V r = of_norm * V::load(s.params[0] + i, lanes);
    if (s.params_tangent[0]) r = r + norm(i, lanes) * V::load(s.params_tangent[0] + i, lanes);
    if (s.bias_tangent) r = r + V::load(s.bias_tangent + i, lanes);
    r.store(s.r_tangent + i, lanes);
  });
  T *const y_tangent = s.workspace, *const c_again = y_tangent + s.hidden;
  std::optional<Norm<T>> norm_c;
  if constexpr (states > 1) {
    if (s.mixed) cells_again<Equations>(s, c_again);
    norm_c.emplace(s.mixed ? c_again : s.next[1], s.hidden);
  }
  // The tangent of a result of the equations, except for its part through the norm of c.
  auto direct = [&](int result, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
    V save[Equations::saved], old[states], next[states], grad[states], du[gates], dr[gates];
    load_gates(save, own, s.saved, s.hidden, unit, lanes);
    for (int g = 0; g < gates; ++g) save[own + g] = affine(norm, s.params[0], s.bias, g * s.hidden + unit, lanes);
    for (int k = 0; k < states; ++k) {
      old[k] = V::load(s.old[k] + unit, lanes);
      grad[k] = V(k == result ? 1 : 0);
    }
    next[0] = V::load(s.next[0] + unit, lanes);
    if constexpr (states > 1) next[1] = affine(*norm_c, s.params[1], s.params[2], unit, lanes);
    Equations::backward(save, old, next, static_cast<const V*>(nullptr), grad, du, dr, static_cast<V*>(nullptr));
    V sum(0);
    for (int k = 0; k < states; ++k) sum = sum + grad[k] * V::load(s.old_tangent[k] + unit, lanes);
    for (int g = 0; g < gates; ++g) {
      sum = sum + dr[g] * V::load(s.r_tangent + g * s.hidden + unit, lanes);
      if (s.u_tangent) sum = sum + du[g] * V::load(s.u_tangent + g * s.hidden + unit, lanes);
    }
    return sum;
  };
  for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
    direct(states - 1, unit, lanes).store(s.next_tangent[states - 1] + unit, lanes);
  });
  if constexpr (states > 1) {
    norm_c->backward(s.next_tangent[1], [&](int64_t unit, auto lanes, V of_norm)
                                            RNNKERN_INLINE_LAMBDA { of_norm.store(y_tangent + unit, lanes); });
    for_vectors<V>(0, s.hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V save[own];
      load_gates(save, own, s.saved, s.hidden, unit, lanes);
      V y = V::load(y_tangent + unit, lanes) * V::load(s.params[1] + unit, lanes);
      if (s.params_tangent[1]) y = y + (*norm_c)(unit, lanes) * V::load(s.params_tangent[1] + unit, lanes);
      if (s.params_tangent[2]) y = y + V::load(s.params_tangent[2] + unit, lanes);
      const V slope = Equations::output_backward(save, affine(*norm_c, s.params[1], s.params[2], unit, lanes), V(1));
      (direct(0, unit, lanes) + slope * y).store(s.next_tangent[0] + unit, lanes);
    });
  }
}

}  // namespace
}  // namespace rnnkern
