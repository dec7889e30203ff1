// The kernels with one unit of one row per thread: the pointwise parts of the stepwise kernel, the recomputation of
// gates, and the copies and sums between products.
#pragma once

#include "cells/list.h"
#include "cuda/elements.cuh"
#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/noise.cuh"

namespace rnnkern {

// What these kernels have in common.
template <class P>
struct StepKernel {
  using Problem = P;
  static constexpr char header[] = "recurrence/cuda/step.cuh";
  static constexpr int threads = step_threads;
};

// Stores the new h of one unit, and after dropout as the input of the next product. `index` is the unit's index in
// (B, H).
template <bool noisy, class P, class S>
RNNKERN_DEVICE void store_h(const P& p, int64_t index, S h) {
  if (p.h) p.h[index] = h;
  if (p.x) p.x[index] = noisy ? device::narrow<S>(drop(p.noise, index, widen(h))) : h;
}

// One unit of one row; `index` is the unit's index in (B, H).
template <class Cell, class S, bool noisy>
struct StepForwardKernel : StepKernel<StepForward<S>> {
  using A = Arithmetic<S>;
  static constexpr int first_state = Cell::projected;

  const StepForward<S>& p;
  const int64_t index, row = index / p.hidden, column = index % p.hidden;
  const int64_t d = p.hidden / p.heads, head = column / d, unit = column % d;
  const int64_t by_head = (head * p.rows + row) * d + unit;
  A u[Cell::gates], r[Cell::recurrent + 1], old[Cell::states] = {}, save[Cell::saved + 1] = {}, operand;

  RNNKERN_DEVICE static void run(const StepForward<S>& p) {
    const int64_t index = global_thread();
    if (index >= p.rows * p.hidden) return;
    StepForwardKernel unit(p, index);
    if constexpr (Cell::two_products) {
      if (p.operand) return unit.prepare();
      Cell::prepare(unit.u, unit.r, unit.old, unit.save, unit.operand);
    }
    unit.forward();
  }

  RNNKERN_DEVICE StepForwardKernel(const StepForward<S>& p, int64_t index) : p(p), index(index) {
    const bool reset = p.reset && p.reset[row];
    const int available = p.operand ? Cell::first_gates : Cell::recurrent;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) u[g] = widen(p.u[(row * Cell::gates + g) * p.hidden + column]);
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::recurrent; ++g) {
      const bool product = g < available && !reset;
      r[g] = product ? widen(p.r[((head * p.rows + row) * Cell::recurrent + g) * d + unit]) : A(0);
      if (p.bias) r[g] += widen(p.bias[g * p.hidden + column]);
    }
    if (p.previous && !Cell::projected) old[0] = widen(p.previous[by_head]);
    RNNKERN_UNROLL
    for (int s = first_state; s < Cell::states; ++s) {
      if (p.state[s] && !reset) old[s] = p.state[s][index];
    }
  }

  // The operand of the second product. Saved values that a cell with norms needs after it are stored.
  RNNKERN_DEVICE void prepare() {
    Cell::prepare(u, r, old, save, operand);
    if constexpr (noisy) operand = drop(p.noise, index, operand);
    p.operand[p.operand_by_head ? by_head : index] = device::narrow<S>(operand);
    if (Cell::norms > 0) store_saved();
  }

  RNNKERN_DEVICE void forward() {
    A next[Cell::states], params[Cell::params + 1];
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) params[i] = widen(p.params[i][column]);
    Cell::forward(u, r, old, params, next, save);
    if constexpr (noisy) {
      if (p.candidates) p.candidates[index] = next[0];
      RNNKERN_UNROLL
      for (int s = first_state; s < Cell::states; ++s) {
        next[s] = mix(p.noise, s, row, column, p.hidden, old[s], next[s]);
      }
    }
    RNNKERN_UNROLL
    for (int s = first_state; s < Cell::states; ++s) {
      if (p.next[s]) p.next[s][index] = next[s];
    }
    store_h<noisy>(p, index, device::narrow<S>(next[0]));
    RNNKERN_UNROLL
    for (int s = 1; s < Cell::states; ++s) {
      if (p.cells[s]) p.cells[s][index] = next[s];
    }
    store_saved();
  }

  RNNKERN_DEVICE void store_saved() const {
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::saved; ++i) {
      if (p.saved) p.saved[(row * Cell::saved + i) * p.hidden + column] = save[i];
    }
  }
};

// Whether there is a previous step, in processing order, in which sequence b was alive.
template <class S>
RNNKERN_DEVICE bool finishes(const StepBackward<S>& p, int64_t b) {
  return p.finished >= 0 && b < p.finished_alive;
}

// The gradient that R passes to its input at step t; `index` is the unit's index in (B, H).
template <bool noisy, class S>
RNNKERN_DEVICE Arithmetic<S> through_R(const StepBackward<S>& p, int64_t t, int64_t b, int64_t index, S product) {
  const Arithmetic<S> scale = p.grad_scale ? widen(p.grad_scale[t * p.scale_step + b * p.scale_row]) : 1;
  return noisy ? drop(p.noise, index, scale * widen(product)) : scale * widen(product);
}

// One unit of one sequence; `index` is the unit's index in (B, H).
template <class Cell, class S, bool noisy>
struct StepBackwardKernel : StepKernel<StepBackward<S>> {
  using A = Arithmetic<S>;
  static constexpr int first_state = Cell::projected;

  const StepBackward<S>& p;
  const int64_t index, hidden = p.sequence.hidden, b = index / hidden, column = index % hidden;
  const int64_t d = p.sequence.head_size(), head = column / d, unit = column % d;
  const bool alive = p.t >= 0 && b < p.alive;
  BackwardInput<Cell, S> input;
  A old[Cell::states], next[Cell::states], grad[Cell::states];
  A du[Cell::gates] = {}, dr[Cell::recurrent + 1] = {};

  RNNKERN_DEVICE static void run(const StepBackward<S>& p) {
    const int64_t index = global_thread();
    if (index >= p.threads * p.sequence.hidden) return;
    StepBackwardKernel unit(p, index);
    if constexpr (Cell::two_products) {
      if (p.second) return unit.run_second();
    }
    unit.finish();
    if (unit.alive) unit.backward();
    unit.store_carry();
  }

  RNNKERN_DEVICE StepBackwardKernel(const StepBackward<S>& p, int64_t index) : p(p), index(index) {
    RNNKERN_UNROLL
    for (int s = first_state; s < Cell::states; ++s) grad[s] = p.carry[s][index];
  }

  // Finishes the step processed before, and adds the gradient of the output of this one.
  RNNKERN_DEVICE void finish() {
    if (Cell::projected) return;
    if (finishes(p, b)) {
      grad[0] += through_R<noisy>(p, p.finished, b, index, p.from_R[(head * p.finished_alive + b) * d + unit]);
      if (p.sequence.resets(p.finished, b)) {
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) grad[s] = A(0);
      }
    }
    if (alive && p.grad_h) grad[0] += widen(p.grad_h[(p.row + b) * hidden + column]);
  }

  RNNKERN_DEVICE void store_carry() const {
    RNNKERN_UNROLL
    for (int s = first_state; s < Cell::states; ++s) p.carry[s][index] = grad[s];
  }

  RNNKERN_DEVICE void fetch() {
    input.fetch(p, int(p.t), p.row + b, p.here + b, int(b), int(head), int(unit), int(d), int(p.sequence.length(b)));
    input.states(old, next);
  }

  template <int last>
  RNNKERN_DEVICE void give() const {
    store_gradients<Cell, S, 0, last>(p, p.row + b, p.here + b, head, unit, d, du, dr);
    RNNKERN_UNROLL
    for (int g = 0; g < last; ++g) {
      p.step_dr[((head * p.alive + b) * Cell::recurrent + g) * d + unit] = device::narrow<S>(dr[g]);
    }
  }

  RNNKERN_DEVICE void backward() {
    fetch();
    if (Cell::projected) grad[0] = widen(p.from_R[index]);
    A kept[Cell::states] = {};  // gradients that zoneout passes to the old state directly
    A params[Cell::params + 1], dparams[Cell::params + 1] = {};
    if constexpr (noisy) {
      if (p.candidates) next[0] = p.candidates[(p.row + b) * hidden + column];
      RNNKERN_UNROLL
      for (int s = first_state; s < Cell::states; ++s) {
        kept[s] = old_weight(p.noise, s, p.t, b, column, hidden) * grad[s];
        grad[s] -= kept[s];
      }
    }
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) params[i] = widen(p.params[i][column]);
    Cell::backward(input.save, old, next, params, grad, du, dr, dparams);
    if constexpr (noisy) {
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) grad[s] += kept[s];
    }
    give<Cell::recurrent>();
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) p.dparams[i][index] += dparams[i];
    if constexpr (Cell::projected) {
      p.operand[(p.here + b) * hidden + column] = device::narrow<S>(Cell::unprojected(input.save, old));
      if (input.reset) grad[1] = A(0);
    }
  }

  // The part after the second product. The first part has already set some of the gradients of the first gates.
  RNNKERN_DEVICE void run_second() {
    fetch();
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::first_gates; ++g) {
      if (g < Cell::gates) du[g] = widen(p.du[((p.row + b) * Cell::gates + g) * hidden + column]);
      dr[g] = widen(p.step_dr[((head * p.alive + b) * Cell::recurrent + g) * d + unit]);
    }
    A operand;
    const A doperand = through_R<noisy>(p, p.t, b, index, p.from_R[(head * p.alive + b) * d + unit]);
    Cell::prepare_backward(input.save, old, doperand, grad, du, dr, operand);
    p.operand[(head * p.rows + p.here + b) * d + unit] =
        device::narrow<S>(noisy ? drop(p.noise, index, operand) : operand);
    give<Cell::first_gates>();
    store_carry();
  }
};

// The kernels around the projection of h, one column of h of one row per thread. Forward: zoneout and dropout of the
// projected h. Backward: its gradient.
template <class S, bool noisy>
struct StepProjectedKernel : StepKernel<StepProjected<S>> {
  using A = Arithmetic<S>;

  RNNKERN_DEVICE static void run(const StepProjected<S>& p) {
    const int64_t index = global_thread();
    if (index >= p.rows * p.width) return;
    const int64_t row = index / p.width, column = index % p.width;
    A h = widen(p.product[index]);
    if constexpr (noisy) {
      const A old = p.reset && p.reset[row] ? A(0) : p.state[index];
      h = mix(p.noise, 0, row, column, p.width, old, h);
    }
    p.state[index] = h;
    store_h<noisy>(p, index, device::narrow<S>(h));
  }
};

template <class S, bool noisy>
struct StepProjectedBackwardKernel : StepKernel<StepBackward<S>> {
  using A = Arithmetic<S>;

  RNNKERN_DEVICE static void run(const StepBackward<S>& p) {
    const int64_t index = global_thread(), width = p.sequence.hidden;
    if (index >= p.threads * width) return;
    const int64_t b = index / width, column = index % width;
    A grad = p.carry[0][index];
    if (finishes(p, b)) {
      grad += through_R<noisy>(p, p.finished, b, index, p.from_R[index]);
      if (p.sequence.resets(p.finished, b)) grad = A(0);
    }
    if (p.t >= 0 && b < p.alive) {
      if (p.grad_h) grad += widen(p.grad_h[(p.row + b) * width + column]);
      A kept = 0;  // the rest of the gradient passes through W_hr
      if constexpr (noisy) kept = old_weight(p.noise, 0, p.t, b, column, width) * grad;
      const S dh = device::narrow<S>(grad - kept);
      p.dh[(p.here + b) * width + column] = p.step_dh[index] = dh;
      grad = kept;
    }
    p.carry[0][index] = grad;
  }
};

template <class S>
struct MaskKernel : StepKernel<Mask<S>> {
  using A = Arithmetic<S>;

  RNNKERN_DEVICE static void run(const Mask<S>& p) {
    const int64_t index = global_thread();
    if (index >= p.batch * p.hidden) return;
    const int64_t b = index / p.hidden, unit = index % p.hidden;
    p.mask[index] = hits(*p.seed, p.below, dropout_stream, 0, b, unit, p.hidden) ? A(0) : p.scale;
  }
};

template <class S>
struct DropKernel : StepKernel<Drop<S>> {
  RNNKERN_DEVICE static void run(const Drop<S>& p) {
    const Sequence& seq = p.sequence;
    const int64_t index = global_thread();
    if (index >= p.rows * seq.hidden) return;
    const int64_t here = index / seq.hidden, column = index % seq.hidden, row = seq.offset(p.first) + here;
    const int64_t b = row - seq.offset(step_of(seq, p.first, row)), d = seq.head_size();
    const int64_t element = (column / d * p.rows + here) * d + column % d;
    p.to[element] = device::narrow<S>(widen(p.from[element]) * p.mask[b * seq.hidden + column]);
  }
};

}  // namespace rnnkern
