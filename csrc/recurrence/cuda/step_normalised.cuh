// The stepwise kernels of cells with layer norm. A block has one row: its norms, its equations, and the backward of the
// norms. A thread has the same units in every pass, and reads only what it wrote itself. Sums use a fixed tree.
#pragma once

#include "device/sums.h"
#include "recurrence/cuda/step.cuh"

namespace rnnkern {

constexpr int norm_threads = 128, norm_warps = norm_threads / device::warp_size;

// Replaces x[i] by the mean over the row: the sum of x[i] over all threads, divided by `elements`.
template <int count, class A>
RNNKERN_DEVICE void row_means(A (&x)[count], int64_t elements) {
  A* const of_warps = device::SharedArena{device::shared_memory()}.alloc<A>(count * norm_warps);
  RNNKERN_UNROLL
  for (int i = 0; i < count; ++i) {
    x[i] = device::warp_sum(x[i]);
    if (device::lane() == 0) of_warps[i * norm_warps + device::warp()] = x[i];
  }
  device::block_barrier();
  RNNKERN_UNROLL
  for (int i = 0; i < count; ++i) {
    x[i] = A(0);
    RNNKERN_UNROLL
    for (int warp = 0; warp < norm_warps; ++warp) x[i] += of_warps[i * norm_warps + warp];
    x[i] /= A(elements);
  }
  device::block_barrier();  // the next sums overwrite of_warps
}

template <class F>
RNNKERN_DEVICE void for_own(int64_t elements, F f) {
  RNNKERN_ROLLED
  for (int64_t i = device::thread(); i < elements; i += norm_threads) f(i);
}

// (x - mean) / sqrt(variance + eps) of the row x = value(0), value(1), ...
template <class A>
struct RowNorm {
  A mean[1] = {}, rstd = 0;

  template <class Value>
  RNNKERN_DEVICE static RowNorm of(int64_t elements, Value value) {
    RowNorm norm;
    for_own(elements, [&](int64_t i) { norm.mean[0] += value(i); });
    row_means(norm.mean, elements);
    A variance[1] = {};
    for_own(elements, [&](int64_t i) {
      const A x = value(i) - norm.mean[0];
      variance[0] += x * x;
    });
    row_means(variance, elements);
    norm.rstd = A(1) / sqrt(variance[0] + A(norm_eps));
    return norm;
  }

  RNNKERN_DEVICE A operator()(A x) const { return (x - mean[0]) * rstd; }

  // dL/dx, from the gradient of the norm's output, the mean of that gradient over the row, and the mean of its product
  // with the output.
  RNNKERN_DEVICE A backward(A x, A grad, const A (&means)[2]) const {
    return rstd * (grad - means[0] - (*this)(x)*means[1]);
  }
};

template <class S>
RNNKERN_DEVICE Arithmetic<S> affine(Arithmetic<S> x, const S* gain, const S* bias, int64_t i) {
  const Arithmetic<S> scaled = x * widen(gain[i]);
  return bias ? scaled + widen(bias[i]) : scaled;
}

template <class Cell, class S, bool noisy>
struct NormalisedStepForwardKernel {
  using Problem = StepForward<S>;
  static constexpr char header[] = "recurrence/cuda/step_normalised.cuh";
  using A = Arithmetic<S>;
  static constexpr int threads = norm_threads, least_blocks = 1;  // otherwise some of them spill
  static constexpr int gates = Cell::gates, own = Cell::saved - gates;

  RNNKERN_DEVICE static void put(const Problem& p, int64_t row, int64_t unit, const A (&old)[Cell::states],
                                 A (&next)[Cell::states]) {
    const int64_t index = row * p.hidden + unit;
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) {
      if constexpr (noisy) next[s] = mix(p.noise, s, row, unit, p.hidden, old[s], next[s]);
      p.next[s][index] = next[s];
    }
    store_h<noisy>(p, index, device::narrow<S>(next[0]));
    if constexpr (Cell::states > 1) {
      if (p.cells[1]) p.cells[1][index] = next[1];
    }
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t row = device::block(), hidden = p.hidden, columns = gates * hidden;
    const bool reset = p.reset && p.reset[row], recompute = p.previous;  // recompute: only `saved` is wanted
    A* const saved = p.saved + row * Cell::saved * hidden;
    const auto enter = [&](int64_t unit, A(&old)[Cell::states]) {
      if (recompute) {
        old[0] = widen(p.previous[row * hidden + unit]);
      } else if (!reset) {
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) old[s] = p.state[s][row * hidden + unit];
      }
    };
    const auto product = [&](int64_t i) { return reset ? A(0) : widen(p.r[row * columns + i]); };
    const auto norm = RowNorm<A>::of(columns, product);
    for_own(hidden, [&](int64_t unit) {
      A u[gates], r[gates], old[Cell::states] = {}, next[Cell::states], save[Cell::saved];
      RNNKERN_UNROLL
      for (int g = 0; g < gates; ++g) {
        const int64_t i = g * hidden + unit;
        u[g] = widen(p.u[row * columns + i]);
        save[own + g] = product(i);
        r[g] = affine(norm(save[own + g]), p.params[0], p.bias, i);
      }
      enter(unit, old);
      Cell::forward(u, r, old, static_cast<const A*>(nullptr), next, save);
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::saved; ++i) saved[i * hidden + unit] = save[i];
      if (Cell::states == 1 && !recompute) put(p, row, unit, old, next);
    });
    if constexpr (Cell::states > 1) {
      if (recompute) return;
      const auto fetch = [&](int64_t unit, A(&old)[Cell::states], A(&save)[own]) {
        enter(unit, old);
        RNNKERN_UNROLL
        for (int i = 0; i < own; ++i) save[i] = saved[i * hidden + unit];
        return Cell::next_c(save, old);
      };
      const auto norm_c = RowNorm<A>::of(hidden, [&](int64_t unit) {
        A old[Cell::states] = {}, save[own];
        return fetch(unit, old, save);
      });
      for_own(hidden, [&](int64_t unit) {
        A old[Cell::states] = {}, next[Cell::states], save[own];
        next[1] = fetch(unit, old, save);
        next[0] = Cell::output(save, affine(norm_c(next[1]), p.params[1], p.params[2], unit));
        put(p, row, unit, old, next);
      });
    }
  }
};

template <class Cell, class S, bool noisy>
struct NormalisedStepBackwardKernel {
  using Problem = StepBackward<S>;
  static constexpr char header[] = "recurrence/cuda/step_normalised.cuh";
  using A = Arithmetic<S>;
  static constexpr int threads = norm_threads, least_blocks = 1;  // otherwise some of them spill
  static constexpr int gates = Cell::gates, own = Cell::saved - gates;

  // The inputs of the equations of a unit.
  struct Input : BackwardInput<Cell, S> {
    A old[Cell::states], next[Cell::states];

    RNNKERN_DEVICE Input(const Problem& p, int64_t b, int64_t unit) {
      this->fetch(p, int(p.t), p.row + b, p.here + b, int(b), 0, int(unit), int(p.sequence.hidden),
                  int(p.sequence.length(b)));
      this->states(old, next);
    }
  };

  // Writes the gradients of the state after this step to p.carry.
  RNNKERN_DEVICE static void arrive(const Problem& p, int64_t b, bool alive) {
    const int64_t hidden = p.sequence.hidden;
    for_own(hidden, [&](int64_t unit) {
      const int64_t index = b * hidden + unit;
      A grad = p.carry[0][index];
      if (finishes(p, b)) {
        grad += through_R<noisy>(p, p.finished, b, index, p.from_R[index]);
        if (p.sequence.resets(p.finished, b)) {
          grad = A(0);
          if constexpr (Cell::states > 1) p.carry[1][index] = A(0);
        }
      }
      if (alive && p.grad_h) grad += widen(p.grad_h[(p.row + b) * hidden + unit]);
      p.carry[0][index] = grad;
    });
  }

  RNNKERN_DEVICE static A kept(const Problem& p, int s, int64_t b, int64_t unit, A grad) {
    return noisy ? old_weight(p.noise, s, p.t, b, unit, p.sequence.hidden) * grad : A(0);
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t b = device::block(), hidden = p.sequence.hidden, columns = gates * hidden;
    const bool alive = p.t >= 0 && b < p.alive;
    arrive(p, b, alive);
    if (!alive) return;

    // The gradient of c that passes through its norm. `workspace` holds the gradient of the norm's output.
    A* const workspace = p.workspace + b * columns;
    RowNorm<A> norm_c;
    A of_c[2] = {};
    if constexpr (Cell::states > 1) {
      norm_c = RowNorm<A>::of(hidden, [&](int64_t unit) {
        const Input input(p, b, unit);
        return Cell::next_c(input.save, input.old);
      });
      for_own(hidden, [&](int64_t unit) {
        const Input input(p, b, unit);
        const int64_t index = b * hidden + unit;
        const A x = norm_c(Cell::next_c(input.save, input.old)), dh = p.carry[0][index];
        const A y = affine(x, p.params[1], p.params[2], unit);
        const A dy = Cell::output_backward(input.save, y, dh - kept(p, 0, b, unit, dh));
        p.dparams[1][index] += dy * x;
        p.dparams[2][index] += dy;
        workspace[unit] = dy * widen(p.params[1][unit]);
        of_c[0] += workspace[unit];
        of_c[1] += workspace[unit] * x;
      });
      row_means(of_c, hidden);
    }

    // The equations. `workspace` holds the gradient of the output of the norm of R h.
    const A* const products = p.saved + ((p.here + b) * Cell::saved + own) * hidden;
    const auto norm = RowNorm<A>::of(columns, [&](int64_t i) { return products[i]; });
    A of_r[2] = {};
    for_own(hidden, [&](int64_t unit) {
      Input input(p, b, unit);
      A grad[Cell::states], stays[Cell::states], x[gates], du[gates], dr[gates];
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        grad[s] = p.carry[s][b * hidden + unit];
        stays[s] = kept(p, s, b, unit, grad[s]);
        grad[s] -= stays[s];
      }
      if constexpr (Cell::states > 1) {
        const A c = Cell::next_c(input.save, input.old);
        input.next[1] = affine(norm_c(c), p.params[1], p.params[2], unit);
        grad[1] += norm_c.backward(c, workspace[unit], of_c);
      }
      RNNKERN_UNROLL
      for (int g = 0; g < gates; ++g) {
        x[g] = norm(input.save[own + g]);
        input.save[own + g] = affine(x[g], p.params[0], p.bias, g * hidden + unit);
      }
      Cell::backward(input.save, input.old, input.next, static_cast<const A*>(nullptr), grad, du, dr,
                     static_cast<A*>(nullptr));
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][b * hidden + unit] = grad[s] + stays[s];
      RNNKERN_UNROLL
      for (int g = 0; g < gates; ++g) {
        const int64_t i = g * hidden + unit;
        p.du[(p.row + b) * columns + i] = device::narrow<S>(du[g]);
        p.dparams[0][b * columns + i] += dr[g] * x[g];
        if (p.dbias) p.dbias[b * columns + i] += dr[g];
        workspace[i] = dr[g] * widen(p.params[0][i]);
        of_r[0] += workspace[i];
        of_r[1] += workspace[i] * x[g];
      }
    });
    row_means(of_r, columns);
    for_own(hidden, [&](int64_t unit) {
      RNNKERN_UNROLL
      for (int g = 0; g < gates; ++g) {
        const int64_t i = g * hidden + unit;
        const S rounded = device::narrow<S>(norm.backward(products[i], workspace[i], of_r));
        p.dr[(p.here + b) * columns + i] = rounded;
        p.step_dr[b * columns + i] = rounded;
      }
    });
  }
};

}  // namespace rnnkern
