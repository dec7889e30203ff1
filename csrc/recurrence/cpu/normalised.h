// The strip functions of a cell with norms, over whole rows. The products of a row wait in memory until all are there;
// then one thread computes its norms and equations, regardless of which threads computed the products. Included once
// per SIMD level.
#pragma once

#include <cmath>
#include <utility>

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
  return horizontal_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / T(n);
}

// A norm of a row, x -> (x - mean) / sqrt(variance + eps), and its derivative, which is symmetric: it takes a tangent
// dx of the inputs to that of the results, and a gradient of the results to that of the inputs.
template <class T>
struct Norm {
  using V = Vec<T>;

  const T* x;  // the inputs
  T* dx;       // the tangents or gradients
  V mean, rstd;
  V level, along;  // means of dx, and of dx times the results

  // Not inlined, because it takes longer to compile than the equations of some cells.
  [[gnu::noinline]] void measure(const NormFacts& facts, int64_t hidden) {
    const int64_t n = facts.values * hidden;
    mean = V(facts.centered
                 ? mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(x + i, lanes); })
                 : T(0));
    const T variance = mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
      const V d = first_lanes(V::load(x + i, lanes) - mean, lanes);
      return d * d;
    });
    rstd = V(T(1) / std::sqrt(variance + T(facts.eps)));
    level = along = V(0);
  }

  RNNKERN_INLINE V operator()(int64_t i, int64_t lanes) const { return (V::load(x + i, lanes) - mean) * rstd; }

  // Stores a vector of dx, and adds it to the sums of which `finish` makes the means.
  RNNKERN_INLINE void put(V given, int64_t i, int64_t lanes) {
    given.store(dx + i, lanes);
    const V counted = first_lanes(given, lanes);
    level = level + counted;
    along = along + counted * (*this)(i, lanes);
  }
  RNNKERN_INLINE void finish(const NormFacts& facts, int64_t hidden) {
    const T n = T(facts.values * hidden);
    level = V(facts.centered ? horizontal_sum(level) / n : T(0));
    along = V(horizontal_sum(along) / n);
  }
  RNNKERN_INLINE V derivative(int64_t i, int64_t lanes) const {
    return rstd * (V::load(dx + i, lanes) - level - (*this)(i, lanes) * along);
  }
};

template <int first, int last, class F>
RNNKERN_INLINE void for_passes(F f) {
  if constexpr (first <= last) {
    f(std::integral_constant<int, first>());
    for_passes<first + 1, last>(f);
  }
}

// The norms of a row, and what all passes over it read.
template <class Equations, class T, class Strip>
struct NormalisedRow {
  using V = Vec<T>;
  static constexpr int first = numbers_of<Equations>.recurrent - numbers_of<Equations>.second_gates();  // gate in s.r

  const Strip& s;
  Norm<T> norms[Equations::norms];
  int64_t unit = 0, lanes = V::width;

  RNNKERN_INLINE explicit NormalisedRow(const Strip& s) : s(s) {
    T* workspace = s.workspace;
    for (int n = 0; n < Equations::norms; ++n) {
      const NormFacts& facts = Equations::norm_facts[n];
      norms[n].dx = workspace;
      workspace += facts.values * s.hidden;
      norms[n].x = facts.slot >= 0 ? s.saved + facts.slot * s.hidden : workspace;
      if (facts.slot < 0) workspace += facts.values * s.hidden;
    }
  }

  // Calls f(norm, facts) for the norms of a level.
  template <class F>
  RNNKERN_INLINE void of_level(int level, F f) {
#pragma GCC unroll 3
    for (int n = 0; n < Equations::norms; ++n)
      if (Equations::norm_facts[n].level == level) f(norms[n], Equations::norm_facts[n]);
  }
  RNNKERN_INLINE void measure(int level) {
    of_level(level, [&](Norm<T>& norm, const NormFacts& facts) { norm.measure(facts, s.hidden); });
  }
  RNNKERN_INLINE void finish(int level) {
    of_level(level, [&](Norm<T>& norm, const NormFacts& facts) { norm.finish(facts, s.hidden); });
  }
  template <class F>
  RNNKERN_INLINE void for_units(F f) {
    for_vectors<V>(0, s.hidden, [&](int64_t first, auto count) RNNKERN_INLINE_LAMBDA {
      unit = first, lanes = count;
      f();
    });
  }
  // Recomputes the inputs of norms from the saved values, and measures all norms.
  template <class Self>
  RNNKERN_INLINE static void measure_again(Self& at) {
    for_passes<0, Equations::levels - 1>([&](auto pass) RNNKERN_INLINE_LAMBDA {
      at.for_units([&]() RNNKERN_INLINE_LAMBDA { Equations::template inputs<pass, V>(at); });
      at.measure(pass);
    });
  }

  RNNKERN_INLINE int64_t place(int value) const { return value * s.hidden + unit; }
  RNNKERN_INLINE V load(const T* row, int value) const { return V::load(row + place(value), lanes); }
  RNNKERN_INLINE V load_if(const T* row, int value) const { return row ? load(row, value) : V(0); }
  RNNKERN_INLINE void store(V x, T* row, int value) const { x.store(row + place(value), lanes); }
  RNNKERN_INLINE void add(V x, T* row, int value) const { store(load(row, value) + x, row, value); }

  RNNKERN_INLINE V saved(int value) const { return load(s.saved, value); }
  RNNKERN_INLINE V old(int state) const { return load(s.old[state], 0); }
  RNNKERN_INLINE V param(int i, int value) const { return load(s.params[i], value); }
  RNNKERN_INLINE V norm(int n, int value) const { return norms[n](place(value), lanes); }
  RNNKERN_INLINE void set_input(int n, int value, V x) const { store(x, const_cast<T*>(norms[n].x), value); }
};

template <class Equations, class T>
struct ForwardRow : NormalisedRow<Equations, T, ForwardStrip<T>> {
  using Base = NormalisedRow<Equations, T, ForwardStrip<T>>;
  using Base::s;
  using V = Vec<T>;

  // Inputs that are products are where these are, which are among the saved values only if they are kept.
  RNNKERN_INLINE explicit ForwardRow(const ForwardStrip<T>& s) : Base(s) {
    for (int n = 0; n < Equations::norms; ++n) {
      const int gate = Equations::norm_facts[n].slot - Equations::r_slot;
      if (Equations::r_slot >= 0 && gate >= 0 && gate < Equations::recurrent) this->norms[n].x = s.r + gate * s.hidden;
    }
  }

  RNNKERN_INLINE V u(int gate) const { return this->load(s.u, gate); }
  RNNKERN_INLINE V r(int gate) const { return this->load(s.r, gate - Base::first); }
  RNNKERN_INLINE void set_saved(int value, V x) const { this->store(x, s.saved, value); }
  RNNKERN_INLINE void set_next(int state, V x) const { this->store(x, s.next[state], 0); }
};

template <class Equations, class T>
struct BackwardRow : NormalisedRow<Equations, T, BackwardStrip<T>> {
  using Base = NormalisedRow<Equations, T, BackwardStrip<T>>;
  using Base::s;
  using V = Vec<T>;

  RNNKERN_INLINE explicit BackwardRow(const BackwardStrip<T>& s) : Base(s) {}

  // Hides `saved` and `norm`, to prefetch what the next sequence reads in this step.
  RNNKERN_INLINE V saved(int value) const {
    __builtin_prefetch(s.saved_ahead + this->place(value));
    return Base::saved(value);
  }
  RNNKERN_INLINE V norm(int n, int value) const {
    const int slot = Equations::norm_facts[n].slot;
    if (slot >= 0) __builtin_prefetch(s.saved_ahead + this->place(slot + value));
    return Base::norm(n, value);
  }
  RNNKERN_INLINE V grad(int state) const { return this->load(s.grad[state], 0); }
  RNNKERN_INLINE V dinput(int n, int value) const { return this->norms[n].derivative(this->place(value), this->lanes); }
  RNNKERN_INLINE void set_dnorm(int n, int value, V x) { this->norms[n].put(x, this->place(value), this->lanes); }
  RNNKERN_INLINE void set_grad(int state, V x) const { this->store(x, s.grad[state], 0); }
  // `prepare_backward` adds to the sums of the gates before a second product.
  RNNKERN_INLINE void set_du(int gate, V x) const {
    this->store(x, s.du, gate);
    if (s.du_sum && gate >= Base::first) this->add(x, s.du_sum, gate);
  }
  RNNKERN_INLINE void set_dr(int gate, V x) const {
    this->store(x, s.dr, gate);
    if (s.dr_sum && gate >= Base::first) this->add(x, s.dr_sum, gate);
  }
  RNNKERN_INLINE void add_dparam(int i, int value, V x) const {
    if (s.dparams[i]) this->add(x, s.dparams[i], value);
  }
};

template <class Equations, class T>
struct TangentRow : NormalisedRow<Equations, T, TangentStrip<T>> {
  using Base = NormalisedRow<Equations, T, TangentStrip<T>>;
  using Base::s;
  using V = Vec<T>;

  RNNKERN_INLINE explicit TangentRow(const TangentStrip<T>& s) : Base(s) {}

  RNNKERN_INLINE V u_tangent(int gate) const { return this->load_if(s.u_tangent, gate); }
  RNNKERN_INLINE V r_tangent(int gate) const { return this->load_if(s.r_tangent, gate); }
  RNNKERN_INLINE V old_tangent(int state) const { return this->load(s.old_tangent[state], 0); }
  RNNKERN_INLINE V param_tangent(int i, int value) const { return this->load_if(s.params_tangent[i], value); }
  RNNKERN_INLINE V norm_tangent(int n, int value) const {
    return this->norms[n].derivative(this->place(value), this->lanes);
  }
  RNNKERN_INLINE void set_tangent(int n, int value, V x) { this->norms[n].put(x, this->place(value), this->lanes); }
  RNNKERN_INLINE void set_next(int state, V x) const { this->store(x, s.next_tangent[state], 0); }
};

template <class Equations, class T>
void normalised_forward(const ForwardStrip<T>& s) {
  ForwardRow<Equations, T> at(s);
  for_passes<0, Equations::levels>([&](auto pass) RNNKERN_INLINE_LAMBDA {
    at.for_units([&]() RNNKERN_INLINE_LAMBDA { Equations::template forward<pass, Vec<T>>(at); });
    at.measure(pass);
  });
}

template <class Equations, class T>
void normalised_backward(const BackwardStrip<T>& s) {
  BackwardRow<Equations, T> at(s);
  at.measure_again(at);
  for_passes<0, Equations::levels>([&](auto k) RNNKERN_INLINE_LAMBDA {
    constexpr int pass = Equations::levels - 1 - k;
    at.for_units([&]() RNNKERN_INLINE_LAMBDA { Equations::template backward<pass, Vec<T>>(at); });
    at.finish(pass);
  });
}

template <class Equations, class T>
void normalised_tangent(const TangentStrip<T>& s) {
  TangentRow<Equations, T> at(s);
  at.measure_again(at);
  for_passes<0, Equations::levels>([&](auto pass) RNNKERN_INLINE_LAMBDA {
    at.for_units([&]() RNNKERN_INLINE_LAMBDA { Equations::template tangent<pass, Vec<T>>(at); });
    at.finish(pass);
  });
}

}  // namespace
}  // namespace rnnkern
