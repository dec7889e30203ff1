// The gradients of the weights and biases that a thread accumulates in the backward pass. kernels.h includes this file
// once per SIMD level.
#pragma once

#include "recurrence/cpu/backward_plan.h"

namespace rnnkern {
namespace {

// Of a bias: the sum of a step over sequences, which is added to the total after the step, so that rounding errors grow
// with B + T, not with B T.
template <class T>
struct StepBias {
  T *step, *total;

  void add(int gates, int64_t hidden, Units units) const {
    for (int64_t at = 0; total && at < gates * hidden; at += hidden)
      for (int64_t i = at + units.begin; i < at + units.end; ++i) {
        total[i] += step[i];
        step[i] = 0;
      }
  }
};

// Of all weights, a chunk of steps at a time.
template <class F>
class WeightGradients {
  using T = Arithmetic<F>;

 public:
  WeightGradients(const Backward<T>& p, const BackwardPlan<F>& plan, ThreadContext me, Units units, Units columns)
      : dR_(plan.dR.begin(me)),
        first_R_(p.weights.R, 0, p.cell.first_gates, units.begin, units.end, dR_, plan.dR_workspace, p.parts),
        second_R_(p.weights.R, p.cell.first_gates, p.cell.recurrent - p.cell.first_gates, units.begin, units.end, dR_,
                  plan.second_dR_workspace, p.parts),
        W_(p.weights.W, 0, p.cell.gates, units.begin, units.end, plan.dW.begin(me), plan.dW_workspace, p.parts),
        W_hr_(p.weights.W_hr, 0, 1, columns.begin, columns.end, plan.dW_hr.begin(me), plan.dW_hr_workspace, p.parts) {}

  void add(const Backward<T>& p, const BackwardPlan<F>& plan, const WorkRange& share, const Chunk& chunk) {
    const auto all = {&first_R_, &second_R_, &W_, &W_hr_};
    for (WeightGradient<F>* gradient : all) gradient->expect(chunk.rows());
    for (int64_t k = chunk.begin; p.dR && k < chunk.end; ++k) {
      const BackwardStep<T> now(p, share, chunk, k, plan.zeros);
      for (int64_t b = share.row0; b < now.row1; ++b) {
        if (plan.dropped) drop(plan.dropout, b, now.h(b), plan.dropped);
        add(first_R_, plan.dr_of(now.slot + b), plan.dropped ? Rows<T>(plan.dropped) : now.h(b));
        if (p.cell.two_products())
          second_R_.add(plan.dr_of(now.slot + b), plan.operand + (now.slot + b) * p.weights.hidden);
      }
    }
    for (int64_t i = 0; (p.dW || p.dW_hr) && i < chunk.rows(); ++i) {
      const Chunk::Row at = chunk.at(i);
      const int64_t slot = chunk.slot(at.k, at.b);
      if (p.dW_hr) W_hr_.add(plan.dh + slot * plan.dh_stride, plan.m + slot * p.weights.hidden);
      if (p.dW) add(W_, plan.du_of(slot), p.x.from(at.row * p.weights.W.columns));
    }
    for (WeightGradient<F>* gradient : all) gradient->flush();
  }

 private:
  // Adds the products of a row of gradients and one of h or x.
  static void add(WeightGradient<F>& gradient, const F* d, Rows<T> row) {
    if constexpr (has_bf16_dot<F>) {
      gradient.add(d, row.template as<F>());
    } else {
      as_stored(row, [&](const auto* from) { gradient.add(d, from); });
    }
  }

  T* const dR_;
  WeightGradient<F> first_R_, second_R_, W_, W_hr_;
};

}  // namespace
}  // namespace rnnkern
