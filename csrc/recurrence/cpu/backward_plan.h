// The layout of the backward's workspace. kernels.h includes this file once per SIMD level.
#pragma once

#include <optional>

#include "cpu/weight_gradient.h"
#include "recurrence/cpu/step.h"

namespace rnnkern {
namespace {

// A chunk of steps, in rows (slot, sequence), is kept until the gradients of the weights and dx have used it: the
// gradients of r and of u, the operands of a second product, the input of the projection of h and the gradient of its
// output, and gates that are recomputed.
template <class F>
struct BackwardPlan {
  using T = Arithmetic<F>;

  int64_t chunk;              // steps
  int64_t stride, dh_stride;  // elements between rows of dr and du, and of dh, padded to avoid cache conflicts
  int parts;  // copies of the weight gradients: one per thread, or one of which each thread fills its units' rows
  Workspace<T> workspace;
  T* zeros;
  F *dr, *du, *operand, *dh, *m;
  T *dR_workspace, *second_dR_workspace, *dW_workspace, *dW_hr_workspace, *step_bias, *step_bias_ih;
  PartialSums<T> dR, dW, dW_hr, dbias, dbias_ih;
  Product<F> first, second, input, projection;
  Zoneouts<T> zoneout;
  Dropout<T> dropout;
  F* dropped;  // per thread: rows of what R multiplied, where dropout made it differ from h
  std::optional<StepProducts<F>> recompute;
  T *u = nullptr, *saved = nullptr, *wide_h = nullptr;
  T *norms, *step_params;  // per thread, with norms: workspace for a row, and the gradients of the params in a step
  // Rows per thread: values in T that are stored in another type, the gradient of what a product passes to the
  // equations, gradients that zoneout passes directly to the old state, the new state of recomputed equations, and a
  // gradient that is discarded.
  T *du_row, *dr_row, *u_row, *old_row, *next_row, *operand_row, *grad_h_row, *dh_row;
  T *grad_row, *around, *made, *lost;

  BackwardPlan(const Backward<T>& p, ThreadContext me)
      : chunk(chunk_steps(p, p.above, me.size)),
        stride(larger(p.cell.gates, p.cell.recurrent) * p.weights.hidden + 64 / sizeof(F)),
        dh_stride(p.weights.width + 64 / sizeof(F)),
        parts(p.split_hidden ? 1 : me.size),
        workspace{p.workspace},
        zeros(workspace.alloc(zeros_size(p.weights))),
        dr(workspace.template alloc_as<F>(rows(p) * stride)),
        du(p.cell.joint ? dr : workspace.template alloc_as<F>(rows(p) * stride)),
        operand(p.cell.two_products() ? workspace.template alloc_as<F>(rows(p) * p.weights.hidden) : nullptr),
        dh(p.cell.projected ? workspace.template alloc_as<F>(rows(p) * dh_stride) : nullptr),
        m(p.cell.projected ? workspace.template alloc_as<F>(rows(p) * p.weights.hidden) : nullptr),
        dR_workspace(p.dR ? workspace.alloc(WeightGradient<F>::workspace_size(p.weights.R, p.parts), me) : nullptr),
        second_dR_workspace(p.dR && p.cell.two_products()
                                ? workspace.alloc(WeightGradient<F>::workspace_size(p.weights.R, p.parts), me)
                                : nullptr),
        dW_workspace(p.dW ? workspace.alloc(WeightGradient<F>::workspace_size(p.weights.W, p.parts), me) : nullptr),
        dW_hr_workspace(p.dW_hr ? workspace.alloc(WeightGradient<F>::workspace_size(p.weights.W_hr, p.parts), me)
                                : nullptr),
        step_bias(p.dbias ? workspace.alloc(p.cell.recurrent * p.weights.hidden, me) : nullptr),
        step_bias_ih(p.dbias_ih ? workspace.alloc(p.cell.gates * p.weights.hidden, me) : nullptr),
        dR(p.dR, parts, p.weights.R, workspace),
        dW(p.dW, parts, p.weights.W, workspace),
        dW_hr(p.dW_hr, parts, p.weights.W_hr, workspace),
        dbias(p.dbias, p.cell.normalised ? me.size : parts, p.cell.recurrent, p.weights.hidden, p.weights.hidden,
              workspace),
        dbias_ih(p.dbias_ih, p.cell.normalised ? me.size : parts, p.cell.gates, p.weights.hidden, p.weights.hidden,
                 workspace),
        first(p.weights.R, 0, p.cell.first_gates, true, false, workspace, zeros, me, p.parts, p.steps.batch),
        second(p.weights.R, p.cell.first_gates, p.cell.recurrent - p.cell.first_gates, true, false, workspace, zeros,
               me, p.parts, p.steps.batch),
        input(p.dx ? p.weights.W : Matrix<T>{}, 0, p.cell.gates, true, false, workspace, zeros, me, p.parts, rows(p)),
        projection(p.weights.W_hr, 0, 1, true, false, workspace, zeros, me, p.parts, p.steps.batch),
        zoneout(p.noise, p.keep, p.cell, p.steps.batch, p.weights, workspace),
        dropout(p.noise, p.steps.batch, p.weights.width, workspace),
        dropped(p.noise.dropout > 0 ? reinterpret_cast<F*>(workspace.alloc(p.steps.batch * p.weights.width, me))
                                    : nullptr),
        norms(p.cell.normalised ? workspace.alloc(p.cell.norm_rows * p.weights.hidden, me) : nullptr),
        step_params(p.cell.normalised ? workspace.alloc(p.cell.all_param_rows * p.weights.hidden, me) : nullptr) {
    const CellNumbers& cell = p.cell;
    const int64_t hidden = p.weights.hidden;
    auto rows_if = [&](bool needed, int values) { return needed ? workspace.alloc(values * hidden, me) : nullptr; };
    const bool narrow = p.h.narrow();
    du_row = rows_if(has_bf16_dot<F> && !cell.joint, cell.gates);
    dr_row = rows_if(has_bf16_dot<F>, cell.recurrent);
    old_row = rows_if(narrow, 1);
    next_row = rows_if(narrow, 1);
    grad_row = rows_if(cell.projected || cell.two_products(), 1);
    operand_row = rows_if(has_bf16_dot<F>, 1);
    grad_h_row = narrow && p.grad_h ? workspace.alloc(larger(hidden, p.weights.width), me) : nullptr;
    dh_row = p.dh ? workspace.alloc(larger(hidden, p.weights.width), me) : nullptr;
    around = rows_if(zoneout.any(), cell.states);
    lost = rows_if(cell.two_products() && p.reset, 1);
    if (!cell.saved || p.saved) return;
    recompute.emplace(p, rows(p), false, false, true, workspace, me);
    saved = workspace.alloc(rows(p) * cell.saved * hidden);
    made = rows_if(true, cell.states);
    u_row = rows_if(narrow || p.x, cell.gates);
    if (p.x) u = workspace.alloc(rows(p) * recompute->u_size());
    if (must_widen<F>(p.h)) wide_h = workspace.alloc(p.steps.batch * p.weights.width, me);
  }

  static int64_t zeros_size(const Weights<T>& weights) {
    return larger(larger(weights.hidden, weights.width), max_vectors * Vec<T>::width);
  }
  int64_t rows(const Backward<T>& p) const { return chunk * p.steps.batch; }

  F* dr_of(int64_t slot) const { return dr + slot * stride; }
  F* du_of(int64_t slot) const { return du + slot * stride; }
};

// A step of the backward pass, for one thread.
template <class T>
struct BackwardStep {
  int64_t t, row, row1;  // its number, its first row, the last of this thread's sequences
  int64_t slot;          // its first row in the workspace of a chunk
  PreviousState<T> h;    // the previous h

  RNNKERN_INLINE BackwardStep(const Backward<T>& p, const WorkRange& share, const Chunk& chunk, int64_t k,
                              const T* zeros)
      : t(p.steps.at(k)),
        row(p.steps.offset(t)),
        row1(smaller(share.row1, p.steps.rows(t))),
        slot(chunk.slot(k, 0)),
        h(p.steps, p.h0, p.h, zeros, p.reset, p.weights.width, t) {}
};

template <class F>
int64_t backward_workspace(const Backward<Arithmetic<F>>& p, int team) {
  return BackwardPlan<F>(p, ThreadContext{0, team, nullptr}).workspace.used;
}

}  // namespace
}  // namespace rnnkern
