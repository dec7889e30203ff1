// The forward loop over time. kernels.h includes this file once per SIMD level.
#pragma once

#include "recurrence/cpu/step.h"

namespace rnnkern {
namespace {

template <class S>
struct ForwardPlan {
  using T = Arithmetic<S>;
  using F = OperandT<S>;

  int64_t chunk;  // number of steps that are projected together
  Workspace<T> workspace;
  StepProducts<S> products;
  Product<F> projection;
  Zoneouts<T> zoneout;
  Dropout<T> dropout;
  T *zeros, *carried, *saved, *u;
  T *u_row, *m_row;  // per thread: u and m in T, where products use another type than the equations
  T* unmixed;        // per thread: new states except h, before zoneout
  F *initial, *dropped, *operand, *m;

  ForwardPlan(const Forward<S>& p, ThreadContext me)
      : chunk(chunk_steps(p, p.below, me.size)),
        workspace{p.workspace},
        products(p, chunk * p.steps.batch, p.split_hidden && p.steps.count == 1,
                 p.split_hidden && p.steps.count <= chunk, workspace, me),
        projection(p.weights.W_hr, 0, 1, false, p.split_hidden && p.steps.count == 1, workspace, nullptr, me, p.parts,
                   p.steps.batch),
        zoneout(p.noise, p.keep, p.cell, p.steps.batch, p.weights, workspace),
        dropout(p.noise, p.steps.batch, p.weights.width, workspace) {
    const CellNumbers& cell = p.cell;
    const int64_t hidden = p.weights.hidden, batch = p.steps.batch, state_size = batch * p.weights.width;
    zeros = workspace.alloc(larger(p.weights.width, hidden));
    initial = has_bf16_dot<S> ? workspace.template alloc_as<F>(state_size) : nullptr;
    dropped = p.noise.dropout > 0 ? workspace.template alloc_as<F>(2 * state_size) : nullptr;  // like `carried`
    operand = cell.two_products() ? workspace.template alloc_as<F>(batch * hidden) : nullptr;
    saved = (cell.two_products() || cell.normalised) && !p.saved ? workspace.alloc(batch * cell.saved * hidden)
                                                                 : nullptr;  // of one step
    carried = narrow<S> ? workspace.alloc(2 * state_size)
                        : nullptr;  // h between two steps, because the h of the output is rounded
    u = p.x ? workspace.alloc(chunk * batch * products.u_size()) : nullptr;
    m = cell.projected ? workspace.template alloc_as<F>(batch * hidden)
                       : nullptr;  // input of the projection of h, of one step
    u_row = narrow<S> || p.x ? workspace.alloc(cell.gates * hidden, me) : nullptr;
    m_row = cell.projected && has_bf16_dot<S> ? workspace.alloc(hidden, me) : nullptr;
    unmixed = zoneout.any() ? workspace.alloc(cell.states * hidden, me) : nullptr;
  }
};

template <class S>
int64_t forward_workspace(const Forward<S>& p, int team) {
  return ForwardPlan<S>(p, ThreadContext{0, team, nullptr}).workspace.used;
}

template <class S, class Cell>
void forward(const Forward<S>& p, ThreadContext me, const Cell& equations) {
  using T = Arithmetic<S>;
  using F = OperandT<S>;
  using V = Vec<T>;
  const ForwardPlan<S> plan(p, me);
  const int64_t hidden = p.weights.hidden, columns = equations.gates * hidden;
  const int64_t width = equations.projected ? p.weights.width : hidden, state_size = p.steps.batch * width;
  plan.products.pack(me);
  plan.projection.pack(me);
  if (me.rank == 0) clear(plan.zeros, larger(width, hidden));
  const WorkRange share(p.steps, p.split_hidden, me);
  auto copy_in = [&](T* to, const T* from, int64_t row) {
    copy(to + share.copy0 * row, from + share.copy0 * row, (share.copy1 - share.copy0) * row);
  };
  for (int s = 0; s < equations.states; ++s) copy_in(p.final_state[s], p.state[s], s ? hidden : width);
  for (int half = 0; narrow<S> && half < 2; ++half) copy_in(plan.carried + half * state_size, p.state[0], width);
  if constexpr (has_bf16_dot<S>)
    for (int64_t i = share.copy0 * width; i < share.copy1 * width; i += V::width)
      store(V::load(p.state[0] + i, share.copy1 * width - i), plan.initial + i, share.copy1 * width - i);
  plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
  for (int half = 0; plan.dropped && half < 2; ++half)
    for (int64_t b = share.copy0; b < share.copy1; ++b)
      drop(plan.dropout, b, p.state[0] + b * width, plan.dropped + half * state_size + b * width);
  me.barrier();
  const Product<F>& by_units = equations.two_products() ? plan.products.second : plan.products.first;
  const Product<F>& by_columns = equations.projected ? plan.projection : by_units;
  const Units units = units_of(by_units, share, hidden), own_columns = units_of(by_columns, share, width);
  // Whether a state of all steps is kept and nothing changes it after the equations: then each step reads what the step
  // before wrote there. Otherwise the state of the step before is in `final_state`.
  auto in_sequence = [&](int s) { return p.states[s] && !plan.zoneout[s].on(); };

  const int64_t u_rows = plan.chunk * (share.row1 - share.row0);
  T* const projected = p.x ? plan.u + plan.chunk * share.row0 * plan.products.u_size() : nullptr;
  for (int64_t begin = 0; begin < p.steps.count; begin += plan.chunk) {
    const Chunk chunk(p.steps, begin, smaller(begin + plan.chunk, p.steps.count), share);
    if (p.below) p.below->wait(chunk.end);
    if (p.x) plan.products.project(p.x, share, chunk, u_rows, projected);
    for (int64_t k = begin; k < chunk.end; ++k) {
      const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
      // Steps read one half of `carried` and write the other.
      T* const carried_next = narrow<S> ? plan.carried + ((k + 1) & 1) * state_size : nullptr;
      const PreviousState<T> h_before = [&] {
        if constexpr (narrow<S>)
          return PreviousState<T>(p.steps, plan.carried + (k & 1) * state_size, plan.zeros, p.reset, width, t);
        else
          return PreviousState<T>(p.steps, p.state[0], p.h, plan.zeros, p.reset, width, t);
      }();
      F* const dropped_next = plan.dropped ? plan.dropped + ((k + 1) & 1) * state_size : nullptr;
      const PreviousState<F> factors = [&] {
        if (plan.dropped)
          return PreviousState<F>(p.steps, plan.dropped + (k & 1) * state_size, reinterpret_cast<const F*>(plan.zeros),
                                  p.reset, width, t);
        if constexpr (has_bf16_dot<S>)
          return PreviousState<S>(p.steps, plan.initial, p.h, reinterpret_cast<const S*>(plan.zeros), p.reset, width,
                                  t);
        else
          return h_before;
      }();
      // Where the new h of a sequence is stored, in T.
      auto h_row = [&](int64_t b) -> T* {
        if constexpr (narrow<S>)
          return carried_next + b * width;
        else
          return p.h + (row + b) * width;
      };
      // Applies zoneout and dropout to a range of columns of it.
      auto put_h = [&](int64_t b, int64_t first, int64_t last) RNNKERN_INLINE_LAMBDA {
        if (!narrow<S> && !plan.zoneout[0].on() && !plan.dropout.on()) return;
        T* const made = h_row(b);
        for_vectors<V>(first, last, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
          V h = V::load(made + unit, lanes);
          if (plan.zoneout[0].on()) {
            if (p.candidates) h.store(p.candidates + (row + b) * hidden + unit, lanes);
            h = plan.zoneout[0].mix(V::load(h_before(b) + unit, lanes), h, b, unit, lanes);
            h.store(made + unit, lanes);
          }
          if constexpr (narrow<S>) store(h, p.h + (row + b) * width + unit, lanes);
          if (plan.dropout.on()) store(plan.dropout.apply(h, b, unit, lanes), dropped_next + b * width + unit, lanes);
        });
      };
      plan.zoneout.draw_step(p.cell, share, t, row1, own_columns, units);
      plan.products.step(
          equations, p.weights, share, row1, factors, plan.dropout, plan.operand,
          [&](int64_t b) -> T* {
            if (p.saved) return p.saved + (row + b) * equations.saved * hidden;
            return plan.saved ? plan.saved + b * equations.saved * hidden : nullptr;
          },
          [&](ForwardStrip<T>& strip, int64_t b) RNNKERN_INLINE_LAMBDA {
            if (p.x) {
              strip.u = plan.products.u_row(projected, equations.gates, u_rows, chunk.index(k, b), strip, plan.u_row);
            } else {
              const S* const u = p.u + (p.u_repeats ? b : row + b) * columns;
              strip.u = widened_gates(u, equations.gates, hidden, strip, plan.u_row);
            }
            strip.old[0] = equations.projected ? plan.zeros : h_before(b);
            strip.next[0] = !equations.projected ? h_row(b) : in_arithmetic(plan.m + b * hidden, plan.m_row);
            for (int s = 1; s < equations.states; ++s) {
              T* const state = p.final_state[s] + b * hidden;
              if (in_sequence(s)) {
                strip.old[s] = PreviousState<T>(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, t)(b);
                strip.next[s] = p.states[s] + (row + b) * hidden;
              } else {
                strip.old[s] = h_before.is_reset(b) ? plan.zeros : state;
                strip.next[s] = plan.zoneout[s].on() ? plan.unmixed + s * hidden : state;
              }
            }
          },
          [&](const ForwardStrip<T>& strip, int64_t b) RNNKERN_INLINE_LAMBDA {
            if (!equations.projected) {
              put_h(b, strip.begin, strip.end);
            } else if constexpr (has_bf16_dot<S>) {
              copy_gates(strip.next[0], plan.m + b * hidden, 1, hidden, strip);
            }
            for (int s = 1; s < equations.states; ++s) {
              if (!plan.zoneout[s].on()) continue;
              T* const kept = p.states[s] ? p.states[s] + (row + b) * hidden : nullptr;
              T* const state = p.final_state[s] + b * hidden;
              for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                V next = V::load(strip.next[s] + unit, lanes);
                next = plan.zoneout[s].mix(V::load(strip.old[s] + unit, lanes), next, b, unit, lanes);
                next.store(state + unit, lanes);
                if (kept) next.store(kept + unit, lanes);
              });
            }
          });
      share.barrier();
      if (equations.projected) {
        const Product<F>& product = plan.projection;
        product.run(
            share.first_panel(product.panels()), share.last_panel(product.panels()), share.row0, row1,
            [&](int64_t b) { return plan.m + b * hidden; },
            [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
              T* const made = h_row(b);
              for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                V::load(results + unit - q.unit).store(made + unit, lanes);
              });
              put_h(b, q.unit, q.unit + q.units);
            });
        share.barrier();
      }
    }
    if (p.progress && me.rank == 0) p.progress->reach(chunk.end);
  }

  // The final state is that of each sequence's last step in processing order; a sequence without steps keeps its
  // initial state.
  for (int64_t b = share.copy0; b < share.copy1; ++b) {
    if (p.steps.count == 0 || b >= p.steps.rows(0)) continue;
    int64_t t = 0;
    if (!p.steps.reverse)
      for (t = p.steps.count - 1; p.steps.rows(t) <= b;) --t;
    const T* last;
    if constexpr (narrow<S>)
      last = plan.carried + ((p.steps.at(t) + 1) & 1) * state_size + b * width;
    else
      last = p.h + (p.steps.offset(t) + b) * width;
    copy(p.final_state[0] + b * width, last, width);
    for (int s = 1; s < equations.states; ++s)
      if (in_sequence(s)) copy(p.final_state[s] + b * hidden, p.states[s] + (p.steps.offset(t) + b) * hidden, hidden);
  }
}

}  // namespace
}  // namespace rnnkern
