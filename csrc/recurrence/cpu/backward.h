// The backward loop over time. kernels.h includes this file once per SIMD level.
#pragma once

#include "recurrence/cpu/backward_plan.h"

namespace rnnkern {
namespace {

// Recomputes the gates of a chunk from the previous h of each step. It always calls strip functions, to avoid a second
// inlined copy of each cell's step.
template <class S>
void recompute_gates(const Backward<S>& p, const BackwardPlan<S>& plan, const WorkRange& share, const Chunk& chunk) {
  using T = Arithmetic<S>;
  using F = OperandT<S>;
  const StripCell<T> equations{p.cell, p.strips};
  const int64_t hidden = p.weights.hidden, columns = equations.gates * hidden, batch = p.steps.batch;
  const int64_t width = equations.projected ? p.weights.width : hidden;
  const StepProducts<S>& products = *plan.recompute;
  const int64_t u_rows = plan.chunk * (share.row1 - share.row0);
  T* const projected = p.x ? plan.u + plan.chunk * share.row0 * products.u_size() : nullptr;
  if (p.x) products.project(p.x, share, chunk, u_rows, projected);
  for (int64_t k = chunk.begin; k < chunk.end; ++k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
    const int64_t slot_row = (k - chunk.begin) * batch;
    const PreviousState<S> stored(p.steps, p.h0, p.h, reinterpret_cast<const S*>(plan.zeros), p.reset, width, t);
    const PreviousState<F> h_before = [&] {
      if constexpr (StepProducts<S>::widens) {
        for (int64_t b = share.row0; b < row1; ++b) widen(stored(b), plan.h_before + b * width, width);
        return PreviousState<T>(p.steps, plan.h_before, plan.zeros, p.reset, width, t);
      } else {
        return stored;
      }
    }();
    if (plan.dropped)
      for (int64_t b = share.row0; b < row1; ++b) drop(plan.dropout, b, h_before(b), plan.dropped + b * width);
    const F* const zeros = reinterpret_cast<const F*>(plan.zeros);
    const PreviousState<F> factors =
        plan.dropped ? PreviousState<F>(p.steps, plan.dropped, zeros, p.reset, width, t) : h_before;
    products.step(
        equations, p.weights, share, row1, factors, plan.dropout,
        plan.operand ? plan.operand + slot_row * hidden : nullptr,
        [&](int64_t b) { return plan.saved + (slot_row + b) * equations.saved * hidden; },
        [&](ForwardStrip<T>& strip, int64_t b) RNNKERN_INLINE_LAMBDA {
          if (p.x) {
            strip.u = products.u_row(projected, equations.gates, u_rows, chunk.index(k, b), strip, plan.u_row);
          } else {
            const S* const u = p.u + (p.u_repeats ? b : row + b) * columns;
            strip.u = widened_gates(u, equations.gates, hidden, strip, plan.u_row);
          }
          strip.old[0] = equations.projected ? plan.zeros : widened_gates(stored(b), 1, hidden, strip, plan.old_row);
          for (int s = 0; s < equations.states; ++s) {
            strip.next[s] = plan.made + s * hidden;
            if (s > 0)
              strip.old[s] = PreviousState<T>(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, t)(b);
          }
        },
        [](const ForwardStrip<T>&, int64_t) {});
  }
  share.barrier();
}

template <class S, class Cell>
void backward(const Backward<S>& p, ThreadContext me, const Cell& equations) {
  using T = Arithmetic<S>;
  using F = OperandT<S>;
  using V = Vec<T>;
  const BackwardPlan<S> plan(p, me);
  const int64_t hidden = p.weights.hidden, columns = equations.gates * hidden, batch = p.steps.batch;
  const int64_t recurrent = equations.recurrent * hidden, width = equations.projected ? p.weights.width : hidden;
  const Product<F>&first = plan.first, &second = plan.second, &input = plan.input, &projection = plan.projection;
  for (const Product<F>* product : {&first, &second, &input, &projection}) product->pack(me);
  if (plan.recompute) plan.recompute->pack(me);
  const WorkRange share(p.steps, p.split_hidden, me);
  for (int s = 0; s < equations.states; ++s) {
    const int64_t row = s ? hidden : width, from = share.copy0 * row, elements = (share.copy1 - share.copy0) * row;
    if (p.grad_state[s]) {
      copy(p.dstate[s] + from, p.grad_state[s] + from, elements);
    } else {
      clear(p.dstate[s] + from, elements);
    }
  }
  for (int i = 0; i < equations.params; ++i) {
    const int64_t row = equations.normalised && i == 0 ? recurrent : hidden;
    if (p.dparams[i]) clear(p.dparams[i] + share.copy0 * row, (share.copy1 - share.copy0) * row);
  }
  if (me.rank == 0) clear(plan.zeros, plan.zeros_size(p.weights));
  plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
  if (plan.step_bias) clear(plan.step_bias, recurrent);
  if (plan.step_bias_ih) clear(plan.step_bias_ih, columns);
  if (plan.lost) clear(plan.lost, hidden);
  if (p.du_sum) clear(p.du_sum + share.copy0 * columns, (share.copy1 - share.copy0) * columns);
  T *const dR = plan.dR.begin(me), *const dW = plan.dW.begin(me), *const dW_hr = plan.dW_hr.begin(me);
  T *const dbias = plan.dbias.begin(me), *const dbias_ih = plan.dbias_ih.begin(me);
  me.barrier();

  const int64_t panel0 = share.first_panel(first.panels()), panel1 = share.last_panel(first.panels());
  const Product<F>& by_units = equations.projected ? projection : first;
  const Units own_columns = units_of(first, share, width), own_units = units_of(by_units, share, hidden);
  // With layer norm, one thread takes a whole row.
  const Units of_bias = equations.normalised ? Units{0, hidden} : own_units;
  WeightGradient<F> first_dR(p.weights.R, 0, equations.first_gates, own_units.begin, own_units.end, dR,
                             plan.dR_workspace, p.parts);
  WeightGradient<F> second_dR(p.weights.R, equations.first_gates, equations.recurrent - equations.first_gates,
                              own_units.begin, own_units.end, dR, plan.second_dR_workspace, p.parts);
  WeightGradient<F> input_dW(p.weights.W, 0, equations.gates, own_units.begin, own_units.end, dW, plan.dW_workspace,
                             p.parts);
  WeightGradient<F> projection_dW(p.weights.W_hr, 0, 1, own_columns.begin, own_columns.end, dW_hr, plan.dW_hr_workspace,
                                  p.parts);

  for (int64_t end = p.steps.count; end > 0; end -= plan.chunk) {
    const Chunk chunk(p.steps, larger(end - plan.chunk, 0), end, share);
    if (p.above) p.above->wait(p.steps.count - chunk.begin);
    if (plan.recompute) recompute_gates(p, plan, share, chunk);
    auto slot_row = [&](int64_t k, int64_t b) { return (k - chunk.begin) * batch + b; };
    auto h_entering = [&](int64_t k) {
      return PreviousState<S>(p.steps, p.h0, p.h, reinterpret_cast<const S*>(plan.zeros), p.reset, width,
                              p.steps.at(k));
    };
    for (int64_t k = end - 1; k >= chunk.begin; --k) {
      const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
      const PreviousState<S> h_before = h_entering(k);
      auto saved_row = [&](int64_t b) {
        return plan.recompute ? plan.saved + slot_row(k, b) * equations.saved * hidden
                              : p.saved + (row + b) * equations.saved * hidden;
      };
      auto dr_row = [&](int64_t b) { return plan.dr + slot_row(k, b) * plan.stride; };
      auto du_row = [&](int64_t b) { return plan.du + slot_row(k, b) * plan.stride; };
      auto dh_row = [&](int64_t b) { return plan.dh + slot_row(k, b) * plan.dh_stride; };
      // The gradient that R^T passes to the input of R.
      auto through_R = [&](const T* results, int64_t b, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V scale(p.grad_scale ? p.grad_scale[t * p.scale_step + b * p.scale_row] : T(1));
        return plan.dropout.apply(scale * V::load(results), b, unit, lanes);
      };

      plan.zoneout.draw_step(p.cell, share, t, row1, own_columns, own_units);

      // The gradient of h for some columns of a sequence.
      auto dh_of = [&](int64_t b, int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V later = V::load(p.dstate[0] + b * width + column, lanes);
        return p.grad_h ? later + load(p.grad_h + (row + b) * width + column, lanes) : later;
      };
      auto state_before = [&](int s) {
        return PreviousState<T>(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, t);
      };
      auto strip_of = [&](int64_t b, Units units) RNNKERN_INLINE_LAMBDA {
        BackwardStrip<T> strip;
        strip.begin = units.begin, strip.end = units.end, strip.hidden = hidden;
        strip.saved = equations.saved ? saved_row(b) : nullptr;
        strip.saved_ahead = equations.saved ? saved_row(b + 1) : nullptr;
        strip.old[0] = equations.projected ? plan.zeros : widened_gates(h_before(b), 1, hidden, strip, plan.old_row);
        strip.dr = in_arithmetic(dr_row(b), plan.dr_row);
        strip.du = in_arithmetic(du_row(b), plan.du_row);
        strip.dr_sum = plan.step_bias, strip.du_sum = plan.step_bias_ih;
        strip.operand = nullptr;
        return strip;
      };
      // Stores the gradients of r and u of some gates, in the form that products read and in that of the results.
      auto put_gradients = [&](const BackwardStrip<T>& strip, int64_t b, int gates_of_r,
                               int gates) RNNKERN_INLINE_LAMBDA {
        if constexpr (has_bf16_dot<S>) {
          copy_gates(strip.dr, dr_row(b), gates_of_r, hidden, strip);
          if (!equations.joint) copy_gates(strip.du, du_row(b), gates, hidden, strip);
        }
        if (p.du) copy_gates(equations.joint ? strip.dr : strip.du, p.du + (row + b) * columns, gates, hidden, strip);
      };
      // Runs the equations for units of a sequence. If h is projected, `dh` is the gradient of the projection's input.
      auto pointwise = [&](int64_t b, Units units, T* dh) RNNKERN_INLINE_LAMBDA {
        BackwardStrip<T> strip = strip_of(b, units);
        strip.grad_h = nullptr;
        if (equations.projected) {
          strip.next[0] = plan.zeros;
          strip.grad[0] = dh;
          strip.operand = in_arithmetic(plan.m + slot_row(k, b) * hidden, plan.operand_row);
        } else {
          const int64_t at = (row + b) * hidden;
          strip.next[0] = p.candidates ? p.candidates + at : widened_gates(p.h + at, 1, hidden, strip, plan.next_row);
          strip.grad[0] = p.dstate[0] + b * hidden;
          if (p.dh)
            for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
              store(dh_of(b, unit, lanes), p.dh + at + unit, lanes);
            });
          if (p.grad_h) {
            strip.grad_h = widened_gates(p.grad_h + at, 1, hidden, strip, plan.grad_row);
            prefetch(p.grad_h + at + hidden, units);
          }
        }
        for (int s = 1; s < equations.states; ++s) {
          strip.old[s] = state_before(s)(b);
          strip.next[s] = p.states[s] + (row + b) * hidden;
          strip.grad[s] = p.dstate[s] + b * hidden;
          prefetch(strip.next[s] + hidden, units);
        }
        for (int i = 0; i < equations.params; ++i) {
          strip.params[i] = p.weights.params[i];
          const int64_t row_size = equations.normalised && i == 0 ? recurrent : hidden;
          strip.dparams[i] = p.dparams[i] ? p.dparams[i] + b * row_size : nullptr;
        }
        // Gradients that zoneout passes to the old values bypass the equations. Norms need the whole gradient of h in
        // one row.
        const int first_state = equations.projected;
        auto zoned = [&](int s) { return plan.zoneout[s].on() || (s == 0 && equations.normalised); };
        for (int s = first_state; s < equations.states; ++s) {
          if (!zoned(s)) continue;
          for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            V grad = V::load(strip.grad[s] + unit, lanes);
            if (s == 0 && strip.grad_h) grad = grad + V::load(strip.grad_h + unit, lanes);
            if (plan.zoneout[s].on()) {
              const V kept = plan.zoneout[s].weight(b, unit, lanes) * grad;
              kept.store(plan.around + s * hidden + unit, lanes);
              grad = grad - kept;
            }
            grad.store(strip.grad[s] + unit, lanes);
          });
          if (s == 0) strip.grad_h = nullptr;
        }
        strip.bias = p.weights.R.bias;
        strip.workspace = plan.norms;
        strip.mixed = equations.states > 1 && plan.zoneout[1].on();
        equations.backward(strip);
        put_gradients(strip, b, equations.recurrent, equations.gates);
        if constexpr (has_bf16_dot<S>)
          if (equations.projected) copy_gates(strip.operand, plan.m + slot_row(k, b) * hidden, 1, hidden, strip);
        for (int s = first_state; s < equations.states; ++s) {
          if (h_before.is_reset(b)) {
            clear(strip.grad[s] + units.begin, units.end - units.begin);
          } else if (plan.zoneout[s].on()) {
            for_vectors<V>(units.begin, units.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
              const V kept = V::load(plan.around + s * hidden + unit, lanes);
              (V::load(strip.grad[s] + unit, lanes) + kept).store(strip.grad[s] + unit, lanes);
            });
          }
        }
      };
      if (equations.projected) {
        for (int64_t b = share.row0; b < row1; ++b) {
          for_vectors<V>(own_columns.begin, own_columns.end, [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
            const V dh = dh_of(b, column, lanes);
            if (p.dh) store(dh, p.dh + (row + b) * width + column, lanes);
            V kept(0);  // the rest of the gradient passes through R
            if (plan.zoneout[0].on()) kept = plan.zoneout[0].weight(b, column, lanes) * dh;
            store(dh - kept, dh_row(b) + column, lanes);
            (h_before.is_reset(b) ? V(0) : kept).store(p.dstate[0] + b * width + column, lanes);
          });
        }
        share.barrier();
        const int64_t panels = projection.panels();
        projection.run(share.first_panel(panels), share.last_panel(panels), share.row0, row1, dh_row,
                       [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                         for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                           V::load(results + unit - q.unit).store(plan.grad_row + unit, lanes);
                         });
                         pointwise(b, {q.unit, q.unit + q.units}, plan.grad_row);
                       });
      } else if (equations.normalised) {
        for (int64_t b = share.copy0; b < smaller(share.copy1, row1); ++b) pointwise(b, {0, hidden}, nullptr);
      } else {
        for (int64_t b = share.row0; b < row1; ++b) pointwise(b, own_units, nullptr);
      }
      share.barrier();

      if (equations.two_products()) {
        second.run(panel0, panel1, share.row0, row1, dr_row,
                   [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                     BackwardStrip<T> strip = strip_of(b, {q.unit, q.unit + q.units});
                     strip.doperand = plan.grad_row;
                     for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                       through_R(results + unit - q.unit, b, unit, lanes).store(plan.grad_row + unit, lanes);
                     });
                     // A reset stops this gradient.
                     strip.grad[0] = h_before.is_reset(b) ? plan.lost : p.dstate[0] + b * hidden;
                     for (int s = 1; s < equations.states; ++s) {
                       strip.old[s] = state_before(s)(b);
                       strip.grad[s] = h_before.is_reset(b) ? plan.lost : p.dstate[s] + b * hidden;
                     }
                     F* const operand = plan.operand + slot_row(k, b) * hidden;
                     strip.operand = in_arithmetic(operand, plan.operand_row);
                     if constexpr (has_bf16_dot<S>) {
                       widened_gates(dr_row(b), equations.recurrent, hidden, strip, plan.dr_row);
                       if (!equations.joint) widened_gates(du_row(b), equations.gates, hidden, strip, plan.du_row);
                     }
                     equations.prepare_backward(strip);
                     // Until the next barrier other threads read dr of the later gates, so only earlier gates are
                     // written.
                     put_gradients(strip, b, equations.first_gates,
                                   int(smaller(equations.first_gates, equations.gates)));
                     if (has_bf16_dot<S> || plan.dropout.on())
                       for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                         const V x = V::load(strip.operand + unit, lanes);
                         store(plan.dropout.apply(x, b, unit, lanes), operand + unit, lanes);
                       });
                   });
        share.barrier();
      }
      for (int g = 0; g < equations.recurrent && dbias; ++g)
        fold(plan.step_bias, dbias, g * hidden + of_bias.begin, g * hidden + of_bias.end);
      for (int g = 0; g < equations.gates && dbias_ih; ++g)
        fold(plan.step_bias_ih, dbias_ih, g * hidden + of_bias.begin, g * hidden + of_bias.end);
      first.run(panel0, panel1, share.row0, row1, dr_row,
                [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                  if (h_before.is_reset(b)) return;
                  for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                    T* dh = p.dstate[0] + b * width + unit;
                    (V::load(dh, lanes) + through_R(results + unit - q.unit, b, unit, lanes)).store(dh, lanes);
                  });
                });
      if (equations.normalised) share.barrier();
    }

    // After the steps of a chunk: the gradients of the weights, a block of rows at a time, of a u that repeats, and dx.
    const int64_t rows = chunk.rows();
    auto at_slot = [&](int64_t index) {
      const Chunk::Row r = chunk.at(index);
      return slot_row(r.k, r.b);
    };
    if (p.dR) {
      first_dR.expect(rows);
      second_dR.expect(rows);
      for (int64_t k = chunk.begin; k < end; ++k) {
        const PreviousState<S> h_before = h_entering(k);
        for (int64_t b = share.row0; b < smaller(share.row1, p.steps.rows(p.steps.at(k))); ++b) {
          const F* const dr = plan.dr + slot_row(k, b) * plan.stride;
          if (plan.dropped) {
            drop(plan.dropout, b, h_before(b), plan.dropped);
            first_dR.add(dr, plan.dropped);
          } else {
            first_dR.add(dr, h_before(b));
          }
          if (equations.two_products()) second_dR.add(dr, plan.operand + slot_row(k, b) * hidden);
        }
      }
      first_dR.flush();
      second_dR.flush();
    }
    if (p.dW_hr) {
      projection_dW.expect(rows);
      for (int64_t i = 0; i < rows; ++i)
        projection_dW.add(plan.dh + at_slot(i) * plan.dh_stride, plan.m + at_slot(i) * hidden);
      projection_dW.flush();
    }
    if (p.dW) {
      input_dW.expect(rows);
      for (int64_t i = 0; i < rows; ++i)
        input_dW.add(plan.du + at_slot(i) * plan.stride, p.x + chunk.at(i).row * p.weights.W.columns);
      input_dW.flush();
    }
    for (int64_t i = 0; p.du_sum && i < rows; ++i) {
      const F* const du = plan.du + at_slot(i) * plan.stride;
      T* const sum = p.du_sum + chunk.at(i).b * columns;
      for (int g = 0; g < equations.gates; ++g)
        for_vectors<V>(g * hidden + own_units.begin, g * hidden + own_units.end,
                       [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
                         (V::load(sum + column, lanes) + load(du + column, lanes)).store(sum + column, lanes);
                       });
    }
    if (p.dx) {
      input.run(
          share.first_panel(input.panels()), share.last_panel(input.panels()), 0, rows,
          [&](int64_t i) { return plan.du + at_slot(i) * plan.stride; },
          [&](int64_t i, const Panel<T>& q, const T* results) {
            S* const to = p.dx + chunk.at(i).row * p.weights.W.columns + q.unit;
            for (int v = 0; v < q.vectors; ++v)
              store(V::load(results + v * V::width), to + v * V::width, q.units - v * V::width);
          });
    }
    share.barrier();  // all have done reading what the next chunk overwrites
    if (p.progress && me.rank == 0) p.progress->reach(p.steps.count - chunk.begin);
  }
  me.barrier();
  for (const PartialSums<T>* gradient : {&plan.dR, &plan.dW, &plan.dW_hr, &plan.dbias, &plan.dbias_ih})
    gradient->add_up(me);
}

}  // namespace
}  // namespace rnnkern
