// The forward mode of the recurrence, for any cell through its strip functions. level_tangent.cpp includes this file
// once per SIMD level.
//
// A unit's new state depends on its old state, u, r and the parameters of the same unit. The cell's backward is linear
// in the gradient of the new state, so its results for a gradient of 1 in state k are row k of the Jacobian of a unit:
//   next_tangent[k] = sum_j A[k][j] old_tangent[j] + sum_g (R[k][g] r_tangent[g] + U[k][g] u_tangent[g])
//                     + sum_i P[k][i] params_tangent[i].
// These coefficients are computed once per sequence and step and used for all of its tangents.
#pragma once

#include "recurrence/cpu/orthonormal.h"
#include "recurrence/cpu/step.h"
#include "recurrence/tangent.h"

namespace rnnkern {
namespace {

constexpr int most_recurrent = 16;  // gates of R that the products of users' cells may have

// Rows are (sequence, tangent) pairs: row b * S + s.
template <class T>
struct TangentPlan {
  Workspace<T> workspace;
  const int64_t rows;
  Product<T> first, second, projection;
  Zoneouts<T> zoneout;
  Dropout<T> dropout;
  T* zeros;
  T* tangent[most_states];            // of the current state, rows of a state's width
  T *h_next, *r, *operand, *dropped;  // rows: the new tangent of h, of R h, of the second product's operand, and of h
                                      // after dropout
  T* m;                               // rows: the tangent of the projection's input
  // Per thread:
  T *local, *of_operand;  // coefficients of a sequence, and those of the second product's operand
  T *ones, *discarded;    // a row of ones; results that are not needed
  T *made, *norms;        // new tangents of one row with layer norm, and workspace for its norms
  T* covered;

  static Matrix<T> without_bias(Matrix<T> M) {
    M.bias = nullptr;
    return M;
  }

  TangentPlan(const Tangent<T>& p, ThreadContext me)
      : workspace{p.workspace},
        rows(p.steps.batch * p.count),
        first(without_bias(p.weights.R), 0, p.cell.first_gates, false, false, workspace, nullptr, me),
        second(without_bias(p.weights.R), p.cell.first_gates, p.cell.recurrent - p.cell.first_gates, false, false,
               workspace, nullptr, me),
        projection(p.weights.W_hr, 0, 1, false, false, workspace, nullptr, me),
        zoneout(p.noise, p.keep, p.cell, p.steps.batch, p.weights, workspace),
        dropout(p.noise, p.steps.batch, p.weights.width, workspace) {
    const CellNumbers& cell = p.cell;
    const int64_t hidden = p.weights.hidden, width = p.weights.width;
    zeros = workspace.alloc(larger(hidden, width));
    for (int k = 0; k < cell.states; ++k) tangent[k] = workspace.alloc(rows * (k ? hidden : width));
    h_next = workspace.alloc(rows * width);
    const int kept_gates = cell.normalised ? cell.recurrent : cell.two_products() ? cell.first_gates : 0;
    r = workspace.alloc(rows * kept_gates * hidden);
    operand = workspace.alloc(cell.two_products() ? rows * hidden : 0);
    dropped = p.noise.dropout > 0 ? workspace.alloc(rows * width) : nullptr;
    m = workspace.alloc(cell.projected ? rows * hidden : 0);
    local = workspace.alloc(cell.normalised ? 0 : cell.states * block(cell) * hidden, me);
    of_operand = workspace.alloc(cell.two_products() ? block(cell) * hidden : 0, me);
    ones = workspace.alloc(cell.two_products() ? hidden : 0, me);
    discarded = workspace.alloc(hidden, me);
    made = workspace.alloc(cell.normalised ? cell.states * hidden : 0, me);
    norms = workspace.alloc(cell.workspace_size(hidden), me);
    covered = workspace.alloc(p.every ? width + (cell.states - 1) * hidden : 0, me);
  }

  // The coefficients of one result, each a row of H: of the old states, r, the params, and of u where they are not
  // those of r.
  static int block(const CellNumbers& cell) {
    return cell.states + cell.recurrent + cell.params + (cell.joint ? 0 : cell.gates);
  }
};

// The tangents that the equations of a row read; all but `old` may be null.
template <class T>
struct Directions {
  const T *old[most_states], *u, *r, *params[most_params];
};

template <class T>
int64_t tangent_workspace(const Tangent<T>& p, int team) {
  return TangentPlan<T>(p, ThreadContext{0, team, nullptr}).workspace.used;
}

// Where the backward of a cell writes the coefficients of one result, for some units.
template <class T>
BackwardStrip<T> coefficients_of(const CellNumbers& cell, BackwardStrip<T> strip, T* block, int result) {
  const int64_t hidden = strip.hidden, units = strip.end - strip.begin;
  for (int j = 0; j < cell.states; ++j) {
    strip.grad[j] = block + j * hidden;
    for (int64_t unit = strip.begin; unit < strip.end; ++unit) strip.grad[j][unit] = j == result ? T(1) : T(0);
  }
  T* const r = block + cell.states * hidden;
  T* const params = r + cell.recurrent * hidden;
  for (int g = 0; g < cell.recurrent; ++g) clear(r + g * hidden + strip.begin, units);
  for (int i = 0; i < cell.params; ++i) {
    strip.dparams[i] = params + i * hidden;
    clear(strip.dparams[i] + strip.begin, units);
  }
  strip.dr = r;
  strip.du = cell.joint ? nullptr : params + cell.params * hidden;
  for (int g = 0; strip.du && g < cell.gates; ++g) clear(strip.du + g * hidden + strip.begin, units);
  return strip;
}

template <class T>
void tangent(const Tangent<T>& p, ThreadContext me) {
  using V = Vec<T>;
  const TangentPlan<T> plan(p, me);
  const CellNumbers& cell = p.cell;
  const int64_t hidden = p.weights.hidden, width = p.weights.width, total = p.steps.total(), count = p.count;
  const int block = TangentPlan<T>::block(cell);
  const WorkRange share(p.steps, false, me);
  // A thread takes whole sequences if there are enough of them, or if zoneout's draws of a sequence must be its own.
  const bool whole = p.steps.batch >= me.size || p.noise.any();
  const int64_t row0 = whole ? share.row0 * count : plan.rows * me.rank / me.size;
  const int64_t row_end = whole ? share.row1 * count : plan.rows * (me.rank + 1) / me.size;
  auto width_of = [&](int state) { return state ? hidden : width; };
  auto tangent_of = [&](int64_t i, int state) { return plan.tangent[state] + i * width_of(state); };

  plan.first.pack(me);
  plan.second.pack(me);
  plan.projection.pack(me);
  if (me.rank == 0) clear(plan.zeros, larger(hidden, width));
  plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
  for (int64_t unit = 0; cell.two_products() && unit < hidden; ++unit) plan.ones[unit] = 1;
  for (int64_t i = row0; i < row_end; ++i)
    for (int k = 0; k < cell.states; ++k)
      copy(tangent_of(i, k), p.initial[k] + (i % count * p.steps.batch + i / count) * width_of(k), width_of(k));
  const Range logs = me.share(p.every ? (p.steps.count + p.every - 1) / p.every * plan.rows : 0);
  clear(p.log_r + logs.begin, logs.end - logs.begin);
  clear(p.lost + row0, row_end - row0);
  me.barrier();

  int64_t stepped = 0;  // sequences with a step since the last orthonormalization
  for (int64_t k = 0; k < p.steps.count; ++k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), sequences = p.steps.rows(t);
    const int64_t row1 = smaller(row_end, sequences * count);
    const PreviousState<T> h_before(p.steps, p.state[0], p.h, plan.zeros, p.reset, width, t);
    const Units columns{0, width}, units{0, hidden};
    plan.zoneout.draw_step(cell, share, t, smaller(share.row1, sequences), columns, units);

    auto old_tangent = [&](int64_t i, int state) -> const T* {
      return h_before.is_reset(i / count) ? plan.zeros : tangent_of(i, state);
    };
    for (int64_t i = row0; plan.dropped && i < row1; ++i)
      drop(plan.dropout, i / count, old_tangent(i, 0), plan.dropped + i * width);
    auto factors = [&](int64_t i) { return plan.dropped ? plan.dropped + i * width : old_tangent(i, 0); };
    // The part of an (S, rows, columns) tensor that belongs to a row of this step.
    auto given = [&](const T* all, int64_t i, int64_t columns) -> const T* {
      return all ? all + (i % count * total + row + i / count) * columns : nullptr;
    };
    auto directions_of = [&](int64_t i) {
      Directions<T> from{};
      for (int s = 0; s < cell.states; ++s) from.old[s] = old_tangent(i, s);
      from.u = given(p.u_tangent, i, cell.gates * hidden);
      from.r = given(p.r_tangent, i, cell.recurrent * hidden);
      for (int n = 0; n < cell.params; ++n)
        if (p.params_tangent[n])
          from.params[n] = p.params_tangent[n] + i % count * (cell.normalised && n == 0 ? cell.recurrent : 1) * hidden;
      return from;
    };
    auto state_before = [&](int s) {
      return PreviousState<T>(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, t);
    };
    auto zoned = [&](int state, int64_t i, V next, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      if (!plan.zoneout[state].on()) return next;
      return plan.zoneout[state].mix(V::load(old_tangent(i, state) + unit, lanes), next, i / count, unit, lanes);
    };
    // Stores a new tangent. That of h waits in `h_next` until all products have read the old one.
    auto put = [&](int state, int64_t i, V next, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      T* const to = state ? tangent_of(i, state) : plan.h_next + i * width;
      zoned(state, i, next, unit, lanes).store(to + unit, lanes);
    };
    auto strip_of = [&](int64_t b, Units units) {
      BackwardStrip<T> strip{};
      strip.begin = units.begin, strip.end = units.end, strip.hidden = hidden;
      strip.saved = strip.saved_ahead = p.saved ? p.saved + (row + b) * cell.saved * hidden : nullptr;
      strip.old[0] = cell.projected ? plan.zeros : h_before(b);
      const T* const made = p.candidates ? p.candidates : p.h;
      strip.next[0] = cell.projected ? plan.zeros : made + (row + b) * hidden;
      for (int s = 1; s < cell.states; ++s) {
        strip.old[s] = state_before(s)(b);
        strip.next[s] = p.states[s] + (row + b) * hidden;
      }
      for (int i = 0; i < cell.params; ++i) strip.params[i] = p.weights.params[i];
      strip.operand = plan.discarded;
      return strip;
    };
    // The coefficients of a sequence for some units, which the rows of a product's panel use one after the other.
    int64_t local_sequence = -1, local_unit = -1;
    auto is_new = [&](int64_t b, Units units) {
      const bool same = b == local_sequence && units.begin == local_unit;
      local_sequence = b, local_unit = units.begin;
      return !same;
    };
    // One result of the equations: `r(g)` is the tangent of r.
    auto combined = [&](const T* coefficients, const Directions<T>& from, int64_t unit, auto lanes, int first_gate,
                        int last_gate, const V* r) RNNKERN_INLINE_LAMBDA {
      auto coefficient = [&](int place)
                             RNNKERN_INLINE_LAMBDA { return V::load(coefficients + place * hidden + unit, lanes); };
      V sum(0);
      for (int j = 0; j < cell.states; ++j)
        if (j > 0 || !cell.projected) sum = sum + coefficient(j) * V::load(from.old[j] + unit, lanes);
      for (int g = first_gate; g < last_gate; ++g) sum = sum + coefficient(cell.states + g) * r[g];
      for (int n = 0; n < cell.params; ++n)
        if (from.params[n])
          sum = sum + coefficient(cell.states + cell.recurrent + n) * V::load(from.params[n] + unit, lanes);
      if (from.u) {
        const int of_u = cell.states + (cell.joint ? 0 : cell.recurrent + cell.params);
        for (int g = 0; g < cell.gates; ++g)
          sum = sum + coefficient(of_u + g) * V::load(from.u + g * hidden + unit, lanes);
      }
      return sum;
    };
    // The tangents of r, from the results of a product with the gates first..last-1.
    auto load_r = [&](V* r, int first, int last, const T* results, const T* added, int64_t unit, auto lanes)
                      RNNKERN_INLINE_LAMBDA {
                        for (int g = first; g < last; ++g) {
                          r[g] = V::load(results + (g - first) * V::width);
                          if (added) r[g] = r[g] + V::load(added + g * hidden + unit, lanes);
                        }
                      };
    // The new tangents of some units of a row, from the results of the last product.
    auto advance = [&](int64_t i, Units units, const T* results) RNNKERN_INLINE_LAMBDA {
      const int64_t b = i / count;
      if (is_new(b, units))
        for (int result = 0; result < cell.states; ++result)
          p.strips.backward(coefficients_of(cell, strip_of(b, units), plan.local + result * block * hidden, result));
      const int first = cell.two_products() ? cell.first_gates : 0;
      const Directions<T> from = directions_of(i);
      for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V r[most_recurrent], next[most_states];
        for (int g = 0; g < first; ++g) r[g] = V::load(plan.r + (i * first + g) * hidden + unit, lanes);
        load_r(r, first, cell.recurrent, results + (unit - units.begin) * (cell.recurrent - first), from.r, unit,
               lanes);
        for (int result = 0; result < cell.states; ++result)
          next[result] = combined(plan.local + result * block * hidden, from, unit, lanes, 0, cell.recurrent, r);
        for (int result = cell.projected; result < cell.states; ++result) put(result, i, next[result], unit, lanes);
        if (cell.projected) next[0].store(plan.m + i * hidden + unit, lanes);
      });
    };

    if (cell.normalised) {
      plan.first.run(0, plan.first.panels(), row0, row1, factors,
                     [&](int64_t i, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                       const T* const added = directions_of(i).r;
                       for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                         V r[most_recurrent];
                         load_r(r, 0, cell.recurrent, results + (unit - q.unit) * cell.recurrent, added, unit, lanes);
                         store_gates(r, cell.recurrent, plan.r + i * cell.recurrent * hidden, hidden, unit, lanes);
                       });
                     });
      for (int64_t i = row0; i < row1; ++i) {
        const BackwardStrip<T> at = strip_of(i / count, units);
        TangentStrip<T> strip{};
        strip.hidden = hidden, strip.saved = at.saved, strip.bias = p.weights.R.bias, strip.workspace = plan.norms;
        strip.mixed = cell.states > 1 && plan.zoneout[1].on();
        const Directions<T> from = directions_of(i);
        strip.u_tangent = from.u, strip.r_tangent = plan.r + i * cell.recurrent * hidden;
        for (int s = 0; s < cell.states; ++s) {
          strip.old[s] = at.old[s], strip.next[s] = at.next[s];
          strip.old_tangent[s] = from.old[s], strip.next_tangent[s] = plan.made + s * hidden;
        }
        for (int n = 0; n < cell.params; ++n) {
          strip.params[n] = p.weights.params[n];
          strip.params_tangent[n] = from.params[n];
        }
        if (p.bias_tangent) strip.bias_tangent = p.bias_tangent + i % count * cell.recurrent * hidden;
        p.strips.tangent(strip);
        for (int s = 0; s < cell.states; ++s)
          for_vectors<V>(0, hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            put(s, i, V::load(plan.made + s * hidden + unit, lanes), unit, lanes);
          });
      }
    } else if (cell.recurrent == 0) {
      for (int64_t i = row0; i < row1; ++i) advance(i, units, nullptr);
    } else if (!cell.two_products()) {
      plan.first.run(0, plan.first.panels(), row0, row1, factors,
                     [&](int64_t i, const Panel<T>& q, const T* results)
                         RNNKERN_INLINE_LAMBDA { advance(i, {q.unit, q.unit + q.units}, results); });
    } else {
      const int first = cell.first_gates;
      plan.first.run(0, plan.first.panels(), row0, row1, factors,
                     [&](int64_t i, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                       const Units units{q.unit, q.unit + q.units};
                       const int64_t b = i / count;
                       if (is_new(b, units)) {
                         BackwardStrip<T> strip = coefficients_of(cell, strip_of(b, units), plan.of_operand, -1);
                         strip.doperand = plan.ones;
                         p.strips.prepare_backward(strip);
                       }
                       const Directions<T> from = directions_of(i);
                       for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                         V r[most_recurrent];
                         load_r(r, 0, first, results + (unit - q.unit) * first, from.r, unit, lanes);
                         store_gates(r, first, plan.r + i * first * hidden, hidden, unit, lanes);
                         const V operand = combined(plan.of_operand, from, unit, lanes, 0, first, r);
                         plan.dropout.apply(operand, b, unit, lanes).store(plan.operand + i * hidden + unit, lanes);
                       });
                     });
      local_sequence = -1;
      plan.second.run(
          0, plan.second.panels(), row0, row1, [&](int64_t i) { return plan.operand + i * hidden; },
          [&](int64_t i, const Panel<T>& q, const T* results)
              RNNKERN_INLINE_LAMBDA { advance(i, {q.unit, q.unit + q.units}, results); });
    }
    if (cell.projected)
      plan.projection.run(
          0, plan.projection.panels(), row0, row1, [&](int64_t i) { return plan.m + i * hidden; },
          [&](int64_t i, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
            const T* const added = given(p.projected_tangent, i, width);
            for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
              V next = V::load(results + column - q.unit);
              if (added) next = next + V::load(added + column, lanes);
              put(0, i, next, column, lanes);
            });
          });
    for (int64_t i = row0; i < row1; ++i) {
      copy(tangent_of(i, 0), plan.h_next + i * width, width);
      if (p.h_tangent)
        copy(p.h_tangent + (i % count * total + row + i / count) * width, plan.h_next + i * width, width);
    }

    stepped = larger(stepped, sequences);
    if (p.every && ((k + 1) % p.every == 0 || k + 1 == p.steps.count)) {
      if (!whole) me.barrier();
      for (int64_t b = whole ? share.row0 : me.rank; b < (whole ? smaller(share.row1, stepped) : stepped);
           b += whole ? 1 : me.size) {
        TangentRows<T> rows{cell.states, count, {}, {}};
        for (int s = 0; s < cell.states; ++s) rows.of[s] = tangent_of(b * count, s), rows.width[s] = width_of(s);
        orthonormalize(rows, p.log_r + (k / p.every * p.steps.batch + b) * count, p.lost + b * count, plan.covered);
      }
      if (!whole) me.barrier();
      stepped = 0;
    }
  }
  for (int64_t i = row0; i < row_end; ++i)
    for (int k = 0; k < cell.states; ++k)
      copy(p.final[k] + (i % count * p.steps.batch + i / count) * width_of(k), tangent_of(i, k), width_of(k));
}

}  // namespace
}  // namespace rnnkern
