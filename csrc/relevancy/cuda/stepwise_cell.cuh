// The kernels with one unit of one row per thread: the cell, forward and backward, and copies.
#pragma once

#include "cuda/elements.cuh"
#include "relevancy/cells.h"
#include "relevancy/cuda/problem.h"

namespace rnnkern::relevancy {

template <class T>
struct RememberKernel {
  using Problem = Remember<T>;
  static constexpr char header[] = "relevancy/cuda/stepwise_cell.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const Memory<T>& to = p.to;
    const int64_t n = p.hidden, kappa = to.members(), L = to.slots, rho = to.relevant_size, given = p.slots;
    const int64_t index = global_thread(), b = index / (kappa * n), place = index / n % kappa, i = index % n;
    if (b >= p.batch) return;
    if (place < L) {
      const int64_t from = b * given + place, slot = b * L + place;
      const bool holds = place < given && p.buffer_ids[from] >= 0;
      to.buffer[slot * n + i] = holds ? p.buffer[from * n + i] : T(0);
      if (i > 0) return;
      to.buffer_scores[slot] = holds ? p.buffer_scores[from] : T(0);
      to.buffer_ids[slot] = holds ? p.buffer_ids[from] : -1;
    } else {
      const int64_t slot = b * rho + place - L;
      const bool holds = p.ids[slot] >= 0;
      to.relevant[slot * n + i] = holds ? p.relevant[slot * n + i] : T(0);
      if (i > 0) return;
      to.scores[slot] = holds ? p.scores[slot] : T(0);
      to.ids[slot] = holds ? p.ids[slot] : -1;
    }
  }
};

template <class Cell, class T>
struct CellForwardKernel {
  using Problem = CellForward<T>;
  static constexpr char header[] = "relevancy/cuda/stepwise_cell.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t n = p.hidden, index = global_thread(), row = index / n, column = index % n;
    if (row >= p.rows) return;
    const bool reset = p.reset && p.reset[row];
    T u[Cell::gates], r[Cell::gates], old[2] = {}, next[2], params[Cell::params + 1], save[Cell::saved + 1];
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) {
      u[g] = p.u[(row * Cell::gates + g) * n + column];
      r[g] = reset ? T(0) : p.r[(row * (Cell::gates + 1) + g) * n + column];
    }
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) params[i] = p.params[i][column];
    if (Cell::states > 1 && !reset) old[1] = p.c[index];
    Cell::forward(u, r, old, params, next, save);
    p.h[index] = p.now[index] = next[0];
    if constexpr (Cell::states > 1) {
      p.c[index] = next[1];
      if (p.cells) p.cells[index] = next[1];
    }
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::saved; ++i) {
      if (p.gates) p.gates[(row * Cell::saved + i) * n + column] = save[i];
    }
  }
};

template <class Cell, class T>
struct CellBackwardKernel {
  using Problem = CellBackward<T>;
  static constexpr char header[] = "relevancy/cuda/stepwise_cell.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t n = p.rows.hidden, index = global_thread(), b = index / n, i = index % n;
    if (b >= p.alive) return;
    const int64_t row = p.rows.offset(p.t) + b;
    const bool reset = p.rows.resets(p.t, b);
    T old[2] = {}, next[2] = {}, save[Cell::saved + 1], params[Cell::params + 1], dparams[Cell::params + 1] = {};
    T grad[2] = {}, du[Cell::gates], dr[Cell::gates];
    next[0] = p.h[row * n + i];
    grad[0] = p.dh[row * n + i] + p.through_key[index];
    if constexpr (Cell::states > 1) {
      if (!reset) old[1] = p.t > 0 ? p.cells[(p.rows.offset(p.t - 1) + b) * n + i] : p.c0[index];
      grad[1] = p.dc[index];
    }
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::saved; ++k) save[k] = p.gates[(row * Cell::saved + k) * n + i];
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) params[k] = p.params[k][i];
    Cell::backward(save, old, next, params, grad, du, dr, dparams);
    T* const step = p.step + b * (Cell::gates + 1) * n + i;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) {
      p.du[(row * Cell::gates + g) * n + i] = du[g];
      step[g * n] = reset ? T(0) : dr[g];
    }
    step[Cell::gates * n] = reset ? T(0) : p.dquery[row * n + i];
    if (Cell::states > 1) p.dc[index] = reset ? T(0) : grad[1];
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) p.dparams[k][index] += dparams[k];
  }
};

}  // namespace rnnkern::relevancy
