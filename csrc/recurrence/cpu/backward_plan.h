// How the backward cuts its workspace. Included by kernels.h, once per SIMD level.
#pragma once

#include <optional>

#include "cpu/weight_gradient.h"
#include "recurrence/cpu/step.h"

namespace rnnkern {
namespace {

// Workspace. A chunk of steps is kept, rows (slot, sequence), until the weights' gradients and dx have taken it: the
// gradients of r and of u, the operands of a second product, what was projected and the gradient of what it became,
// the gates where they are computed again.
template <class S>
struct BackwardPlan {
  using T = Arithmetic<S>;
  using F = Factor<S>;

  int64_t chunk;              // steps
  int64_t stride, dh_stride;  // elements between rows of dr and of du, and of dh, which are apart in the cache
  int parts;                  // of the weights' gradients: every member fills its own, or its units' rows of the one
  Room<T> room;
  T* zeros;
  F *dr, *du, *operand, *dh, *m;
  T *dR_room, *second_dR_room, *dW_room, *dW_hr_room, *step_bias, *step_bias_ih;
  Parts<T> dR, dW, dW_hr, dbias, dbias_ih;
  Product<F> first, second, input, projection;
  Zoneouts<T> zoneout;
  Dropout<T> dropout;
  F* dropped;  // a member's rows of what R multiplied, where that was not h
  std::optional<StepProducts<S>> again;
  T *u = nullptr, *saved = nullptr, *h_before = nullptr;
  T* norms;  // a member's room of a normalised row
  // A member's rows: what equations take in another form than memory holds it, what goes to the old state around them,
  // the new state of equations that run again, and a gradient that goes nowhere.
  T *du_row, *dr_row, *u_row, *old_row, *next_row, *grad_row, *operand_row, *around, *made, *lost;

  BackwardPlan(const Backward<S>& p, Member me)
      : chunk(chunk_steps(p, p.above, me.size)),
        stride(p.cell.gates * p.weights.hidden + 64 / sizeof(F)),
        dh_stride(p.weights.width + 64 / sizeof(F)),
        parts(p.split_hidden ? 1 : me.size),
        room{p.room},
        zeros(room.take(zeros_size(p.weights))),
        dr(room.template take_as<F>(rows(p) * stride)),
        du(p.cell.joint ? dr : room.template take_as<F>(rows(p) * stride)),
        operand(p.cell.two_products() ? room.template take_as<F>(rows(p) * p.weights.hidden) : nullptr),
        dh(p.cell.projected ? room.template take_as<F>(rows(p) * dh_stride) : nullptr),
        m(p.cell.projected ? room.template take_as<F>(rows(p) * p.weights.hidden) : nullptr),
        dR_room(p.dR ? room.take(WeightGradient<F>::room_size(p.weights.R), me) : nullptr),
        second_dR_room(p.dR && p.cell.two_products() ? room.take(WeightGradient<F>::room_size(p.weights.R), me)
                                                     : nullptr),
        dW_room(p.dW ? room.take(WeightGradient<F>::room_size(p.weights.W), me) : nullptr),
        dW_hr_room(p.dW_hr ? room.take(WeightGradient<F>::room_size(p.weights.W_hr), me) : nullptr),
        step_bias(p.dbias ? room.take(p.cell.recurrent * p.weights.hidden, me) : nullptr),
        step_bias_ih(p.dbias_ih ? room.take(p.cell.gates * p.weights.hidden, me) : nullptr),
        dR(p.dR, parts, p.weights.R, room),
        dW(p.dW, parts, p.weights.W, room),
        dW_hr(p.dW_hr, parts, p.weights.W_hr, room),
        dbias(p.dbias, p.cell.normalised ? me.size : parts, p.cell.recurrent, p.weights.hidden, p.weights.hidden, room),
        dbias_ih(p.dbias_ih, p.cell.normalised ? me.size : parts, p.cell.gates, p.weights.hidden, p.weights.hidden,
                 room),
        first(p.weights.R, 0, p.cell.first_gates, true, false, room, zeros, me),
        second(p.weights.R, p.cell.first_gates, p.cell.recurrent - p.cell.first_gates, true, false, room, zeros, me),
        input(p.dx ? p.weights.W : Matrix<T>{}, 0, p.cell.gates, true, false, room, zeros, me),
        projection(p.weights.W_hr, 0, 1, true, false, room, zeros, me),
        zoneout(p.noise, p.cell, p.steps.batch, p.weights, room),
        dropout(p.noise, p.steps.batch, p.weights.width, room),
        dropped(p.noise.dropout > 0 ? reinterpret_cast<F*>(room.take(p.steps.batch * p.weights.width, me)) : nullptr),
        norms(p.cell.normalised ? room.take(p.cell.room_size(p.weights.hidden), me) : nullptr) {
    const CellNumbers& cell = p.cell;
    const int64_t hidden = p.weights.hidden;
    auto rows_if = [&](bool needed, int values) { return needed ? room.take(values * hidden, me) : nullptr; };
    du_row = rows_if(dots<S> && !cell.joint, cell.gates);
    dr_row = rows_if(dots<S>, cell.recurrent);
    old_row = rows_if(narrow<S>, 1);
    next_row = rows_if(narrow<S>, 1);
    grad_row = rows_if(cell.projected || cell.two_products() || (narrow<S> && p.grad_h), 1);
    operand_row = rows_if(dots<S>, 1);
    around = rows_if(p.noise.any(), cell.states);
    lost = rows_if(cell.two_products() && p.reset, 1);
    if (!cell.saved || p.saved) return;
    again.emplace(p, rows(p), false, false, room, me);
    saved = room.take(rows(p) * cell.saved * hidden);
    made = rows_if(true, cell.states);
    u_row = rows_if(narrow<S> && !p.x, cell.gates);
    if (p.x) u = room.take(rows(p) * cell.gates * hidden);
    if (StepProducts<S>::widens) h_before = room.take(p.steps.batch * p.weights.width, me);
  }

  static int64_t zeros_size(const Weights<T>& weights) {
    return larger(larger(weights.hidden, weights.width), max_vectors * Vec<T>::width);
  }
  int64_t rows(const Backward<S>& p) const { return chunk * p.steps.batch; }
};

template <class S>
int64_t backward_room(const Backward<S>& p, int team) {
  return BackwardPlan<S>(p, Member{0, team, nullptr}).room.used;
}

}  // namespace
}  // namespace rnnkern
