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

  RNNKERN_DEVICE static void run(const Problem& problem) {
    const BlockForward<S>& p = problem.call;
    const GridSize& size = problem.size;
    const Sequence& seq = p.sequence;
    const Memory memory(device::shared_memory(), size);
    const int hidden = int(seq.hidden), first_unit = device::block() % size.members * units;
    const GridPlace at(seq, size, first_unit + Thread::unit(), Thread::column(), memory.lengths);
    const auto weight = [&](int gate, int unit, int slice, int i) {
      const int row = first_unit + unit, column = slice * units + i;
      return row < hidden && column < hidden ? p.R[(gate * hidden + row) * hidden + column] : S{};
    };
    First first;
    first.load(memory.first, size.members, weight);
    Second second;
    if constexpr (Cell::two_products) {
      second.load(memory.second, size.members,
                  [&](int gate, int unit, int slice, int i) { return weight(first_gates + gate, unit, slice, i); });
    }
    device::block_barrier();
    const auto steps = [&](int set) { return at.longest(set); };
    const auto time = [&](GridItem item) { return seq.reverse ? steps(item.set) - 1 - item.step : item.step; };
    const auto words_of = [&](int exchange, int step, int set) {
      const int64_t row = ((at.group * exchanges + exchange) * 2 + step % 2) * size.sets + set;
      return problem.words + row * size.members * member_words;
    };
    const auto own_words = [&](int exchange, int step, int set) {
      return words_of(exchange, step, set) + at.member * member_words;
    };

    A bias[Cell::recurrent] = {}, params[Cell::params + 1] = {};
    A* state = memory.state + device::thread();
    if (Thread::has()) {
      if (at.unit < hidden) {
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::recurrent; ++g) bias[g] = p.bias ? widen(p.bias[g * hidden + at.unit]) : A(0);
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::params; ++i) params[i] = widen(p.params[i][at.unit]);
      }
      for (int set = 0; set < at.sets; ++set) {
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) {
          const int64_t element = int64_t(at.sequence(set)) * hidden + at.unit;
          state[(set * Cell::states + s) * Thread::count] = at.real(set) ? widen(p.state[s][element]) : A(0);
        }
        publish(own_words(0, 0, set), device::narrow<S>(state[set * Cell::states * Thread::count]), 1);
      }
    }

    // Inputs are loaded one item ahead, and the rows where they start two items ahead, so that no load waits for
    // another.
    ForwardInput<Cell, S> input{};
    const auto row_of = [&](GridItem item) { return item.step < steps(item.set) ? seq.offset(time(item)) : 0; };
    const auto fetch = [&](GridItem item, int64_t row) {
      const int b = at.sequence(item.set);
      const bool alive = item.step < steps(item.set) && time(item) < at.length(item.set);
      input.fetch(seq, p.u + ((row + b) * Cell::gates * hidden + at.unit), time(item), b, alive);
    };
    GridItem item{0, 0}, next = GridPlace::after(item, steps);
    int64_t row = row_of(item), ahead = row_of(next);
    if (Thread::has()) fetch(item, row);
    float* partials = memory.partials;
    const auto swap = [&] {
      partials = partials == memory.partials ? memory.partials + Partials::size(most_gates()) : memory.partials;
    };
    RNNKERN_ROLLED
    while (item.step < steps(0)) {
      const GridItem latest = GridPlace::after(next, steps);
      const uint32_t tag = uint32_t(item.step) + 1;
      const int t = time(item), b = at.sequence(item.set);
      const int64_t later = row_of(latest);
      A u[Cell::gates], r[Cell::recurrent], save[Cell::saved + 1], old[Cell::states];
      A* own = state + item.set * Cell::states * Thread::count;
      bool reset = false, alive = false;
      if (Thread::has()) {
        alive = t < at.length(item.set);
        reset = input.reset;
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::gates; ++g) u[g] = widen(input.u[g]);
        fetch(next, ahead);
      }
      first.multiply(words_of(0, item.step, item.set), tag, memory.scratch, partials);
      device::block_barrier();
      if (Thread::has()) {
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) old[s] = reset ? A(0) : own[s * Thread::count];
        RNNKERN_UNROLL
        for (int g = 0; g < first_gates; ++g) {
          r[g] = bias[g] + (reset ? A(0) : Partials::sum(partials, first_gates, g));
        }
      }
      swap();
      if constexpr (Cell::two_products) {
        if (Thread::has()) {
          A product;
          Cell::prepare(u, r, old, save, product);
          publish(own_words(1, item.step, item.set), device::narrow<S>(product), tag);
        }
        second.multiply(words_of(1, item.step, item.set), tag, memory.scratch, partials);
        device::block_barrier();
        if (Thread::has()) {
          RNNKERN_UNROLL
          for (int g = 0; g < last_gates; ++g) {
            r[first_gates + g] = bias[first_gates + g] + Partials::sum(partials, last_gates, g);
          }
        }
        swap();
      }
      if (Thread::has()) {
        A new_state[Cell::states];
        Cell::forward(u, r, old, params, new_state, save);
        const S h = device::narrow<S>(alive ? new_state[0] : own[0]);
        publish(own_words(0, item.step + 1, item.set), h, tag + 1);
        if (alive) {
          const int64_t output_row = row + b;
          RNNKERN_UNROLL
          for (int s = 0; s < Cell::states; ++s) own[s * Thread::count] = new_state[s];
          p.h[output_row * hidden + at.unit] = h;
          RNNKERN_UNROLL
          for (int s = 1; s < Cell::states; ++s) {
            if (p.cells[s]) p.cells[s][output_row * hidden + at.unit] = new_state[s];
          }
          if constexpr (Cell::saved > 0) {
            if (p.saved) {
              A* saved = p.saved + output_row * Cell::saved * hidden + at.unit;
              RNNKERN_UNROLL
              for (int i = 0; i < Cell::saved; ++i) saved[i * hidden] = save[i];
            }
          }
        }
      }
      item = next;
      next = latest;
      row = ahead;
      ahead = later;
    }
    if (!Thread::has()) return;
    for (int set = 0; set < at.sets; ++set) {
      if (!at.real(set)) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        p.final_state[s][int64_t(at.sequence(set)) * hidden + at.unit] =
            device::narrow<S>(state[(set * Cell::states + s) * Thread::count]);
      }
    }
  }
};

}  // namespace rnnkern
