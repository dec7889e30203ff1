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
  using Last = GridTile<S, 1, budget>;
  using First = GridTile<S, 1, budget>;

  struct Memory {
    char *last, *first, *scratch;
    float* partials;  // double-buffered, as in the forward
    A *carry, *dparams;
    int* lengths;
    int64_t used;

    RNNKERN_HOST_DEVICE Memory(char* base, const GridSize& size) {
      device::SharedArena arena{base};
      last = arena.alloc<char>(Last::shared_size(last_gates * size.members));
      first = arena.alloc<char>(Cell::two_products ? First::shared_size(last_first * size.members) : 0);
      scratch = arena.alloc<char>(Last::scratch);
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

  RNNKERN_DEVICE static void run(const Problem& problem) {
    const BlockBackward<S>& p = problem.call;
    const GridSize& size = problem.size;
    const Sequence& seq = p.sequence;
    const Memory memory(device::shared_memory(), size);
    const int hidden = int(seq.hidden), first_unit = device::block() % size.members * units;
    const GridPlace at(seq, size, first_unit + Thread::unit(), Thread::column(), memory.lengths);
    // A slice holds the units of one member in one gate.
    const auto weight = [&](int slice, int unit, int i) {
      const int gate = slice / size.members, row = slice % size.members * units + i, column = first_unit + unit;
      return row < hidden && column < hidden ? p.R[(gate * hidden + row) * hidden + column] : S{};
    };
    Last last_product;
    last_product.load(memory.last, last_gates * size.members, [&](int, int unit, int slice, int i) {
      return weight(last_first * size.members + slice, unit, i);
    });
    First first_product;
    if constexpr (Cell::two_products) {
      first_product.load(memory.first, last_first * size.members,
                         [&](int, int unit, int slice, int i) { return weight(slice, unit, i); });
    }
    device::block_barrier();

    const int begin = int(p.first), end = begin + int(p.steps);
    const auto last = [&](int set) { return at.longest(set) < end ? at.longest(set) : end; };
    const auto steps = [&](int set) { return last(set) > begin ? last(set) - begin : 0; };
    const auto time = [&](GridItem item) { return seq.reverse ? begin + item.step : last(item.set) - 1 - item.step; };
    const auto words_of = [&](int gate, int step, int set) {
      const int64_t row = ((at.group * 2 + step % 2) * size.sets + set) * Cell::recurrent + gate;
      return problem.words + row * size.members * member_words;
    };

    A params[Cell::params + 1] = {};
    A *carry = memory.carry + device::thread(), *dparams = memory.dparams + device::thread();
    if (Thread::has()) {
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) params[i] = at.unit < hidden ? widen(p.params[i][at.unit]) : A(0);
      for (int set = 0; set < at.sets; ++set) {
        const int64_t element = int64_t(at.sequence(set)) * hidden + at.unit;
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) {
          carry[(set * Cell::states + s) * Thread::count] = at.real(set) ? p.carry[s][element] : A(0);
        }
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::params; ++i) dparams[(set * Cell::params + i) * Thread::count] = A(0);
      }
    }

    // Inputs are loaded one item ahead. The rows where they start are loaded two items ahead: that of the step, and
    // that of the state before it, which may lie outside the range.
    struct Rows {
      int64_t here, before;
    };
    const auto rows_of = [&](GridItem item) {
      if (item.step >= steps(item.set)) return Rows{0, 0};
      const int before = time(item) + (seq.reverse ? 1 : -1);
      return Rows{seq.offset(time(item)), before >= 0 && before < seq.count ? seq.offset(before) : 0};
    };
    const int64_t origin = seq.offset(p.first);
    Input input{};
    const auto fetch = [&](GridItem item, const Rows& rows) {
      const int t = time(item), before = t + (seq.reverse ? 1 : -1), b = at.sequence(item.set);
      if (item.step >= steps(item.set) || t >= at.length(item.set)) return;
      input.fetch_after(p, before >= 0 && before < at.length(item.set) ? rows.before + b : -1, t, rows.here + b,
                        rows.here + b - origin, b, 0, at.unit, hidden);
    };
    GridItem item{0, 0}, next = GridPlace::after(item, steps);
    Rows rows = rows_of(item), ahead = rows_of(next);
    if (Thread::has()) fetch(item, rows);
    float* partials = memory.partials;
    const auto swap = [&] {
      partials = partials == memory.partials ? memory.partials + Partials::size(1) : memory.partials;
    };
    RNNKERN_ROLLED
    while (item.step < steps(0)) {
      const GridItem latest = GridPlace::after(next, steps);
      const Rows later = rows_of(latest);
      const uint32_t tag = uint32_t(item.step) + 1;
      const int b = at.sequence(item.set);
      A save[Cell::saved + 1], old[Cell::states], grad[Cell::states], du[Cell::gates] = {}, dr[Cell::recurrent] = {};
      A* own = carry + item.set * Cell::states * Thread::count;
      A scale = 1;
      bool alive = false, reset = false;
      const int64_t row = rows.here + b;
      // Stores the gradients of gates from..to-1, in memory and for the other members.
      const auto give = [&](int from, int to) {
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::recurrent; ++g) {
          if (g < from || g >= to) continue;
          const S rounded = device::narrow<S>(dr[g]);
          publish(words_of(g, item.step, item.set) + at.member * member_words, rounded, tag);
          if (alive && p.dr) p.dr[((row - origin) * Cell::recurrent + g) * hidden + at.unit] = rounded;
        }
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::gates; ++g) {
          if (g < from || g >= gates_of_u<Cell>(to) || !alive) continue;
          p.du[(row * Cell::gates + g) * hidden + at.unit] = device::narrow<S>(du[g]);
        }
      };
      if (Thread::has()) {
        A new_state[Cell::states];
        alive = time(item) < at.length(item.set);
        input.states(old, new_state);
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::saved; ++i) save[i] = input.save[i];
        reset = input.reset;
        scale = p.grad_scale ? widen(input.scale) : A(1);
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) grad[s] = own[s * Thread::count];
        grad[0] += widen(input.grad_h);
        fetch(next, ahead);
        if (alive) {
          A own_dparams[Cell::params + 1] = {};
          Cell::backward(save, old, new_state, params, grad, du, dr, own_dparams);
          RNNKERN_UNROLL
          for (int i = 0; i < Cell::params; ++i) {
            dparams[(item.set * Cell::params + i) * Thread::count] += own_dparams[i];
          }
        }
        give(last_first, Cell::recurrent);
      }
      last_product.multiply(words_of(last_first, item.step, item.set), tag, memory.scratch, partials);
      device::block_barrier();
      A product = Thread::has() ? Partials::sum(partials, 1, 0) : A(0);
      swap();
      if constexpr (Cell::two_products) {
        if (Thread::has()) {
          if (alive) {
            A operand;
            Cell::prepare_backward(save, old, scale * product, grad, du, dr, operand);
            p.operand[(row - origin) * hidden + at.unit] = device::narrow<S>(operand);
          }
          give(0, last_first);
        }
        first_product.multiply(words_of(0, item.step, item.set), tag, memory.scratch, partials);
        device::block_barrier();
        product = Thread::has() ? Partials::sum(partials, 1, 0) : A(0);
        swap();
      }
      if (alive) {
        grad[0] += scale * product;
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) own[s * Thread::count] = reset ? A(0) : grad[s];
      }
      item = next;
      next = latest;
      rows = ahead;
      ahead = later;
    }
    if (!Thread::has()) return;
    for (int set = 0; set < at.sets; ++set) {
      if (!at.real(set)) continue;
      const int64_t element = int64_t(at.sequence(set)) * hidden + at.unit;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        p.carry[s][element] = carry[(set * Cell::states + s) * Thread::count];
      }
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) {
        p.dparams[i][element] += dparams[(set * Cell::params + i) * Thread::count];
      }
    }
  }
};

}  // namespace rnnkern
