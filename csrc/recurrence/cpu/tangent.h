// The forward mode of the recurrence, for any cell through its strip functions. level_tangent.cpp includes this file
// once per SIMD level.
#pragma once

#include "recurrence/cpu/tangent_plan.h"

namespace rnnkern {
namespace {

// What one thread does.
template <class T>
class TangentPass {
  using V = Vec<T>;

 public:
  TangentPass(const Tangent<T>& p, ThreadContext me)
      : p(p),
        me(me),
        cell(p.cell),
        plan(p, me),
        share(p.steps, false, me),
        hidden(p.weights.hidden),
        width(p.weights.width),
        count(p.count),
        block(TangentPlan<T>::block(cell)),
        first_gates(cell.two_products() ? cell.first_gates : 0),
        whole(p.steps.batch >= me.size || p.noise.any()),
        row0(whole ? share.row0 * count : plan.rows * me.rank / me.size),
        row_end(whole ? share.row1 * count : plan.rows * (me.rank + 1) / me.size) {}

  void run() {
    start();
    for (int64_t k = 0; k < p.steps.count; ++k) {
      const Step now = at(k);
      step(now);
      for (int64_t i = row0; i < now.row1; ++i) {
        copy(tangent_of(i, 0), plan.h_next + i * width, width);
        if (p.h_tangent) copy(p.h_tangent + given_row(now, i) * width, plan.h_next + i * width, width);
      }
      stepped = larger(stepped, now.sequences);
      if (p.every && ((k + 1) % p.every == 0 || k + 1 == p.steps.count)) orthonormalize_all(k);
    }
    for (int64_t i = row0; i < row_end; ++i)
      for (int s = 0; s < cell.states; ++s)
        copy(p.final[s] + batch_row(i) * width_of(s), tangent_of(i, s), width_of(s));
  }

 private:
  struct Step {
    int64_t t, row, sequences, row1;  // its number, its first row, its sequences, the last of this thread's rows
    PreviousState<T> h;               // the previous h
  };

  void start() {
    plan.first.pack(me);
    plan.second.pack(me);
    plan.projection.pack(me);
    if (me.rank == 0) clear(plan.zeros, larger(hidden, width));
    plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
    for (int64_t unit = 0; cell.two_products() && unit < hidden; ++unit) plan.ones[unit] = 1;
    for (int64_t i = row0; i < row_end; ++i)
      for (int s = 0; s < cell.states; ++s)
        copy(tangent_of(i, s), p.initial[s] + batch_row(i) * width_of(s), width_of(s));
    const Range logs = me.share(p.every ? (p.steps.count + p.every - 1) / p.every * plan.rows : 0);
    clear(p.log_r + logs.begin, logs.end - logs.begin);
    clear(p.lost + row0, row_end - row0);
    me.barrier();
  }

  Step at(int64_t k) const {
    const int64_t t = p.steps.at(k), sequences = p.steps.rows(t);
    return {t, p.steps.offset(t), sequences, smaller(row_end, sequences * count),
            PreviousState<T>(p.steps, p.state[0], p.h, plan.zeros, p.reset, width, t)};
  }

  void step(const Step& now) {
    plan.zoneout.draw_step(cell, share, now.t, smaller(share.row1, now.sequences), {0, width}, {0, hidden});
    for (int64_t i = row0; plan.dropped && i < now.row1; ++i)
      drop(plan.dropout, i / count, Rows<T>(old_tangent(now, i, 0)), plan.dropped + i * width);
    local_sequence = -1;
    auto finish = [&](int64_t i, Units units, const T* results) RNNKERN_INLINE_LAMBDA {
      if (cell.normalised) {
        keep_r(now, i, units, results, first_gates, cell.recurrent);
      } else {
        advance(now, i, units, results);
      }
    };
    if (cell.recurrent == 0) {
      for (int64_t i = row0; !cell.normalised && i < now.row1; ++i) advance(now, i, {0, hidden}, nullptr);
    } else if (!cell.two_products()) {
      multiply(plan.first, now, h_tangents(now), finish);
    } else {
      multiply(plan.first, now, h_tangents(now), [&](int64_t i, Units units, const T* results) RNNKERN_INLINE_LAMBDA {
        prepare(now, i, units, results);
      });
      local_sequence = -1;
      auto operand = [&](int64_t i) { return plan.operand + i * hidden; };
      multiply(plan.second, now, operand, finish);
    }
    for (int64_t i = row0; cell.normalised && i < now.row1; ++i) advance_normalised(now, i);
    if (!cell.projected) return;
    auto m = [&](int64_t i) { return plan.m + i * hidden; };
    multiply(plan.projection, now, m, [&](int64_t i, Units columns, const T* results) RNNKERN_INLINE_LAMBDA {
      const T* const added = given(p.projected_tangent, now, i, width);
      for_vectors<V>(columns.begin, columns.end, [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
        V next = V::load(results + column - columns.begin);
        if (added) next = next + V::load(added + column, lanes);
        put(now, 0, i, next, column, lanes);
      });
    });
  }

  auto h_tangents(const Step& now) const {
    return [this, &now](int64_t i) { return plan.dropped ? plan.dropped + i * width : old_tangent(now, i, 0); };
  }

  // All panels of a product for this thread's rows: finish(row, units, results of the row).
  template <class Operand, class Finish>
  RNNKERN_INLINE void multiply(const Product<T>& product, const Step& now, Operand operand, Finish finish) const {
    product.run(0, product.panels(), row0, now.row1, operand,
                [&](int64_t i, const Panel<T>& q, const T* results)
                    RNNKERN_INLINE_LAMBDA { finish(i, Units{q.unit, q.unit + q.units}, results); });
  }

  int64_t width_of(int state) const { return state ? hidden : width; }
  T* tangent_of(int64_t i, int state) const { return plan.tangent[state] + i * width_of(state); }
  const T* old_tangent(const Step& now, int64_t i, int state) const {
    return now.h.is_reset(i / count) ? plan.zeros : tangent_of(i, state);
  }
  // The place of a row in an (S, B, columns) tensor, and in an (S, rows, columns) tensor.
  int64_t batch_row(int64_t i) const { return i % count * p.steps.batch + i / count; }
  int64_t given_row(const Step& now, int64_t i) const { return i % count * p.steps.total() + now.row + i / count; }
  const T* given(const T* all, const Step& now, int64_t i, int64_t columns) const {
    return all ? all + given_row(now, i) * columns : nullptr;
  }

  Directions<T> directions_of(const Step& now, int64_t i) const {
    Directions<T> from{};
    for (int s = 0; s < cell.states; ++s) from.old[s] = old_tangent(now, i, s);
    from.u = given(p.u_tangent, now, i, cell.gates * hidden);
    from.r = given(p.r_tangent, now, i, cell.recurrent * hidden);
    for (int n = 0; n < cell.params; ++n)
      if (p.params_tangent[n]) from.params[n] = p.params_tangent[n] + i % count * cell.param_rows[n] * hidden;
    return from;
  }

  // Stores a new tangent, after zoneout. That of h waits in `h_next` until all products have read the old one.
  RNNKERN_INLINE void put(const Step& now, int state, int64_t i, V next, int64_t unit, int64_t lanes) const {
    if (plan.zoneout[state].on())
      next = plan.zoneout[state].mix(V::load(old_tangent(now, i, state) + unit, lanes), next, i / count, unit, lanes);
    next.store((state ? tangent_of(i, state) : plan.h_next + i * width) + unit, lanes);
  }

  BackwardStrip<T> strip_of(const Step& now, int64_t b, Units units) const {
    BackwardStrip<T> strip{};
    strip.begin = units.begin, strip.end = units.end, strip.hidden = hidden;
    strip.saved = strip.saved_ahead = p.saved ? p.saved + (now.row + b) * cell.saved * hidden : nullptr;
    strip.old[0] = cell.projected ? plan.zeros : now.h(b).template as<T>();
    const T* const made = p.candidates ? p.candidates : p.h;
    strip.next[0] = cell.projected ? plan.zeros : made + (now.row + b) * hidden;
    for (int s = 1; s < cell.states; ++s) {
      const PreviousState<T> old(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, now.t);
      strip.old[s] = old(b).template as<T>();
      strip.next[s] = p.states[s] + (now.row + b) * hidden;
    }
    for (int i = 0; i < cell.params; ++i) strip.params[i] = p.weights.params[i];
    strip.operand = plan.discarded;
    return strip;
  }

  // Whether the coefficients of a sequence for some units, which the rows of a product's panel use one after the other,
  // are yet to be computed.
  bool is_new(int64_t b, Units units) {
    const bool same = b == local_sequence && units.begin == local_unit;
    local_sequence = b, local_unit = units.begin;
    return !same;
  }

  // One result of the equations, from the tangents of r of some gates.
  RNNKERN_INLINE V combined(const T* coefficients, const Directions<T>& from, int64_t unit, int64_t lanes, int gates,
                            const V* r) const {
    auto coefficient = [&](int place)
                           RNNKERN_INLINE_LAMBDA { return V::load(coefficients + place * hidden + unit, lanes); };
    V sum(0);
    for (int j = cell.projected; j < cell.states; ++j) sum = sum + coefficient(j) * V::load(from.old[j] + unit, lanes);
    for (int g = 0; g < gates; ++g) sum = sum + coefficient(cell.states + g) * r[g];
    for (int n = 0; n < cell.params; ++n)
      if (from.params[n])
        sum = sum + coefficient(cell.states + cell.recurrent + n) * V::load(from.params[n] + unit, lanes);
    if (from.u) {
      const int of_u = cell.states + (cell.joint ? 0 : cell.recurrent + cell.params);
      for (int g = 0; g < cell.gates; ++g)
        sum = sum + coefficient(of_u + g) * V::load(from.u + g * hidden + unit, lanes);
    }
    return sum;
  }

  // The tangents of r, from the results of a product with the gates first..last-1.
  RNNKERN_INLINE void load_r(V* r, int first, int last, const T* results, const T* added, int64_t unit,
                             int64_t lanes) const {
    for (int g = first; g < last; ++g) {
      r[g] = V::load(results + (g - first) * V::width);
      if (added) r[g] = r[g] + V::load(added + g * hidden + unit, lanes);
    }
  }

  T* kept_r(int64_t i) const { return plan.r + i * plan.kept_gates * hidden; }

  // Keeps the tangents of r of some gates.
  RNNKERN_INLINE void keep_r(const Step& now, int64_t i, Units units, const T* results, int first, int last) const {
    const T* const added = directions_of(now, i).r;
    for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V r[most_recurrent];
      load_r(r, first, last, results + (unit - units.begin) * (last - first), added, unit, lanes);
      store_gates(r + first, last - first, kept_r(i) + first * hidden, hidden, unit, lanes);
    });
  }

  // The tangent of the second product's operand, for some units of a row.
  RNNKERN_INLINE void prepare(const Step& now, int64_t i, Units units, const T* results) {
    const int64_t b = i / count;
    if (is_new(b, units)) {
      BackwardStrip<T> strip = coefficients_of(cell, strip_of(now, b, units), plan.of_operand, -1);
      strip.doperand = plan.ones;
      p.strips.prepare_backward(strip);
    }
    keep_r(now, i, units, results, 0, first_gates);
    const Directions<T> from = directions_of(now, i);
    for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V r[most_recurrent];
      load_gates(r, first_gates, kept_r(i), hidden, unit, lanes);
      const V operand = combined(plan.of_operand, from, unit, lanes, first_gates, r);
      plan.dropout.apply(operand, b, unit, lanes).store(plan.operand + i * hidden + unit, lanes);
    });
  }

  // The new tangents of some units of a row, from the results of the last product.
  RNNKERN_INLINE void advance(const Step& now, int64_t i, Units units, const T* results) {
    const int64_t b = i / count;
    if (is_new(b, units))
      for (int result = 0; result < cell.states; ++result)
        p.strips.backward(coefficients_of(cell, strip_of(now, b, units), plan.local + result * block * hidden, result));
    const Directions<T> from = directions_of(now, i);
    for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V r[most_recurrent], next[most_states];
      load_gates(r, first_gates, kept_r(i), hidden, unit, lanes);
      load_r(r, first_gates, cell.recurrent, results + (unit - units.begin) * (cell.recurrent - first_gates), from.r,
             unit, lanes);
      for (int result = 0; result < cell.states; ++result)
        next[result] = combined(plan.local + result * block * hidden, from, unit, lanes, cell.recurrent, r);
      for (int result = cell.projected; result < cell.states; ++result) put(now, result, i, next[result], unit, lanes);
      if (cell.projected) next[0].store(plan.m + i * hidden + unit, lanes);
    });
  }

  // With norms: the new tangents of a whole row, from those of r.
  void advance_normalised(const Step& now, int64_t i) const {
    const BackwardStrip<T> at = strip_of(now, i / count, {0, hidden});
    TangentStrip<T> strip{};
    strip.hidden = hidden, strip.saved = at.saved, strip.workspace = plan.norms;
    const Directions<T> from = directions_of(now, i);
    strip.u_tangent = from.u, strip.r_tangent = kept_r(i);
    for (int s = 0; s < cell.states; ++s) {
      strip.old[s] = at.old[s];
      strip.old_tangent[s] = from.old[s], strip.next_tangent[s] = plan.made + s * hidden;
    }
    for (int n = 0; n < cell.params; ++n) {
      strip.params[n] = p.weights.params[n];
      strip.params_tangent[n] = from.params[n];
    }
    p.strips.tangent(strip);
    for (int s = 0; s < cell.states; ++s)
      for_vectors<V>(0, hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        put(now, s, i, V::load(plan.made + s * hidden + unit, lanes), unit, lanes);
      });
  }

  // Orthonormalizes the tangents of each sequence after step k.
  void orthonormalize_all(int64_t k) {
    if (!whole) me.barrier();
    const int64_t begin = whole ? share.row0 : me.rank, end = whole ? smaller(share.row1, stepped) : stepped;
    for (int64_t b = begin; b < end; b += whole ? 1 : me.size) {
      TangentRows<T> rows{cell.states, count, {}, {}};
      for (int s = 0; s < cell.states; ++s) rows.of[s] = tangent_of(b * count, s), rows.width[s] = width_of(s);
      orthonormalize(rows, p.log_r + (k / p.every * p.steps.batch + b) * count, p.lost + b * count, plan.covered);
    }
    if (!whole) me.barrier();
    stepped = 0;
  }

  const Tangent<T>& p;
  const ThreadContext me;
  const CellNumbers& cell;
  const TangentPlan<T> plan;
  const WorkRange share;
  const int64_t hidden, width, count;
  const int block, first_gates;
  // A thread takes whole sequences if there are enough of them, or if zoneout's draws of a sequence must be its own.
  const bool whole;
  const int64_t row0, row_end;
  int64_t stepped = 0;  // sequences with a step since the last orthonormalization
  int64_t local_sequence = -1, local_unit = -1;
};

}  // namespace
}  // namespace rnnkern
