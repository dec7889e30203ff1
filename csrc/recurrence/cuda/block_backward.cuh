// The backward of the block kernel: the gradients of the gates and of the state, for a range of steps whose gates are
// known. A block has one head of a few sequences, as in the forward. It keeps R^T; the gradients of the state stay in
// registers; dr goes through shared memory, double-buffered like h in the forward.
#pragma once

#include "cells/list.h"
#include "recurrence/cuda/block_tile.cuh"

namespace rnnkern {

// The inputs of the pointwise part of one unit of one sequence at a step. Most cells use few of them; the compiler
// removes the loads of the others.
template <class Cell, class S>
struct BackwardInput {
  using A = Arithmetic<S>;

  A save[Cell::saved + 1], cell_old[Cell::states], cell_next[Cell::states];  // states: all but the first
  S h_old, h_next, grad_h, scale;
  uint8_t reset;  // compared with 0 later, because a comparison would wait for the load

  // `row` counts all rows, `here` those of the range; both are of this sequence. `unit` counts in a head of d units.
  template <class P>
  RNNKERN_DEVICE void fetch(const P& p, int t, int64_t row, int64_t here, int b, int head, int unit, int d,
                            int length) {
    const Sequence& seq = p.sequence;
    const int64_t before = Cell::states > 1 ? seq.before(t, length) : -1;
    fetch_after(p, before < 0 ? -1 : seq.offset(before) + b, t, row, here, b, head, unit, d);
  }

  // `row_before` is the row of the previous state, or -1 for the initial state.
  template <class P>
  RNNKERN_DEVICE void fetch_after(const P& p, int64_t row_before, int t, int64_t row, int64_t here, int b, int head,
                                  int unit, int d) {
    const Sequence& seq = p.sequence;
    const int column = head * d + unit, hidden = int(seq.hidden);
    const int64_t element = row * hidden + column;
    reset = seq.reset ? reinterpret_cast<const uint8_t*>(seq.reset)[t * seq.batch + b] : 0;
    if constexpr (!Cell::projected) {
      h_next = p.h[element];
      h_old = p.previous[(head * p.rows + here) * d + unit];
      grad_h = p.grad_h ? p.grad_h[element] : S{};
    }
    scale = p.grad_scale ? p.grad_scale[t * p.scale_step + b * p.scale_row] : S{};
    if constexpr (Cell::saved > 0) {
      const A* saved = p.saved + here * Cell::saved * hidden + column;
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::saved; ++i) save[i] = saved[i * hidden];
    }
    RNNKERN_UNROLL
    for (int s = 1; s < Cell::states; ++s) {
      cell_next[s] = p.cells[s][element];
      cell_old[s] = row_before < 0 ? widen(p.cell_state[s][int64_t(b) * hidden + column])
                                   : p.cells[s][row_before * hidden + column];
    }
  }

  RNNKERN_DEVICE void states(A (&old)[Cell::states], A (&next)[Cell::states]) const {
    old[0] = Cell::projected ? A(0) : widen(h_old);
    next[0] = Cell::projected ? A(0) : widen(h_next);
    RNNKERN_UNROLL
    for (int s = 1; s < Cell::states; ++s) {
      old[s] = reset ? A(0) : cell_old[s];
      next[s] = cell_next[s];
    }
  }
};

// The end of the gates of u that correspond to the gates of R h before `last`; u may have fewer or more gates than R h.
template <class Cell>
RNNKERN_HOST_DEVICE constexpr int gates_of_u(int last) {
  return last == Cell::recurrent || last > Cell::gates ? Cell::gates : last;
}

template <class Cell, class S, int D>
struct BlockBackwardKernel {
  using Problem = BlockBackward<S>;
  static constexpr char header[] = "recurrence/cuda/block_backward.cuh";
  using A = Arithmetic<S>;
  using Tile = typename Tiles<S, Cell::recurrent, D, Cell::first_gates>::Backward;
  using Input = BackwardInput<Cell, S>;
  static constexpr int threads = Tile::threads, values = Tile::values;
  static constexpr int64_t shared_size = Tile::shared_size + 2 * Tile::x_size * sizeof(S);
  // The first gate of the last product. The cell's `backward` gives the gradients of this gate and the following ones.
  static constexpr int last_first = Cell::two_products ? Cell::first_gates : 0;

  // Stores the gradients of gates first..last-1 of one unit, in memory and as the operand of the product.
  template <int first, int last>
  RNNKERN_DEVICE static void give(const Problem& p, const A (&du)[Cell::gates], const A (&dr)[Cell::recurrent], S* x,
                                  int column, int unit, int d, int head, int64_t row, int64_t here) {
    const int hidden = int(p.sequence.hidden);
    S* to_du = p.du + row * Cell::gates * hidden + head * d + unit;
    S* to_dr = p.dr + (head * p.rows + here) * Cell::recurrent * d + unit;
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      const S rounded = device::narrow<S>(dr[g]);
      x[Tile::smem_offset(column, g, unit)] = rounded;
      if (p.dr) to_dr[g * d] = rounded;
    }
    RNNKERN_UNROLL
    for (int g = first; g < gates_of_u<Cell>(last); ++g) to_du[g * hidden] = device::narrow<S>(du[g]);
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    const Sequence& seq = p.sequence;
    const int d = int(seq.head_size());
    const int heads = int(seq.heads), head = device::block() % heads, b0 = device::block() / heads * Tile::columns;
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    S* x = arena.alloc<S>(2 * Tile::x_size);
    for (int i = device::thread(); i < 2 * Tile::x_size; i += threads) x[i] = S{};  // padding is multiplied too
    Tile tile;
    tile.load(matrix_of_head(p.R, head, Cell::recurrent, d), d, memory);

    int b[values], length[values];
    A carry[values][Cell::states], params[values][Cell::params + 1], dparams[values][Cell::params + 1] = {};
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      const bool padding = Tile::unit(v) >= d;
      b[v] = b0 + Tile::column(v);
      length[v] = padding ? 0 : int(seq.length(b[v]));
      const bool real = !padding && b[v] < seq.batch;
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i)
        params[v][i] = padding ? A(0) : widen(p.params[i][head * d + Tile::unit(v)]);
      const int64_t element = int64_t(b[v]) * seq.hidden + head * d + Tile::unit(v);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) carry[v][s] = real ? p.carry[s][element] : A(0);
    }
    device::block_barrier();

    const int longest = int(seq.length(b0)), first = int(p.first), end = first + int(p.steps);
    const int last = longest < end ? longest : end, steps = last > first ? last - first : 0;
    const auto at = [&](int k) { return seq.reverse ? first + k : last - 1 - k; };
    const int64_t origin = seq.offset(p.first);
    // The first rows of this step and of the next ones in processing order, which may lie outside the range: the state
    // before a step is stored at the step processed next. They are loaded early, so that no load waits for another.
    const auto offset = [&](int k) { return at(k) >= 0 && at(k) < seq.count ? seq.offset(at(k)) : 0; };
    int64_t row = offset(0), ahead = offset(1), later = offset(2);
    Input input[values] = {};
    const auto fetch = [&](int v, int k, int64_t row, int64_t after) {
      if (k >= steps || at(k) >= length[v]) return;
      const int before = at(k + 1);
      input[v].fetch_after(p, before >= 0 && before < length[v] ? after + b[v] : -1, at(k), row + b[v],
                           row + b[v] - origin, b[v], head, Tile::unit(v), d);
    };
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) fetch(v, 0, row, ahead);
    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      const int t = at(k);
      const int64_t latest = offset(k + 3);
      S* here = x + k % 2 * Tile::x_size;
      A save[values][Cell::saved + 1], old[values][Cell::states], grad[values][Cell::states], scale[values];
      A du[values][Cell::gates], dr[values][Cell::recurrent], product[values];
      bool reset[values];
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        const bool alive = t < length[v];
        A next[Cell::states];
        input[v].states(old[v], next);
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::saved; ++i) save[v][i] = input[v].save[i];
        reset[v] = input[v].reset;
        scale[v] = p.grad_scale ? widen(input[v].scale) : A(1);
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) grad[v][s] = carry[v][s];
        grad[v][0] += widen(input[v].grad_h);
        fetch(v, k + 1, ahead, later);
        if (alive) {
          Cell::backward(save[v], old[v], next, params[v], grad[v], du[v], dr[v], dparams[v]);
          give<last_first, Cell::recurrent>(p, du[v], dr[v], here, Tile::column(v), Tile::unit(v), d, head, row + b[v],
                                            row + b[v] - origin);
        }
      }
      device::block_barrier();
      tile.template multiply<last_first, Cell::recurrent>(here, product);
      if constexpr (Cell::two_products) {
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          if (t < length[v]) {
            A operand;
            Cell::prepare_backward(save[v], old[v], scale[v] * product[v], grad[v], du[v], dr[v], operand);
            p.operand[(head * p.rows + row + b[v] - origin) * d + Tile::unit(v)] = device::narrow<S>(operand);
            give<0, Cell::first_gates>(p, du[v], dr[v], here, Tile::column(v), Tile::unit(v), d, head, row + b[v],
                                       row + b[v] - origin);
          }
        }
        device::block_barrier();
        tile.template multiply<0, Cell::first_gates>(here, product);
      }
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (t < length[v]) {
          grad[v][0] += scale[v] * product[v];
          RNNKERN_UNROLL
          for (int s = 0; s < Cell::states; ++s) carry[v][s] = reset[v] ? A(0) : grad[v][s];
        }
      }
      row = ahead;
      ahead = later;
      later = latest;
    }
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (Tile::unit(v) >= d || b[v] >= seq.batch) continue;
      const int64_t element = int64_t(b[v]) * seq.hidden + head * d + Tile::unit(v);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][element] = carry[v][s];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) p.dparams[i][element] += dparams[v][i];
    }
  }
};

}  // namespace rnnkern
