// Runs the equations of a cell over strips (cells/strip.h) in SIMD vectors of units. kernels.h and level_strips.cpp
// include this file once per SIMD level.
#pragma once

#include "cells/cell.h"
#include "common/simd.h"
#include "common/simd_math.h"
#include "recurrence/cpu/normalised.h"
#include "recurrence/cpu/rows.h"

namespace rnnkern {
namespace {

constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

// `Equations` is a cell of cells/list.h: its numbers are constants and its functions are inlined.
template <class T, class Equations>
struct InlineCell {
  using V = Vec<T>;
  static constexpr CellNumbers n = numbers_of<Equations>;
  static constexpr int first_gates = n.first_gates, gates = n.gates, recurrent = n.recurrent, states = n.states;
  static constexpr int params = n.params, saved = n.saved, second_gates = n.two_products() ? first_gates : 0;
  static constexpr int first_of_u = first_gates < gates ? first_gates : gates;  // gates of u before a second product
  static constexpr bool joint = n.joint, projected = n.projected, normalised = n.normalised;
  static constexpr const int8_t* param_rows = Equations::param_rows;
  static_assert(states <= most_states && params <= most_params);
  static constexpr bool two_products() { return n.two_products(); }

  RNNKERN_INLINE static void prepare(const ForwardStrip<T>& s) {
    if constexpr (two_products())
      for_vectors<V>(s.begin, s.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V u[gates], r[recurrent], save[at_least_one(saved)], old[states], operand;
        load_gates(u, gates, s.u, s.hidden, unit, lanes);
        load_products(r, 0, first_gates, s, unit);
        load_states(old, s.old, unit, lanes);
        for (V& x : save) x = V(0);
        Equations::prepare(u, r, old, save, operand);
        store_gates(save, saved, s.saved, s.hidden, unit, lanes);
        operand.store(s.operand + unit, lanes);
      });
  }

  RNNKERN_INLINE static void forward(const ForwardStrip<T>& s) {
    for_vectors<V>(s.begin, s.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V u[gates], r[at_least_one(recurrent)], old[states], next[states];
      V own[at_least_one(params)], save[at_least_one(saved)];
      load_gates(u, gates, s.u, s.hidden, unit, lanes);
      load_products(r, second_gates, recurrent, s, unit);
      load_states(old, s.old, unit, lanes);
      for (int i = 0; i < params; ++i) own[i] = V::load(s.params[i] + unit, lanes);
      if constexpr (two_products()) load_gates(save, saved, s.saved, s.hidden, unit, lanes);
      Equations::forward(u, r, old, own, next, save);
      for (int i = 0; i < states; ++i) next[i].store(s.next[i] + unit, lanes);
      if (saved && s.saved) store_gates(save, saved, s.saved, s.hidden, unit, lanes);
    });
  }

  RNNKERN_INLINE static void backward(const BackwardStrip<T>& s) {
    for_vectors<V>(s.begin, s.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V save[at_least_one(saved)], own[at_least_one(params)], dparams[at_least_one(params)];
      V old[states], next[states], grad[states], du[gates], dr[at_least_one(recurrent)];
      load_gates(save, saved, s.saved, s.hidden, unit, lanes);
      // Prefetches what the next sequence reads in this step: hardware prefetchers do not follow such short runs.
      for (int g = 0; g < saved; ++g) __builtin_prefetch(s.saved_ahead + g * s.hidden + unit);
      for (int i = 0; i < params; ++i) {
        own[i] = V::load(s.params[i] + unit, lanes);
        dparams[i] = s.dparams[i] ? V::load(s.dparams[i] + unit, lanes) : V(0);
      }
      load_states(old, s.old, unit, lanes);
      load_states(next, s.next, unit, lanes);
      for (int i = 0; i < states; ++i) grad[i] = V::load(s.grad[i] + unit, lanes);
      if (s.grad_h) grad[0] = grad[0] + V::load(s.grad_h + unit, lanes);
      for (V& x : du) x = V(0);
      for (V& x : dr) x = V(0);
      Equations::backward(save, old, next, own, grad, du, dr, dparams);
      for (int i = 0; i < states; ++i) grad[i].store(s.grad[i] + unit, lanes);
      for (int i = 0; i < params; ++i)
        if (s.dparams[i]) dparams[i].store(s.dparams[i] + unit, lanes);
      store_gates(dr, recurrent, s.dr, s.hidden, unit, lanes);
      if constexpr (!joint) store_gates(du, gates, s.du, s.hidden, unit, lanes);
      if (s.dr_sum) add_gates(dr, second_gates, recurrent, s.dr_sum, s.hidden, unit, lanes);
      if (!joint && s.du_sum) add_gates(du, two_products() ? first_of_u : 0, gates, s.du_sum, s.hidden, unit, lanes);
      if constexpr (projected) Equations::unprojected(save, old).store(s.operand + unit, lanes);
    });
  }

  RNNKERN_INLINE static void prepare_backward(const BackwardStrip<T>& s) {
    if constexpr (two_products())
      for_vectors<V>(s.begin, s.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V save[at_least_one(saved)], old[states], grad[states], du[gates], dr[recurrent], operand;
        load_gates(save, saved, s.saved, s.hidden, unit, lanes);
        load_gates(dr, recurrent, s.dr, s.hidden, unit, lanes);
        if constexpr (!joint) load_gates(du, gates, s.du, s.hidden, unit, lanes);
        load_states(old, s.old, unit, lanes);
        for (int i = 0; i < states; ++i) grad[i] = V::load(s.grad[i] + unit, lanes);
        Equations::prepare_backward(save, old, V::load(s.doperand + unit, lanes), grad, du, dr, operand);
        for (int i = 0; i < states; ++i) grad[i].store(s.grad[i] + unit, lanes);
        // Until the next barrier other threads read dr of the later gates, so only earlier gates are written.
        store_gates(dr, first_gates, s.dr, s.hidden, unit, lanes);
        if constexpr (!joint) store_gates(du, first_of_u, s.du, s.hidden, unit, lanes);
        if (s.dr_sum) add_gates(dr, 0, first_gates, s.dr_sum, s.hidden, unit, lanes);
        if (!joint && s.du_sum) add_gates(du, 0, first_of_u, s.du_sum, s.hidden, unit, lanes);
        operand.store(s.operand + unit, lanes);
      });
  }

 private:
  RNNKERN_INLINE static void load_products(V* r, int begin, int end, const ForwardStrip<T>& s, int64_t unit) {
    const T* const from = s.r + (unit - s.begin) / V::width * s.r_vector;
    for (int g = begin; g < end; ++g) r[g] = V::load(from + (g - begin) * s.r_gate);
  }
  RNNKERN_INLINE static void load_states(V* to, const T* const* from, int64_t unit, int64_t lanes) {
    for (int i = 0; i < states; ++i) to[i] = V::load(from[i] + unit, lanes);
  }
};

template <class T, class Equations>
constexpr Strips<T> strips_of() {
  using Cell = InlineCell<T, Equations>;
  Strips<T> strips{};
  if constexpr (Cell::normalised) {
    strips.forward = &normalised_forward<Equations, T>;
    strips.backward = &normalised_backward<Equations, T>;
    strips.tangent = &normalised_tangent<Equations, T>;
  } else {
    strips.forward = [](const ForwardStrip<T>& s) { Cell::forward(s); };
    strips.backward = [](const BackwardStrip<T>& s) { Cell::backward(s); };
  }
  if constexpr (Cell::two_products()) {
    strips.prepare = [](const ForwardStrip<T>& s) { Cell::prepare(s); };
    strips.prepare_backward = [](const BackwardStrip<T>& s) { Cell::prepare_backward(s); };
  }
  return strips;
}

}  // namespace
}  // namespace rnnkern
