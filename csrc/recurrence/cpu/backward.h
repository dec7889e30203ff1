// The backward pass over time. kernels.h includes this file once per SIMD level.
#pragma once

#include "recurrence/cpu/gradients.h"

namespace rnnkern {
namespace {

// What one thread does.
template <class F, class Cell>
class BackwardPass {
  using T = Arithmetic<F>;
  using V = Vec<T>;

 public:
  BackwardPass(const Backward<T>& p, ThreadContext me)
      : p(p),
        me(me),
        cell(cell_of<Cell>(p)),
        plan(p, me),
        share(p.steps, p.split_hidden, me),
        hidden(p.weights.hidden),
        width(cell.projected ? p.weights.width : hidden),
        recurrent(cell.recurrent * hidden),
        u_columns(cell.gates * hidden),
        first_panel(share.first_panel(plan.first.panels())),
        last_panel(share.last_panel(plan.first.panels())),
        columns(units_of(plan.first, share, width)),
        units(units_of(cell.projected ? plan.projection : plan.first, share, hidden)),
        dbias{plan.step_bias, plan.dbias.begin(me)},
        dbias_ih{plan.step_bias_ih, plan.dbias_ih.begin(me)},
        step_params(share.copy1 - share.copy0 > 1 ? plan.step_params : nullptr),
        gradients(p, plan, me, units, columns) {}

  RNNKERN_INLINE void run() {
    start();
    for (int64_t end = p.steps.count; end > 0; end -= plan.chunk) {
      const Chunk chunk(p.steps, larger(end - plan.chunk, 0), end, share);
      if (p.above) p.above->wait(p.steps.count - chunk.begin);
      if (plan.recompute) recompute_gates(chunk);
      for (int64_t k = end - 1; k >= chunk.begin; --k) step(chunk, k);
      gradients.add(p, plan, share, chunk);
      if (p.du_sum) add_du(chunk);
      if (p.dx) multiply_by_W(chunk);
      share.barrier();  // all have done reading what the next chunk overwrites
      if (p.progress && me.rank == 0) p.progress->reach(p.steps.count - chunk.begin);
    }
    me.barrier();
    for (const PartialSums<T>* gradient : {&plan.dR, &plan.dW, &plan.dW_hr, &plan.dbias, &plan.dbias_ih})
      gradient->add_up(me);
  }

 private:
  using Step = BackwardStep<T>;

  RNNKERN_INLINE void step(const Chunk& chunk, int64_t k) {
    const Step now(p, share, chunk, k, plan.zeros);
    plan.zoneout.draw_step(p.cell, share, now.t, now.row1, columns, units);
    if (cell.projected) {
      multiply_by_W_hr(now);
    } else if (cell.normalised) {
      for (int64_t b = share.copy0; b < smaller(share.copy1, now.row1); ++b) equations(now, b, {0, hidden}, nullptr);
    } else {
      for (int64_t b = share.row0; b < now.row1; ++b) equations(now, b, units, nullptr);
    }
    share.barrier();
    if (cell.two_products()) {
      multiply_by_second_R(now);
      share.barrier();
    }
    add_biases();
    multiply_by_R(now);
    if (cell.normalised) share.barrier();
  }

  void start() {
    for (const Product<F>* product : {&plan.first, &plan.second, &plan.input, &plan.projection}) product->pack(me);
    if (plan.recompute) plan.recompute->pack(me);
    const int64_t first = share.copy0, count = share.copy1 - share.copy0;
    for (int s = 0; s < cell.states; ++s) {
      const int64_t row = s ? hidden : width;
      if (p.grad_state[s]) {
        copy(p.dstate[s] + first * row, p.grad_state[s] + first * row, count * row);
      } else {
        clear(p.dstate[s] + first * row, count * row);
      }
    }
    for (int i = 0; i < cell.params; ++i)
      if (p.dparams[i]) clear(p.dparams[i] + first * param_size(i), count * param_size(i));
    if (me.rank == 0) clear(plan.zeros, plan.zeros_size(p.weights));
    plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
    if (step_params) clear(step_params, p.cell.all_param_rows * hidden);
    if (plan.step_bias) clear(plan.step_bias, recurrent);
    if (plan.step_bias_ih) clear(plan.step_bias_ih, u_columns);
    if (plan.lost) clear(plan.lost, hidden);
    if (p.du_sum) clear(p.du_sum + first * u_columns, count * u_columns);
    me.barrier();
  }

  int64_t param_size(int i) const { return cell.param_rows[i] * hidden; }

  RNNKERN_INLINE F* dr_row(const Step& now, int64_t b) const { return plan.dr_of(now.slot + b); }
  RNNKERN_INLINE F* du_row(const Step& now, int64_t b) const { return plan.du_of(now.slot + b); }
  RNNKERN_INLINE F* dm_row(const Step& now, int64_t b) const { return plan.m + (now.slot + b) * hidden; }
  RNNKERN_INLINE F* operand_row(const Step& now, int64_t b) const { return plan.operand + (now.slot + b) * hidden; }
  RNNKERN_INLINE const T* saved_row(const Step& now, int64_t b) const {
    return (plan.recompute ? plan.saved + (now.slot + b) * cell.saved * hidden
                           : p.saved + (now.row + b) * cell.saved * hidden);
  }
  RNNKERN_INLINE const T* old_state(const Step& now, int s, int64_t b) const {
    const PreviousState<T> old(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, now.t);
    return old(b).template as<T>();
  }

  // Recomputes the gates of a chunk from the previous h of each step. It always calls strip functions, to avoid a
  // second inlined copy of each cell's step.
  void recompute_gates(const Chunk& chunk) {
    const auto strips = cell_of<StripCell<T>>(p);
    const StepProducts<F>& products = *plan.recompute;
    const int64_t u_rows = plan.chunk * (share.row1 - share.row0);
    T* const projected_x = p.x ? plan.u + plan.chunk * share.row0 * products.u_size() : nullptr;
    if (p.x) products.project(p.x, share, chunk, u_rows, projected_x);
    for (int64_t k = chunk.begin; k < chunk.end; ++k) {
      const Step now(p, share, chunk, k, plan.zeros);
      for (int64_t b = share.row0; plan.wide_h && b < now.row1; ++b) widen(now.h(b), width, plan.wide_h + b * width);
      for (int64_t b = share.row0; plan.dropped && b < now.row1; ++b)
        drop(plan.dropout, b, now.h(b), plan.dropped + b * width);
      auto carried = [&](Rows<T> h) { return PreviousState<T>(p.steps, h, plan.zeros, p.reset, width, now.t); };
      products.step(
          strips, p.weights, share, now.row1,
          plan.dropped  ? carried(plan.dropped)
          : plan.wide_h ? carried(plan.wide_h)
                        : now.h,
          plan.dropout, plan.operand ? operand_row(now, 0) : nullptr,
          [&](int64_t b) { return plan.saved + (now.slot + b) * cell.saved * hidden; },
          [&](ForwardStrip<T>& strip, int64_t b) RNNKERN_INLINE_LAMBDA {
            strip.u = products.u_of(p, projected_x, u_rows, chunk.index(k, b), p.u_repeats ? b : now.row + b, strip,
                                    plan.u_row);
            strip.old[0] = cell.projected ? plan.zeros : widened(now.h(b), 1, hidden, strip, plan.old_row);
            for (int s = 0; s < cell.states; ++s) {
              strip.next[s] = plan.made + s * hidden;
              if (s > 0) strip.old[s] = old_state(now, s, b);
            }
          },
          [](const ForwardStrip<T>&, int64_t) {});
      if (cell.normalised) share.barrier();  // the next step overwrites the products
    }
    share.barrier();
  }

  RNNKERN_INLINE BackwardStrip<T> strip_of(const Step& now, int64_t b, Units some) const {
    BackwardStrip<T> strip;
    strip.begin = some.begin, strip.end = some.end, strip.hidden = hidden;
    strip.saved = cell.saved ? saved_row(now, b) : nullptr;
    strip.saved_ahead = cell.saved ? saved_row(now, b + 1) : nullptr;
    strip.old[0] = cell.projected ? plan.zeros : widened(now.h(b), 1, hidden, strip, plan.old_row);
    for (int s = 1; s < cell.states; ++s) strip.old[s] = old_state(now, s, b);
    strip.dr = in_arithmetic(dr_row(now, b), plan.dr_row);
    strip.du = in_arithmetic(du_row(now, b), plan.du_row);
    strip.dr_sum = plan.step_bias, strip.du_sum = plan.step_bias_ih;
    strip.operand = nullptr;
    return strip;
  }

  // Stores the gradients of r and u of some gates, in the form that products read and in that of the results.
  RNNKERN_INLINE void store_gradients(const BackwardStrip<T>& strip, const Step& now, int64_t b, int gates_of_r,
                                      int gates) const {
    if constexpr (has_bf16_dot<F>) {
      store_row(strip.dr, gates_of_r, hidden, strip, Rows<T>(dr_row(now, b)));
      if (!cell.joint) store_row(strip.du, gates, hidden, strip, Rows<T>(du_row(now, b)));
    }
    if (p.du) store_row(cell.joint ? strip.dr : strip.du, gates, hidden, strip, p.du.from((now.row + b) * u_columns));
  }

  // Runs the equations for units of a sequence. If h is projected, `dm` is the gradient of the projection's input.
  RNNKERN_INLINE void equations(const Step& now, int64_t b, Units some, T* dm) const {
    BackwardStrip<T> strip = strip_of(now, b, some);
    strip.grad_h = nullptr;
    if (cell.projected) {
      strip.next[0] = plan.zeros;
      strip.grad[0] = dm;
      strip.operand = in_arithmetic(dm_row(now, b), plan.operand_row);
    } else {
      read_h(strip, now, b);
    }
    for (int s = 1; s < cell.states; ++s) {
      strip.next[s] = p.states[s] + (now.row + b) * hidden;
      strip.grad[s] = p.dstate[s] + b * hidden;
      prefetch(strip.next[s] + hidden, some);
    }
    for (int64_t i = 0, at = 0; i < cell.params; at += param_size(i++)) {
      strip.params[i] = p.weights.params[i];
      strip.dparams[i] = !p.dparams[i] ? nullptr : step_params ? step_params + at : p.dparams[i] + b * param_size(i);
    }
    strip.workspace = plan.norms;
    divert_zoneout(strip, b);
    cell.backward(strip);
    store_gradients(strip, now, b, cell.recurrent, cell.gates);
    if constexpr (has_bf16_dot<F>)
      if (cell.projected) store_row(strip.operand, 1, hidden, strip, Rows<T>(dm_row(now, b)));
    for (int s = cell.projected; s < cell.states; ++s) {
      if (now.h.is_reset(b)) {
        clear(strip.grad[s] + some.begin, some.end - some.begin);
      } else if (plan.zoneout[s].on()) {
        add_row(plan.around + s * hidden, strip, strip.grad[s]);
      }
    }
  }

  // What the equations read of h of this step, which they do not project.
  RNNKERN_INLINE void read_h(BackwardStrip<T>& strip, const Step& now, int64_t b) const {
    const int64_t at = (now.row + b) * hidden;
    strip.next[0] = p.candidates ? p.candidates + at : widened(p.h.from(at), 1, hidden, strip, plan.next_row);
    strip.grad[0] = p.dstate[0] + b * hidden;
    if (p.grad_h) {
      strip.grad_h = widened(p.grad_h.from(at), 1, hidden, strip, plan.grad_h_row);
      as_stored(p.grad_h.from(at + hidden), [&](const auto* next) { prefetch(next, {strip.begin, strip.end}); });
    }
    if (!p.dh) return;
    copy(plan.dh_row + strip.begin, strip.grad[0] + strip.begin, strip.end - strip.begin);
    if (strip.grad_h) add_row(strip.grad_h, strip, plan.dh_row);
    store_row(plan.dh_row, 1, hidden, strip, p.dh.from(at));
  }

  RNNKERN_INLINE static void add_row(const T* row, const BackwardStrip<T>& strip, T* sum) {
    for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      (V::load(sum + unit, lanes) + V::load(row + unit, lanes)).store(sum + unit, lanes);
    });
  }

  // Gradients that zoneout passes to the old values bypass the equations. A cell with norms reads the whole gradient of
  // h from one row.
  RNNKERN_INLINE void divert_zoneout(BackwardStrip<T>& strip, int64_t b) const {
    for (int s = cell.projected; s < cell.states; ++s) {
      const Zoneout<T>& zoneout = plan.zoneout[s];
      if (!zoneout.on() && !(s == 0 && cell.normalised)) continue;
      for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V grad = V::load(strip.grad[s] + unit, lanes);
        if (s == 0 && strip.grad_h) grad = grad + V::load(strip.grad_h + unit, lanes);
        if (zoneout.on()) {
          const V kept = zoneout.weight(b, unit, lanes) * grad;
          kept.store(plan.around + s * hidden + unit, lanes);
          grad = grad - kept;
        }
        grad.store(strip.grad[s] + unit, lanes);
      });
      if (s == 0) strip.grad_h = nullptr;
    }
  }

  // If h is projected: the gradient of h passes through W_hr, and then through the equations.
  RNNKERN_INLINE void multiply_by_W_hr(const Step& now) const {
    auto dh_row = [&](int64_t b) { return plan.dh + (now.slot + b) * plan.dh_stride; };
    for (int64_t b = share.row0; b < now.row1; ++b) {
      const int64_t at = (now.row + b) * width;
      const T* const grad_h = p.grad_h ? widened(p.grad_h.from(at), 1, width, columns, plan.grad_h_row) : nullptr;
      for_vectors<V>(columns.begin, columns.end, [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
        V dh = V::load(p.dstate[0] + b * width + column, lanes);
        if (grad_h) dh = dh + V::load(grad_h + column, lanes);
        if (p.dh) dh.store(plan.dh_row + column, lanes);
        V kept(0);  // the rest of the gradient passes through R
        if (plan.zoneout[0].on()) kept = plan.zoneout[0].weight(b, column, lanes) * dh;
        store(dh - kept, dh_row(b) + column, lanes);
        (now.h.is_reset(b) ? V(0) : kept).store(p.dstate[0] + b * width + column, lanes);
      });
      if (p.dh) store_row(plan.dh_row, 1, width, columns, p.dh.from(at));
    }
    share.barrier();
    const int64_t panels = plan.projection.panels();
    plan.projection.run(share.first_panel(panels), share.last_panel(panels), share.row0, now.row1, dh_row,
                        [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                          copy(plan.grad_row + q.unit, results, q.units);
                          equations(now, b, {q.unit, q.unit + q.units}, plan.grad_row);
                        });
  }

  // The gradient that R^T passes to the input of R.
  RNNKERN_INLINE V through_R(const Step& now, const T* results, int64_t b, int64_t unit, int64_t lanes) const {
    const V scale(p.grad_scale ? p.grad_scale[now.t * p.scale_step + b * p.scale_row] : T(1));
    return plan.dropout.apply(scale * V::load(results), b, unit, lanes);
  }

  // The gradient of the second product's operand, and with it those of the first gates.
  RNNKERN_INLINE void multiply_by_second_R(const Step& now) const {
    plan.second.run(
        first_panel, last_panel, share.row0, now.row1, [&](int64_t b) { return dr_row(now, b); },
        [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
          BackwardStrip<T> strip = strip_of(now, b, {q.unit, q.unit + q.units});
          strip.doperand = plan.grad_row;
          for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            through_R(now, results + unit - q.unit, b, unit, lanes).store(plan.grad_row + unit, lanes);
          });
          for (int s = 0; s < cell.states; ++s)  // a reset stops this gradient
            strip.grad[s] = now.h.is_reset(b) ? plan.lost : p.dstate[s] + b * hidden;
          F* const operand = operand_row(now, b);
          strip.operand = in_arithmetic(operand, plan.operand_row);
          if constexpr (has_bf16_dot<F>) {
            widened(Rows<T>(dr_row(now, b)), cell.recurrent, hidden, strip, plan.dr_row);
            if (!cell.joint) widened(Rows<T>(du_row(now, b)), cell.gates, hidden, strip, plan.du_row);
          }
          cell.prepare_backward(strip);
          // Until the next barrier other threads read dr of the later gates, so only earlier gates are written.
          store_gradients(strip, now, b, cell.first_gates, int(smaller(cell.first_gates, cell.gates)));
          if (has_bf16_dot<F> || plan.dropout.on())
            for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
              const V x = V::load(strip.operand + unit, lanes);
              store(plan.dropout.apply(x, b, unit, lanes), operand + unit, lanes);
            });
        });
  }

  // Adds R^T dr to the gradient of the previous h.
  RNNKERN_INLINE void multiply_by_R(const Step& now) const {
    plan.first.run(
        first_panel, last_panel, share.row0, now.row1, [&](int64_t b) { return dr_row(now, b); },
        [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
          if (now.h.is_reset(b)) return;
          for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            T* const dh = p.dstate[0] + b * width + unit;
            (V::load(dh, lanes) + through_R(now, results + unit - q.unit, b, unit, lanes)).store(dh, lanes);
          });
        });
  }

  RNNKERN_INLINE void add_biases() const {
    const Units some = cell.normalised ? Units{0, hidden} : units;  // with norms, one thread takes a whole row
    dbias.add(cell.recurrent, hidden, some);
    dbias_ih.add(cell.gates, hidden, some);
    for (int64_t i = 0, at = 0; step_params && i < cell.params; at += param_size(i++))
      if (p.dparams[i])  // the sums of this thread, in the row of its first sequence
        StepBias<T>{step_params + at, p.dparams[i] + share.copy0 * param_size(i)}.add(cell.param_rows[i], hidden, some);
  }

  // The gradient of a u that repeats.
  void add_du(const Chunk& chunk) const {
    for (int64_t i = 0; i < chunk.rows(); ++i) {
      const Chunk::Row at = chunk.at(i);
      const F* const du = plan.du_of(chunk.slot(at.k, at.b));
      T* const sum = p.du_sum + at.b * u_columns;
      for (int g = 0; g < cell.gates; ++g)
        for_vectors<V>(g * hidden + units.begin, g * hidden + units.end,
                       [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
                         (V::load(sum + column, lanes) + load(du + column, lanes)).store(sum + column, lanes);
                       });
    }
  }

  void multiply_by_W(const Chunk& chunk) const {
    auto du_of = [&](int64_t i) {
      const Chunk::Row at = chunk.at(i);
      return plan.du_of(chunk.slot(at.k, at.b));
    };
    plan.input.run(share.first_panel(plan.input.panels()), share.last_panel(plan.input.panels()), 0, chunk.rows(),
                   du_of, [&](int64_t i, const Panel<T>& q, const T* results) {
                     narrow_row(results, q.units, p.dx.from(chunk.at(i).row * p.weights.W.columns + q.unit));
                   });
  }

  const Backward<T>& p;
  const ThreadContext me;
  const Cell cell;
  const BackwardPlan<F> plan;
  const WorkRange share;
  const int64_t hidden, width, recurrent, u_columns;
  const int64_t first_panel, last_panel;  // of R^T, for this thread
  const Units columns, units;             // those of h and of the state that this thread computes
  const StepBias<T> dbias, dbias_ih;
  T* const step_params;  // with norms, if this thread has several sequences
  WeightGradients<F> gradients;
};

template <class F, class Cell>
void backward(const Backward<Arithmetic<F>>& p, ThreadContext me) {
  BackwardPass<F, Cell>(p, me).run();
}

}  // namespace
}  // namespace rnnkern
