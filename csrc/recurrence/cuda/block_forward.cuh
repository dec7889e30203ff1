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

// Stores the new state of one unit of one sequence, and what the backward needs: `element` and `first_saved` are the
// unit's indices in tensors of H and of saved*H columns.
template <class Cell, class S, class A>
RNNKERN_DEVICE void store_step(const BlockForward<S>& p, S h, const A (&state)[Cell::states],
                               const A (&save)[Cell::saved + 1], int64_t element, int64_t first_saved) {
  p.h[element] = h;
  RNNKERN_UNROLL
  for (int s = 1; s < Cell::states; ++s) {
    if (p.cells[s]) p.cells[s][element] = state[s];
  }
  if (Cell::saved == 0 || !p.saved) return;
  RNNKERN_UNROLL
  for (int i = 0; i < Cell::saved; ++i) p.saved[first_saved + i * int(p.sequence.hidden)] = save[i];
}

template <class Cell, class S, int D>
struct BlockForwardKernel {
  using Problem = BlockForward<S>;
  static constexpr char header[] = "recurrence/cuda/block_forward.cuh";
  using A = Arithmetic<S>;
  using Tile = typename Tiles<S, Cell::recurrent, D, Cell::first_gates>::Forward;
  static constexpr int threads = Tile::threads, values = Tile::values;
  static constexpr int buffers = Cell::two_products ? 3 : 2;
  static constexpr int64_t shared_size = Tile::shared_size + buffers * Tile::x_size * sizeof(S);

  RNNKERN_DEVICE static void run(const Problem& p) { run_block<BlockForwardKernel>(p); }

  // Of each unit and sequence of this thread.
  struct Values {
    int b[values], length[values];
    A state[values][Cell::states], bias[values][Cell::recurrent], params[values][Cell::params + 1];
    ForwardInput<Cell, S> input[values];
  };

  // The quantities of a step.
  struct Equations {
    A r[values][Cell::recurrent], u[values][Cell::gates], save[values][Cell::saved + 1];
    bool reset[values];
  };

  const Problem& p;
  const Sequence& seq = p.sequence;
  Tile& tile;
  Values& own;
  const int d = int(seq.head_size()), heads = int(seq.heads), head = device::block() % heads;
  const int b0 = device::block() / heads * Tile::columns, hidden = int(seq.hidden), first_unit = head * d;
  S *x, *operand;  // h of this step and the next; operand of a second product
  int steps;       // of the longest sequence of this block

  RNNKERN_DEVICE BlockForwardKernel(const Problem& p, Tile& tile, Values& own) : p(p), tile(tile), own(own) {
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    x = arena.alloc<S>(buffers * Tile::x_size);
    operand = x + 2 * Tile::x_size;
    for (int i = device::thread(); i < buffers * Tile::x_size; i += threads) x[i] = S{};  // padding is multiplied too
    tile.load(matrix_of_head(p.R, head, Cell::recurrent, d), d, memory);
    device::block_barrier();
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) begin(v);
    device::block_barrier();
    steps = int(seq.length(b0));
  }

  RNNKERN_DEVICE void begin(int v) {
    const bool padding = Tile::unit(v) >= d;
    const int b = b0 + Tile::column(v);
    own.b[v] = b;
    own.length[v] = padding ? 0 : int(seq.length(b));
    const int unit = first_unit + Tile::unit(v);
    const bool real = !padding && b < seq.batch;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::recurrent; ++g) {
      own.bias[v][g] = p.bias && !padding ? widen(p.bias[g * hidden + unit]) : A(0);
    }
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) own.params[v][i] = padding ? A(0) : widen(p.params[i][unit]);
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) {
      own.state[v][s] = real ? widen(p.state[s][int64_t(b) * hidden + unit]) : A(0);
    }
    if (real) x[place(v)] = device::narrow<S>(own.state[v][0]);
  }

  RNNKERN_DEVICE static int place(int v) { return Tile::smem_offset(Tile::column(v), Tile::unit(v)); }
  RNNKERN_DEVICE int time(int k) const { return seq.reverse ? steps - 1 - k : k; }
  RNNKERN_DEVICE int64_t first_row(int k) const { return k < steps ? seq.offset(time(k)) : 0; }

  // The index of this thread's result 0 at the step whose first row is `first`, in a tensor with `per` times H columns;
  // apart(v, per) is the distance from there to result v. This needs a single 64-bit product.
  RNNKERN_DEVICE int64_t row_offset(int64_t first, int per) const {
    return (first + own.b[0]) * hidden * per + first_unit + Tile::unit(0);
  }
  RNNKERN_DEVICE int apart(int v, int per) const {
    return (Tile::column(v) - Tile::column(0)) * per * hidden + Tile::unit(v) - Tile::unit(0);
  }

  RNNKERN_DEVICE void run_steps() {
    int64_t row = first_row(0), ahead = first_row(1);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) fetch(v, 0, p.u + row_offset(row, Cell::gates));
    const S* next_u = p.u + row_offset(ahead, Cell::gates);
    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      Equations eq;
      tile.template multiply<0, Cell::first_gates>(x + k % 2 * Tile::x_size, eq.r);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        read(v, eq);
        fetch(v, k + 1, next_u);
      }
      const int64_t later = first_row(k + 2);
      if constexpr (Cell::two_products) {
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) prepare(v, eq);
        device::block_barrier();
        tile.template multiply<Cell::first_gates, Cell::recurrent>(operand, eq.r);
      }
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) finish(v, k, row, eq);
      row = ahead;
      ahead = later;
      next_u = p.u + row_offset(ahead, Cell::gates);
      device::block_barrier();
    }
  }

  // `u` points to result 0 at step k.
  RNNKERN_DEVICE void fetch(int v, int k, const S* u) {
    own.input[v].fetch(seq, u + apart(v, Cell::gates), time(k), own.b[v], k < steps && time(k) < own.length[v]);
  }

  RNNKERN_DEVICE void read(int v, Equations& eq) const {
    eq.reset[v] = own.input[v].reset;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) eq.u[v][g] = widen(own.input[v].u[g]);
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::first_gates; ++g) eq.r[v][g] = own.bias[v][g] + (eq.reset[v] ? A(0) : eq.r[v][g]);
  }

  RNNKERN_DEVICE void read_state(int v, bool reset, A (&old)[Cell::states]) const {
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) old[s] = reset ? A(0) : own.state[v][s];
  }

  RNNKERN_DEVICE void prepare(int v, Equations& eq) const {
    A old[Cell::states], product;
    read_state(v, eq.reset[v], old);
    Cell::prepare(eq.u[v], eq.r[v], old, eq.save[v], product);
    if (Tile::unit(v) < d) operand[place(v)] = device::narrow<S>(product);
  }

  RNNKERN_DEVICE void finish(int v, int k, int64_t row, Equations& eq) {
    A old[Cell::states], next[Cell::states];
    read_state(v, eq.reset[v], old);
    RNNKERN_UNROLL
    for (int g = Cell::first_gates; g < Cell::recurrent; ++g) eq.r[v][g] += own.bias[v][g];
    Cell::forward(eq.u[v], eq.r[v], old, own.params[v], next, eq.save[v]);
    const bool alive = time(k) < own.length[v];
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) own.state[v][s] = alive ? next[s] : own.state[v][s];
    const S h = device::narrow<S>(own.state[v][0]);
    if (Tile::unit(v) < d) x[(k + 1) % 2 * Tile::x_size + place(v)] = h;
    if (alive) {
      store_step<Cell>(p, h, own.state[v], eq.save[v], row_offset(row, 1) + apart(v, 1),
                       row_offset(row, Cell::saved) + apart(v, Cell::saved));
    }
  }

  RNNKERN_DEVICE void end() const {
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (Tile::unit(v) >= d || own.b[v] >= seq.batch) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        p.final_state[s][int64_t(own.b[v]) * hidden + first_unit + Tile::unit(v)] = device::narrow<S>(own.state[v][s]);
      }
    }
  }
};

}  // namespace rnnkern
