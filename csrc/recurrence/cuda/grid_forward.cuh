// The forward of the grid kernel. A block keeps the rows of R of its units, for all gates, and their state. h goes to
// all members of its group, and so does the operand of a second product.
#pragma once

#include "recurrence/cuda/block_forward.cuh"
#include "recurrence/cuda/grid_loop.cuh"

namespace rnnkern {

template <class Cell, class S>
struct GridForwardKernel {
  using Problem = OnGrid<BlockForward<S>>;
  static constexpr char header[] = "recurrence/cuda/grid_forward.cuh";
  using A = Arithmetic<S>;
  using Thread = GridThread<S>;
  using Partials = GridPartials<S>;
  static constexpr int threads = grid_threads, units = grid_units<S>, exchanges = Cell::two_products ? 2 : 1;
  // With two gates the compiler aims at 128 registers, for two blocks per multiprocessor, and spills.
  static constexpr int least_blocks = Cell::recurrent == 2 ? 1 : 0;
  static constexpr int first_gates = Cell::first_gates, last_gates = Cell::recurrent - first_gates;
  static constexpr int budget = grid_kept / exchanges;
  using First = GridTile<S, first_gates, budget>;
  using Second = GridTile<S, last_gates ? last_gates : 1, budget>;
  struct Tile {
    First first;
    Second second;
  };

  struct Memory {
    char *first, *second, *scratch;
    float* partials;  // double-buffered: sums of a product are read while those of the next are written
    A* state;         // this thread's, (sets, states)
    int* lengths;
    int64_t used;

    RNNKERN_HOST_DEVICE Memory(char* base, const GridSize& size) {
      device::SharedArena arena{base};
      first = arena.alloc<char>(First::shared_size(size.members));
      second = arena.alloc<char>(Cell::two_products ? Second::shared_size(size.members) : 0);
      scratch = arena.alloc<char>(First::scratch);
      partials = arena.alloc<float>(2 * Partials::size(most_gates()));
      state = arena.alloc<A>(int64_t(size.sets) * Cell::states * Thread::count);
      lengths = arena.alloc<int>(int64_t(size.sets) * grid_columns);
      used = arena.used;
    }
  };

  RNNKERN_HOST_DEVICE static constexpr int most_gates() { return first_gates > last_gates ? first_gates : last_gates; }
  RNNKERN_HOST_DEVICE static int64_t words(const GridSize& size) {
    return int64_t(size.groups) * exchanges * 2 * size.sets * size.members * member_words;
  }

  RNNKERN_DEVICE static void run(const Problem& problem) { run_grid<GridForwardKernel>(problem); }

  // Of this thread's unit.
  struct Values {
    A bias[Cell::recurrent] = {}, params[Cell::params + 1] = {};
    ForwardInput<Cell, S> input{};
  };

  // The quantities of one unit and sequence in a step.
  struct Equations {
    A u[Cell::gates], r[Cell::recurrent], save[Cell::saved + 1], old[Cell::states];
    bool reset = false, alive = false;
  };

  const Problem& problem;
  const BlockForward<S>& p = problem.call;
  const Sequence& seq = p.sequence;
  const GridSize& size = problem.size;
  const Memory memory;
  const int hidden = int(seq.hidden), first_unit = device::block() % size.members * units;
  const GridPlace at;
  Tile& tile;
  Values& own;
  A* const state = memory.state + device::thread();
  float* partials = memory.partials;

  RNNKERN_DEVICE GridForwardKernel(const Problem& problem, Tile& tile, Values& own)
      : problem(problem),
        memory(device::shared_memory(), size),
        at(seq, size, first_unit + Thread::unit(), Thread::column(), memory.lengths),
        tile(tile),
        own(own) {
    const auto weight = [&](int gate, int unit, int slice, int i) {
      const int row = first_unit + unit, column = slice * units + i;
      return row < hidden && column < hidden ? p.R[(gate * hidden + row) * hidden + column] : S{};
    };
    tile.first.load(memory.first, size.members, weight);
    if constexpr (Cell::two_products) {
      tile.second.load(memory.second, size.members, [&](int gate, int unit, int slice, int i) {
        return weight(first_gates + gate, unit, slice, i);
      });
    }
    device::block_barrier();
  }

  RNNKERN_DEVICE int steps(int set) const { return at.longest(set); }
  RNNKERN_DEVICE int time(GridItem item) const { return seq.reverse ? steps(item.set) - 1 - item.step : item.step; }
  RNNKERN_DEVICE A* states_of(int set) const { return state + set * Cell::states * Thread::count; }

  // The words of all members. Exchange 0 is of h, exchange 1 of the operand of a second product.
  RNNKERN_DEVICE device::Word16* words_of(int exchange, int step, int set) const {
    const int64_t row = ((at.group * exchanges + exchange) * 2 + step % 2) * size.sets + set;
    return problem.words + row * size.members * member_words;
  }
  RNNKERN_DEVICE device::Word16* own_words(int exchange, int step, int set) const {
    return words_of(exchange, step, set) + at.member * member_words;
  }

  RNNKERN_DEVICE void begin() {
    if (!Thread::has()) return;
    if (at.unit < hidden) {
      RNNKERN_UNROLL
      for (int g = 0; g < Cell::recurrent; ++g) own.bias[g] = p.bias ? widen(p.bias[g * hidden + at.unit]) : A(0);
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) own.params[i] = widen(p.params[i][at.unit]);
    }
    for (int set = 0; set < at.sets; ++set) {
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        states_of(set)[s * Thread::count] = at.real(set) ? widen(p.state[s][at.element(set)]) : A(0);
      }
      publish(own_words(0, 0, set), device::narrow<S>(states_of(set)[0]), 1);
    }
  }

  RNNKERN_DEVICE int64_t rows_of(GridItem item) const {
    return item.step < steps(item.set) ? seq.offset(time(item)) : 0;
  }

  RNNKERN_DEVICE void fetch(GridItem item, int64_t row) {
    const int b = at.sequence(item.set);
    const bool alive = item.step < steps(item.set) && time(item) < at.length(item.set);
    own.input.fetch(seq, p.u + ((row + b) * Cell::gates * hidden + at.unit), time(item), b, alive);
  }

  RNNKERN_DEVICE void step(GridItem item, int64_t row, GridItem next, int64_t ahead) {
    Equations eq;
    if (Thread::has()) {
      read(item, eq);
      fetch(next, ahead);
    }
    multiply(tile.first, 0, item);
    if (Thread::has()) add_first_product(item, eq);
    swap();
    if constexpr (Cell::two_products) {
      if (Thread::has()) {
        A operand;
        Cell::prepare(eq.u, eq.r, eq.old, eq.save, operand);
        publish(own_words(1, item.step, item.set), device::narrow<S>(operand), tag_of(item));
      }
      multiply(tile.second, 1, item);
      if (Thread::has()) add_second_product(eq);
      swap();
    }
    if (Thread::has()) finish(item, row + at.sequence(item.set), eq);
  }

  RNNKERN_DEVICE void read(GridItem item, Equations& eq) const {
    eq.alive = time(item) < at.length(item.set);
    eq.reset = own.input.reset;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) eq.u[g] = widen(own.input.u[g]);
  }

  template <class Product>
  RNNKERN_DEVICE void multiply(Product& product, int exchange, GridItem item) const {
    product.multiply(words_of(exchange, item.step, item.set), tag_of(item), memory.scratch, partials);
    device::block_barrier();
  }

  RNNKERN_DEVICE void add_first_product(GridItem item, Equations& eq) const {
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) eq.old[s] = eq.reset ? A(0) : states_of(item.set)[s * Thread::count];
    RNNKERN_UNROLL
    for (int g = 0; g < first_gates; ++g) {
      eq.r[g] = own.bias[g] + (eq.reset ? A(0) : Partials::sum(partials, first_gates, g));
    }
  }

  RNNKERN_DEVICE void add_second_product(Equations& eq) const {
    RNNKERN_UNROLL
    for (int g = 0; g < last_gates; ++g) {
      eq.r[first_gates + g] = own.bias[first_gates + g] + Partials::sum(partials, last_gates, g);
    }
  }

  RNNKERN_DEVICE void swap() {
    partials = partials == memory.partials ? memory.partials + Partials::size(most_gates()) : memory.partials;
  }

  RNNKERN_DEVICE void finish(GridItem item, int64_t row, Equations& eq) const {
    A* const kept = states_of(item.set);
    A next[Cell::states];
    Cell::forward(eq.u, eq.r, eq.old, own.params, next, eq.save);
    const S h = device::narrow<S>(eq.alive ? next[0] : kept[0]);
    publish(own_words(0, item.step + 1, item.set), h, tag_of(item) + 1);
    if (!eq.alive) return;
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) kept[s * Thread::count] = next[s];
    store_step<Cell>(p, h, next, eq.save, row * hidden + at.unit, row * Cell::saved * hidden + at.unit);
  }

  RNNKERN_DEVICE void end() const {
    if (!Thread::has()) return;
    for (int set = 0; set < at.sets; ++set) {
      if (!at.real(set)) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        p.final_state[s][at.element(set)] = device::narrow<S>(states_of(set)[s * Thread::count]);
      }
    }
  }
};

}  // namespace rnnkern
