// The backward of all steps of one sample, by one block. Weights are kept as described in per_sequence_tile.cuh;
// gradients of events are kept in their rows, as in stepwise_attention_backward.cuh, in the cache of the
// multiprocessor.
#pragma once

#include "relevancy/cuda/per_sequence_tile.cuh"
#include "relevancy/cuda/stepwise_attention_backward.cuh"

namespace rnnkern::relevancy {

template <class Cell, int P, class W>
struct PerSequenceBackwardKernel {
  using Problem = PerSequenceBackward;
  static constexpr char header[] = "relevancy/cuda/per_sequence_backward.cuh";
  using T = Tile<P, W>;
  using Whole = Weights<Cell, P, W, backward_placement<Cell::gates, P, W>>;
  using Attend = StepwiseAttentionBackwardKernel<float>;
  static constexpr int threads = per_sequence_threads, least_blocks = 1;

  struct SharedLayout {
    Scratch<float> scratch;
    float *dkey, *gates;  // (P,); (G+1, P)
    Whole::SharedLayout weights;

    static RNNKERN_HOST_DEVICE SharedLayout carve(device::SharedArena& arena) {
      SharedLayout shared_layout;
      shared_layout.scratch = Scratch<float>::carve(arena);
      shared_layout.dkey = arena.alloc<float>(P);
      shared_layout.gates = arena.alloc<float>((Cell::gates + 1) * P);
      shared_layout.weights = Whole::SharedLayout::carve(arena);
      return shared_layout;
    }
  };

  RNNKERN_DEVICE static void run(const Problem& p) {
    device::SharedArena arena{device::shared_memory()};
    const SharedLayout shared_layout = SharedLayout::carve(arena);
    const CellBackward<float>& cell = p.cell;
    const Rows& rows = cell.rows;
    const int64_t b = device::block(), n = rows.hidden;
    const int i = T::unit();
    const bool first = T::part() == 0, mine = first && i < n;
    Whole weights;
    weights.load(p, n, true, shared_layout.weights);
    float params[Cell::params + 1], dparams[Cell::params + 1] = {}, dc = 0;
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) params[k] = i < n ? cell.params[k][i] : 0;
    if (Cell::states > 1 && mine) dc = cell.dc[b * n + i];  // of other threads it has no effect

    RNNKERN_ROLLED
    for (int64_t t = rows.length(b); t-- > 0;) {
      const int64_t row = rows.offset(t) + b;
      const bool reset = rows.resets(t, b);
      Attend::attend(p.attend, shared_layout.scratch, t, b);
      device::block_barrier();
      if (first) shared_layout.dkey[i] = i < n ? p.attend.dkeys.steps[row * n + i] : 0;
      device::block_barrier();
      float old[2] = {}, next[2] = {}, save[Cell::saved + 1] = {}, grad[2] = {}, du[Cell::gates], dr[Cell::gates];
      grad[0] = weights.key(shared_layout.dkey);
      grad[1] = dc;
      if (i < n) {
        next[0] = cell.h[row * n + i];
        grad[0] += cell.dh[row * n + i];
        if (Cell::states > 1 && !reset) {
          old[1] = t > 0 ? cell.cells[(rows.offset(t - 1) + b) * n + i] : cell.c0[b * n + i];
        }
        RNNKERN_UNROLL
        for (int k = 0; k < Cell::saved; ++k) save[k] = cell.gates[(row * Cell::saved + k) * n + i];
      }
      Cell::backward(save, old, next, params, grad, du, dr, dparams);
      dc = reset ? 0.0f : grad[1];
      if (first) {
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::gates; ++g) {
          if (i < n) cell.du[(row * Cell::gates + g) * n + i] = du[g];
          shared_layout.gates[g * P + i] = i < n ? dr[g] : 0;
        }
        shared_layout.gates[Cell::gates * P + i] = i < n ? cell.dquery[row * n + i] : 0;
      }
      device::block_barrier();
      float sums[Cell::gates + 1], sum = 0;
      weights.multiply(sums, shared_layout.gates, P);
      RNNKERN_UNROLL
      for (const float x : sums) sum += x;
      sum = T::total(sum);
      if (mine) p.attend.ds[b * n + i] = reset ? 0.0f : sum;
      device::block_barrier();
    }
    if (!mine) return;
    if (Cell::states > 1) cell.dc[b * n + i] = dc;
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) cell.dparams[k][b * n + i] = dparams[k];
  }
};

}  // namespace rnnkern::relevancy
