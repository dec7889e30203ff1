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

// Stores the gradients of gates from..to-1 of one unit. The row and the unit are those of BackwardInput::fetch.
template <class Cell, class S, int from, int to, class P, class A>
RNNKERN_DEVICE void store_gradients(const P& p, int64_t row, int64_t here, int64_t head, int64_t unit, int64_t d,
                                    const A* du, const A* dr) {
  const int64_t hidden = p.sequence.hidden;
  S* to_du = p.du + row * Cell::gates * hidden + head * d + unit;
  S* to_dr = p.dr + (head * p.rows + here) * Cell::recurrent * d + unit;
  RNNKERN_UNROLL
  for (int g = from; g < to; ++g) {
    if (p.dr) to_dr[g * d] = device::narrow<S>(dr[g]);
  }
  RNNKERN_UNROLL
  for (int g = from; g < gates_of_u<Cell>(to); ++g) to_du[g * hidden] = device::narrow<S>(du[g]);
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

  RNNKERN_DEVICE static void run(const Problem& p) { run_block<BlockBackwardKernel>(p); }

  // Of each unit and sequence of this thread.
  struct Values {
    int b[values], length[values];
    A carry[values][Cell::states], params[values][Cell::params + 1], dparams[values][Cell::params + 1] = {};
    Input input[values] = {};
  };

  // The quantities of a step.
  struct Equations {
    A save[values][Cell::saved + 1], old[values][Cell::states], grad[values][Cell::states], scale[values];
    A du[values][Cell::gates], dr[values][Cell::recurrent], product[values];
    bool reset[values];
  };

  // The first rows of this step and of the next ones in processing order, which may lie outside the range: the state
  // before a step is stored at the step processed next. They are loaded early, so that no load waits for another.
  struct Rows {
    int64_t here, ahead, later;
  };

  const Problem& p;
  const Sequence& seq = p.sequence;
  Tile& tile;
  Values& own;
  const int d = int(seq.head_size()), heads = int(seq.heads), head = device::block() % heads;
  const int b0 = device::block() / heads * Tile::columns;
  S* x;  // double-buffered
  int first, last, steps;
  int64_t origin;

  RNNKERN_DEVICE BlockBackwardKernel(const Problem& p, Tile& tile, Values& own) : p(p), tile(tile), own(own) {
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    x = arena.alloc<S>(2 * Tile::x_size);
    for (int i = device::thread(); i < 2 * Tile::x_size; i += threads) x[i] = S{};  // padding is multiplied too
    tile.load(matrix_of_head(p.R, head, Cell::recurrent, d), d, memory);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) begin(v);
    device::block_barrier();
    const int longest = int(seq.length(b0)), end = int(p.first) + int(p.steps);
    first = int(p.first);
    last = longest < end ? longest : end;
    steps = last > first ? last - first : 0;
    origin = seq.offset(p.first);
  }

  RNNKERN_DEVICE void begin(int v) {
    const bool padding = Tile::unit(v) >= d;
    const int b = b0 + Tile::column(v);
    own.b[v] = b;
    own.length[v] = padding ? 0 : int(seq.length(b));
    const bool real = !padding && b < seq.batch;
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) {
      own.params[v][i] = padding ? A(0) : widen(p.params[i][head * d + Tile::unit(v)]);
    }
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) own.carry[v][s] = real ? p.carry[s][element(v)] : A(0);
  }

  RNNKERN_DEVICE int64_t element(int v) const { return int64_t(own.b[v]) * seq.hidden + head * d + Tile::unit(v); }
  RNNKERN_DEVICE int time(int k) const { return seq.reverse ? first + k : last - 1 - k; }
  RNNKERN_DEVICE int64_t first_row(int k) const {
    return time(k) >= 0 && time(k) < seq.count ? seq.offset(time(k)) : 0;
  }

  RNNKERN_DEVICE void fetch(int v, int k, int64_t row, int64_t after) {
    if (k >= steps || time(k) >= own.length[v]) return;
    const int before = time(k + 1);
    own.input[v].fetch_after(p, before >= 0 && before < own.length[v] ? after + own.b[v] : -1, time(k), row + own.b[v],
                             row + own.b[v] - origin, own.b[v], head, Tile::unit(v), d);
  }

  RNNKERN_DEVICE void run_steps() {
    Rows rows{first_row(0), first_row(1), first_row(2)};
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) fetch(v, 0, rows.here, rows.ahead);
    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      const int64_t latest = first_row(k + 3);
      S* dr = x + k % 2 * Tile::x_size;
      Equations eq;
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) backward(v, k, rows, dr, eq);
      device::block_barrier();
      tile.template multiply<last_first, Cell::recurrent>(dr, eq.product);
      if constexpr (Cell::two_products) {
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          if (time(k) < own.length[v]) prepare_backward(v, rows.here + own.b[v], dr, eq);
        }
        device::block_barrier();
        tile.template multiply<0, Cell::first_gates>(dr, eq.product);
      }
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (time(k) < own.length[v]) finish(v, eq);
      }
      rows = {rows.ahead, rows.later, latest};
    }
  }

  RNNKERN_DEVICE void backward(int v, int k, const Rows& rows, S* x, Equations& eq) {
    A next[Cell::states];
    own.input[v].states(eq.old[v], next);
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::saved; ++i) eq.save[v][i] = own.input[v].save[i];
    eq.reset[v] = own.input[v].reset;
    eq.scale[v] = p.grad_scale ? widen(own.input[v].scale) : A(1);
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) eq.grad[v][s] = own.carry[v][s];
    eq.grad[v][0] += widen(own.input[v].grad_h);
    fetch(v, k + 1, rows.ahead, rows.later);
    if (time(k) >= own.length[v]) return;
    Cell::backward(eq.save[v], eq.old[v], next, own.params[v], eq.grad[v], eq.du[v], eq.dr[v], own.dparams[v]);
    store<last_first, Cell::recurrent>(v, rows.here + own.b[v], x, eq);
  }

  RNNKERN_DEVICE void prepare_backward(int v, int64_t row, S* x, Equations& eq) const {
    A operand;
    Cell::prepare_backward(eq.save[v], eq.old[v], eq.scale[v] * eq.product[v], eq.grad[v], eq.du[v], eq.dr[v], operand);
    p.operand[(head * p.rows + row - origin) * d + Tile::unit(v)] = device::narrow<S>(operand);
    store<0, Cell::first_gates>(v, row, x, eq);
  }

  // Stores the gradients of gates from..to-1 of one unit, in memory and as the operand of the product.
  template <int from, int to>
  RNNKERN_DEVICE void store(int v, int64_t row, S* x, const Equations& eq) const {
    RNNKERN_UNROLL
    for (int g = from; g < to; ++g) {
      x[Tile::smem_offset(Tile::column(v), g, Tile::unit(v))] = device::narrow<S>(eq.dr[v][g]);
    }
    store_gradients<Cell, S, from, to>(p, row, row - origin, head, Tile::unit(v), d, eq.du[v], eq.dr[v]);
  }

  RNNKERN_DEVICE void finish(int v, Equations& eq) {
    eq.grad[v][0] += eq.scale[v] * eq.product[v];
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) own.carry[v][s] = eq.reset[v] ? A(0) : eq.grad[v][s];
  }

  RNNKERN_DEVICE void end() const {
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (Tile::unit(v) >= d || own.b[v] >= seq.batch) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][element(v)] = own.carry[v][s];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) p.dparams[i][element(v)] += own.dparams[v][i];
    }
  }
};

}  // namespace rnnkern
