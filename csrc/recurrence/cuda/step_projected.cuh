// The kernels around the projection of h, one column of h of one row per thread. Forward: zoneout and dropout of the
// projected h. Backward: its gradient.
#pragma once

#include "recurrence/cuda/step.cuh"

namespace rnnkern {

template <class S, bool noisy>
struct StepProjectedKernel {
  using Problem = StepProjected<S>;
  static constexpr char header[] = "recurrence/cuda/step_projected.cuh";
  using A = Arithmetic<S>;
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t index = global_thread();
    if (index >= p.rows * p.width) return;
    const int64_t row = index / p.width, column = index % p.width;
    A h = widen(p.product[index]);
    if constexpr (noisy) {
      const A old = p.reset && p.reset[row] ? A(0) : p.state[index];
      const A weight = old_weight(p.noise, 0, p.noise.t, row, column, p.width);
      h = p.noise.seed ? weight > 0 ? old : h : weight * old + (A(1) - weight) * h;
    }
    p.state[index] = h;
    const S stored = device::narrow<S>(h);
    p.h[index] = stored;
    p.x[index] = noisy ? device::narrow<S>(drop(p.noise, index, widen(stored))) : stored;
  }
};

template <class S, bool noisy>
struct StepProjectedBackwardKernel {
  using Problem = StepBackward<S>;
  static constexpr char header[] = "recurrence/cuda/step_projected.cuh";
  using A = Arithmetic<S>;
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
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

}  // namespace rnnkern
