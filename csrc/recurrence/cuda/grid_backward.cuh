// The backward of the grid kernel: the gradients of the gates and of the state, for a range of steps whose gates are
// known. A block keeps the columns of R of its units, which are rows of R^T, and the gradients of these units; dr of
// all gates goes to all members of its group.
#pragma once

#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/grid_loop.cuh"

namespace rnnkern {

template <class Cell, class S>
struct GridBackwardKernel {
  using Problem = OnGrid<BlockBackward<S>>;
  static constexpr char header[] = "recurrence/cuda/grid_backward.cuh";
  using A = Arithmetic<S>;
  using Input = BackwardInput<Cell, S>;
  using Thread = GridThread<S>;
  using Partials = GridPartials<S>;
  static constexpr int threads = grid_threads, units = grid_units<S>;
  // The first gate of the last product, and its number of gates. The cell's `backward` gives their gradients.
  static constexpr int last_first = Cell::two_products ? Cell::first_gates : 0,
                       last_gates = Cell::recurrent - last_first;
  static constexpr int budget = Cell::two_products ? grid_kept / 2 : grid_kept;
  using Product = GridTile<S, 1, budget>;
  struct Tile {
    Product last, first;
  };

  struct Memory {
    char *last, *first, *scratch;
    float* partials;  // double-buffered, as in the forward
    A *carry, *dparams;
    int* lengths;
    int64_t used;

    RNNKERN_HOST_DEVICE Memory(char* base, const GridSize& size) {
      device::SharedArena arena{base};
      last = arena.alloc<char>(Product::shared_size(last_gates * size.members));
      first = arena.alloc<char>(Cell::two_products ? Product::shared_size(last_first * size.members) : 0);
      scratch = arena.alloc<char>(Product::scratch);
      partials = arena.alloc<float>(2 * Partials::size(1));
      carry = arena.alloc<A>(int64_t(size.sets) * Cell::states * Thread::count);
      dparams = arena.alloc<A>(int64_t(size.sets) * Cell::params * Thread::count);
      lengths = arena.alloc<int>(int64_t(size.sets) * grid_columns);
      used = arena.used;
    }
  };

  RNNKERN_HOST_DEVICE static int64_t words(const GridSize& size) {
    return int64_t(size.groups) * 2 * size.sets * Cell::recurrent * size.members * member_words;
  }

  RNNKERN_DEVICE static void run(const Problem& problem) { run_grid<GridBackwardKernel>(problem); }

  // Of this thread's unit.
  struct Values {
    A params[Cell::params + 1] = {};
    Input input{};
  };

  // The quantities of one unit and sequence in a step.
  struct Equations {
    A save[Cell::saved + 1], old[Cell::states], next[Cell::states], grad[Cell::states];
    A du[Cell::gates] = {}, dr[Cell::recurrent] = {};
    A scale = 1;
    bool alive = false, reset = false;
  };

  // The first rows of a step and of the step before it, which may lie outside the range.
  struct Rows {
    int64_t here, before;
  };

  const Problem& problem;
  const BlockBackward<S>& p = problem.call;
  const Sequence& seq = p.sequence;
  const GridSize& size = problem.size;
  const Memory memory;
  const int hidden = int(seq.hidden), first_unit = device::block() % size.members * units;
  const GridPlace at;
  Tile& tile;
  Values& own;
  const int first = int(p.first);  // the first step of the range
  const int64_t origin = seq.offset(p.first);
  A *const carry = memory.carry + device::thread(), *const dparams = memory.dparams + device::thread();
  float* partials = memory.partials;

  RNNKERN_DEVICE GridBackwardKernel(const Problem& problem, Tile& tile, Values& own)
      : problem(problem),
        memory(device::shared_memory(), size),
        at(seq, size, first_unit + Thread::unit(), Thread::column(), memory.lengths),
        tile(tile),
        own(own) {
    // A slice holds the units of one member in one gate.
    const auto weight = [&](int slice, int unit, int i) {
      const int gate = slice / size.members, row = slice % size.members * units + i, column = first_unit + unit;
      return row < hidden && column < hidden ? p.R[(gate * hidden + row) * hidden + column] : S{};
    };
    tile.last.load(memory.last, last_gates * size.members,
                   [&](int, int unit, int slice, int i) { return weight(last_first * size.members + slice, unit, i); });
    if constexpr (Cell::two_products) {
      tile.first.load(memory.first, last_first * size.members,
                      [&](int, int unit, int slice, int i) { return weight(slice, unit, i); });
    }
    device::block_barrier();
  }

  RNNKERN_DEVICE int last(int set) const {
    const int end = first + int(p.steps);
    return at.longest(set) < end ? at.longest(set) : end;
  }
  RNNKERN_DEVICE int steps(int set) const { return last(set) > first ? last(set) - first : 0; }
  RNNKERN_DEVICE int time(GridItem item) const {
    return seq.reverse ? first + item.step : last(item.set) - 1 - item.step;
  }
  RNNKERN_DEVICE int before(int t) const { return t + (seq.reverse ? 1 : -1); }
  RNNKERN_DEVICE A* carry_of(int set) const { return carry + set * Cell::states * Thread::count; }
  RNNKERN_DEVICE A* dparams_of(int set) const { return dparams + set * Cell::params * Thread::count; }

  // The words of all members with dr of a gate.
  RNNKERN_DEVICE device::Word16* words_of(int gate, GridItem item) const {
    const int64_t row = ((at.group * 2 + item.step % 2) * size.sets + item.set) * Cell::recurrent + gate;
    return problem.words + row * size.members * member_words;
  }

  RNNKERN_DEVICE void begin() {
    if (!Thread::has()) return;
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) own.params[i] = at.unit < hidden ? widen(p.params[i][at.unit]) : A(0);
    for (int set = 0; set < at.sets; ++set) {
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        carry_of(set)[s * Thread::count] = at.real(set) ? p.carry[s][at.element(set)] : A(0);
      }
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) dparams_of(set)[i * Thread::count] = A(0);
    }
  }

  RNNKERN_DEVICE Rows rows_of(GridItem item) const {
    if (item.step >= steps(item.set)) return {0, 0};
    const int t = time(item), early = before(t);
    return {seq.offset(t), early >= 0 && early < seq.count ? seq.offset(early) : 0};
  }

  RNNKERN_DEVICE void fetch(GridItem item, const Rows& rows) {
    const int t = time(item), early = before(t), b = at.sequence(item.set), length = at.length(item.set);
    if (item.step >= steps(item.set) || t >= length) return;
    own.input.fetch_after(p, early >= 0 && early < length ? rows.before + b : -1, t, rows.here + b,
                          rows.here + b - origin, b, 0, at.unit, hidden);
  }

  RNNKERN_DEVICE void step(GridItem item, const Rows& rows, GridItem next, const Rows& ahead) {
    const int64_t row = rows.here + at.sequence(item.set);
    Equations eq;
    if (Thread::has()) {
      read(item, eq);
      fetch(next, ahead);
      if (eq.alive) backward(item, eq);
      send<last_first, Cell::recurrent>(item, row, eq);
    }
    A product = multiply<last_first>(tile.last, item);
    if constexpr (Cell::two_products) {
      if (Thread::has()) {
        if (eq.alive) {
          A operand;
          Cell::prepare_backward(eq.save, eq.old, eq.scale * product, eq.grad, eq.du, eq.dr, operand);
          p.operand[(row - origin) * hidden + at.unit] = device::narrow<S>(operand);
        }
        send<0, last_first>(item, row, eq);
      }
      product = multiply<0>(tile.first, item);
    }
    if (eq.alive) finish(item, product, eq);
  }

  RNNKERN_DEVICE void read(GridItem item, Equations& eq) const {
    eq.alive = time(item) < at.length(item.set);
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::saved; ++i) eq.save[i] = own.input.save[i];
    eq.reset = own.input.reset;
    eq.scale = p.grad_scale ? widen(own.input.scale) : A(1);
    own.input.states(eq.old, eq.next);
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) eq.grad[s] = carry_of(item.set)[s * Thread::count];
    eq.grad[0] += widen(own.input.grad_h);
  }

  RNNKERN_DEVICE void backward(GridItem item, Equations& eq) const {
    A added[Cell::params + 1] = {};
    Cell::backward(eq.save, eq.old, eq.next, own.params, eq.grad, eq.du, eq.dr, added);
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) dparams_of(item.set)[i * Thread::count] += added[i];
  }

  // Stores the gradients of gates from..to-1, in memory and for the other members.
  template <int from, int to>
  RNNKERN_DEVICE void send(GridItem item, int64_t row, const Equations& eq) const {
    RNNKERN_UNROLL
    for (int g = from; g < to; ++g) {
      publish(words_of(g, item) + at.member * member_words, device::narrow<S>(eq.dr[g]), tag_of(item));
    }
    if (eq.alive) store_gradients<Cell, S, from, to>(p, row, row - origin, 0, at.unit, hidden, eq.du, eq.dr);
  }

  // The product of this thread's unit and column with dr of the gates from `gate` on.
  template <int gate>
  RNNKERN_DEVICE A multiply(const Product& with, GridItem item) {
    with.multiply(words_of(gate, item), tag_of(item), memory.scratch, partials);
    device::block_barrier();
    const A product = Thread::has() ? Partials::sum(partials, 1, 0) : A(0);
    partials = partials == memory.partials ? memory.partials + Partials::size(1) : memory.partials;
    return product;
  }

  RNNKERN_DEVICE void finish(GridItem item, A product, Equations& eq) const {
    eq.grad[0] += eq.scale * product;
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) {
      carry_of(item.set)[s * Thread::count] = eq.reset ? A(0) : eq.grad[s];
    }
  }

  RNNKERN_DEVICE void end() const {
    if (!Thread::has()) return;
    for (int set = 0; set < at.sets; ++set) {
      if (!at.real(set)) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][at.element(set)] = carry_of(set)[s * Thread::count];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) p.dparams[i][at.element(set)] += dparams_of(set)[i * Thread::count];
    }
  }
};

}  // namespace rnnkern
