// The forward of the block kernel: one block runs all steps of one head for a few sequences. It keeps R in registers
// and shared memory, and the state in registers. Threads only exchange h, through double-buffered shared memory: a step
// reads one buffer and writes the other, and ends with a barrier.
#pragma once

#include "cells/list.h"
#include "recurrence/cuda/block_tile.cuh"

namespace rnnkern {

// The inputs of the pointwise part of one unit of one sequence at a step, loaded a step ahead. They are kept in their
// storage types, because a conversion would wait for the load.
template <class Cell, class S>
struct ForwardInput {
  S u[Cell::gates];
  uint8_t reset;

  // `from` points to the first gate of this unit and sequence.
  RNNKERN_DEVICE void fetch(const Sequence& seq, const S* from, int t, int b, bool alive) {
    reset = alive && seq.reset ? reinterpret_cast<const uint8_t*>(seq.reset)[t * seq.batch + b] : 0;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) u[g] = alive ? from[g * int(seq.hidden)] : S{};
  }
};

template <class Cell, class S, int D>
struct BlockForwardKernel {
  using Problem = BlockForward<S>;
  static constexpr char header[] = "recurrence/cuda/block_forward.cuh";
  using A = Arithmetic<S>;
  using Tile = typename Tiles<S, Cell::recurrent, D, Cell::first_gates>::Forward;
  static constexpr int threads = Tile::threads, values = Tile::values;
  static constexpr int buffers = Cell::two_products ? 3 : 2;
  static constexpr int64_t shared_size = Tile::shared_size + buffers * Tile::x_size * sizeof(S);

  RNNKERN_DEVICE static void run(const Problem& p) {
    const Sequence& seq = p.sequence;
    const int d = int(seq.head_size());
    const int heads = int(seq.heads), head = device::block() % heads, b0 = device::block() / heads * Tile::columns;
    const int hidden = int(seq.hidden), first_unit = head * d;
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    S* x = arena.alloc<S>(buffers * Tile::x_size);  // h of this step and the next; operand of a second product
    S* operand = x + 2 * Tile::x_size;
    for (int i = device::thread(); i < buffers * Tile::x_size; i += threads) x[i] = S{};  // padding is multiplied too
    Tile tile;
    tile.load(matrix_of_head(p.R, head, Cell::recurrent, d), d, memory);
    device::block_barrier();

    int b[values], length[values];
    A state[values][Cell::states], bias[values][Cell::recurrent], params[values][Cell::params + 1];
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      const bool padding = Tile::unit(v) >= d;
      b[v] = b0 + Tile::column(v);
      length[v] = padding ? 0 : int(seq.length(b[v]));
      const int unit = first_unit + Tile::unit(v);
      const bool real = !padding && b[v] < seq.batch;
      RNNKERN_UNROLL
      for (int g = 0; g < Cell::recurrent; ++g) {
        bias[v][g] = p.bias && !padding ? widen(p.bias[g * hidden + unit]) : A(0);
      }
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) params[v][i] = padding ? A(0) : widen(p.params[i][unit]);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        state[v][s] = real ? widen(p.state[s][int64_t(b[v]) * hidden + unit]) : A(0);
      }
      if (real) x[Tile::smem_offset(Tile::column(v), Tile::unit(v))] = device::narrow<S>(state[v][0]);
    }
    device::block_barrier();

    const int steps = int(seq.length(b0));  // of the longest sequence of this block
    const auto at = [&](int k) { return seq.reverse ? steps - 1 - k : k; };
    int64_t row = steps ? seq.offset(at(0)) : 0, ahead = steps > 1 ? seq.offset(at(1)) : 0;
    // row_offset(first, per) is the index of this thread's result 0 at the step whose first row is `first`, in a tensor
    // with `per` times H columns; apart(v, per) is the distance from there to result v. This needs a single 64-bit
    // product.
    const auto row_offset = [&](int64_t first, int per) {
      return (first + b[0]) * hidden * per + first_unit + Tile::unit(0);
    };
    const auto apart = [&](int v, int per) {
      return (Tile::column(v) - Tile::column(0)) * per * hidden + Tile::unit(v) - Tile::unit(0);
    };
    ForwardInput<Cell, S> input[values];
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      const S* u = p.u + row_offset(row, Cell::gates) + apart(v, Cell::gates);
      input[v].fetch(seq, u, at(0), b[v], steps && at(0) < length[v]);
    }

    const S* next_u = p.u + row_offset(ahead, Cell::gates);
    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      const int t = at(k), next_t = at(k + 1);
      const S* from = x + k % 2 * Tile::x_size;
      S* to = x + (k + 1) % 2 * Tile::x_size;
      A r[values][Cell::recurrent], u[values][Cell::gates], save[values][Cell::saved + 1];
      bool reset[values];
      tile.template multiply<0, Cell::first_gates>(from, r);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        reset[v] = input[v].reset;
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::gates; ++g) u[v][g] = widen(input[v].u[g]);
        input[v].fetch(seq, next_u + apart(v, Cell::gates), next_t, b[v], k + 1 < steps && next_t < length[v]);
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::first_gates; ++g) r[v][g] = bias[v][g] + (reset[v] ? A(0) : r[v][g]);
      }
      const int64_t later = k + 2 < steps ? seq.offset(at(k + 2)) : 0;
      if constexpr (Cell::two_products) {
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          A old[Cell::states], product;
          RNNKERN_UNROLL
          for (int s = 0; s < Cell::states; ++s) old[s] = reset[v] ? A(0) : state[v][s];
          Cell::prepare(u[v], r[v], old, save[v], product);
          if (Tile::unit(v) < d)
            operand[Tile::smem_offset(Tile::column(v), Tile::unit(v))] = device::narrow<S>(product);
        }
        device::block_barrier();
        tile.template multiply<Cell::first_gates, Cell::recurrent>(operand, r);
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          RNNKERN_UNROLL
          for (int g = Cell::first_gates; g < Cell::recurrent; ++g) r[v][g] += bias[v][g];
        }
      }
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        A old[Cell::states], next[Cell::states];
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) old[s] = reset[v] ? A(0) : state[v][s];
        Cell::forward(u[v], r[v], old, params[v], next, save[v]);
        const bool alive = t < length[v];
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) state[v][s] = alive ? next[s] : state[v][s];
        const S h = device::narrow<S>(state[v][0]);
        if (Tile::unit(v) < d) to[Tile::smem_offset(Tile::column(v), Tile::unit(v))] = h;
        if (alive) {
          const int64_t here = row_offset(row, 1) + apart(v, 1);
          p.h[here] = h;
          RNNKERN_UNROLL
          for (int s = 1; s < Cell::states; ++s) {
            if (p.cells[s]) p.cells[s][here] = state[v][s];
          }
          if constexpr (Cell::saved > 0) {
            if (p.saved) {
              A* saved = p.saved + row_offset(row, Cell::saved) + apart(v, Cell::saved);
              RNNKERN_UNROLL
              for (int i = 0; i < Cell::saved; ++i) saved[i * hidden] = save[v][i];
            }
          }
        }
      }
      row = ahead;
      ahead = later;
      next_u = p.u + row_offset(ahead, Cell::gates);
      device::block_barrier();
    }
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (Tile::unit(v) >= d || b[v] >= seq.batch) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        p.final_state[s][int64_t(b[v]) * hidden + first_unit + Tile::unit(v)] = device::narrow<S>(state[v][s]);
      }
    }
  }
};

}  // namespace rnnkern
