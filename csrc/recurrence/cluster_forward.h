// The cluster kernel, forward: the blocks of a cluster run all steps of a few sequences. R stays in their registers and
// shared memory, each unit's state in registers of the block that owns it. What a step exchanges is h: each block
// stores its units into the buffer of every block, its own too, and the bytes that came end the wait for the next step.
// No barrier stands between the blocks while the steps last. What is written when:
//   h, twice: a block sends h of step k + 2 when it has all of step k + 1, to which every block, when its warps had
//     read h of step k, has sent its share.
//   the operand of a second product, once: likewise, h of the next step stands between two of them.
//   partial sums, once (cluster_tile.h): a block multiplies again when it has all of what it sent itself, too.
#pragma once

#include "recurrence/block_forward.h"
#include "recurrence/cluster_tile.h"

namespace rnnkern {

template <class Cell, class M, int D>
struct ClusterForwardKernel {
  using S = Stored<M>;
  using Problem = ClusterForward<S>;
  using A = Arithmetic<S>;
  using Tile = typename ClusterTiles<Cell, M, D>::Forward;
  static constexpr int threads = Tile::threads, values = Tile::values, cluster = Tile::blocks, columns = Tile::columns;
  static constexpr int units = Tile::units, buffers = Cell::two_products ? 3 : 2;
  static constexpr int vectors = Cell::gates + Cell::params;  // the bias by gate, the cell's own
  static constexpr int64_t shared_size =
      Tile::shared_size + buffers * Tile::x_size * sizeof(S) + round_up(buffers * 8, 16) + vectors * units * 4;

  RNNKERN_DEVICE static void run(const Problem& p) {
    if constexpr (device::has_clusters) {
      work(p);
    } else {
      device::trap();
    }
  }

  // This value of lanes that come together, to every block; all lanes of the warp.
  RNNKERN_DEVICE static void give(int rank, int v, int n, A value, S* to, device::Mbarrier* on) {
    constexpr int group = 16 / sizeof(S);
    const device::Word16 word = Tile::gather(multiplied<M>(value));
    if (Tile::column(v) >= n) return;
    S* place = to + Tile::place(Tile::column(v), rank * units + Tile::unit(v) / group * group);
    RNNKERN_UNROLL
    for (int k = 0; k < cluster; k += Tile::members) {
      const int other = k + Tile::member();
      device::store_async(device::map(place, other), word, device::map(on, other));
    }
  }

  RNNKERN_DEVICE static void work(const Problem& p) {
    const Sequence& seq = p.sequence;
    const int hidden = int(seq.hidden), rank = device::cluster_rank(), first_unit = rank * units;
    const int b0 = device::block() / cluster * int(p.columns), left = int(seq.batch) - b0;
    const int n = left < int(p.columns) ? left : int(p.columns);
    device::Carver carver{device::shared_memory()};
    char* memory = carver.take<char>(Tile::shared_size);
    S* x = carver.take<S>(buffers * Tile::x_size);  // h of this step and of the next, and a second product's operand
    auto* arrived = carver.take<device::Mbarrier>(buffers);
    A* vector = carver.take<A>(vectors * units);
    for (int i = device::thread(); i < buffers * Tile::x_size; i += threads) x[i] = S{};  // padding is multiplied too
    for (int i = device::thread(); i < vectors * units; i += threads) {
      const int unit = first_unit + i % units, k = i / units;
      const S* from = k >= Cell::gates ? p.params[k - Cell::gates] : p.bias ? p.bias + k * hidden : nullptr;
      vector[i] = from && unit < hidden ? widen(from[unit]) : A(0);
    }
    Tile tile;
    tile.load(p.R, hidden, rank, memory);
    const int bytes = n * D * int(sizeof(S));
    if (device::thread() == 0) {
      for (int k = 0; k < buffers; ++k) device::init(arrived + k, 1);
      device::init_fence();
      for (int k = 0; k < buffers; ++k) device::expect(arrived + k, bytes);
    }
    device::block_barrier();
    for (int i = device::thread(); i < n * hidden; i += threads) {
      const S h = p.state[0][(int64_t(b0) + i / hidden) * hidden + i % hidden];
      x[Tile::place(i / hidden, i % hidden)] = multiplied<M>(widen(h));
    }

    const auto unit = [&](int v) { return first_unit + Tile::unit(v); };
    const auto sequence = [&](int v) { return b0 + Tile::column(v); };
    const auto real = [&](int v) { return unit(v) < hidden && Tile::column(v) < n; };
    int length[values];
    A state[values][Cell::states];
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      length[v] = real(v) ? int(seq.length(sequence(v))) : 0;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        state[v][s] = real(v) ? widen(p.state[s][int64_t(sequence(v)) * hidden + unit(v)]) : A(0);
      }
    }
    device::cluster_barrier();  // nobody sends before all barriers are there

    const int steps = int(seq.length(b0));  // the longest of this cluster
    const auto at = [&](int k) { return seq.reverse ? steps - 1 - k : k; };
    ForwardInput<Cell, S> input[values];
    const auto fetch = [&](int v, int k) {
      if (k >= steps) return;
      const int64_t row = seq.offset(at(k)) + sequence(v);
      input[v].fetch(seq, p.u + row * Cell::gates * hidden + unit(v), at(k), sequence(v), at(k) < length[v]);
    };
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) fetch(v, 0);

    // Sent before anything else is done: the others wait for it.
    const auto finish = [&](int v, int k, const A(&u)[Cell::gates], const A(&r)[Cell::gates],
                            const A(&old)[Cell::states], A(&save)[Cell::saved + 1]) {
      const int t = at(k), next = (k + 1) % 2;
      const bool alive = t < length[v];
      A now[Cell::states], params[Cell::params + 1];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) params[i] = vector[(Cell::gates + i) * units + Tile::unit(v)];
      Cell::forward(u, r, old, params, now, save);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) state[v][s] = alive ? now[s] : state[v][s];
      if (k + 1 < steps) give(rank, v, n, state[v][0], x + next * Tile::x_size, arrived + next);
      if (alive && Tile::writes()) {
        const int64_t row = seq.offset(t) + sequence(v);
        p.h[row * hidden + unit(v)] = device::narrow<S>(state[v][0]);
        if constexpr (Cell::states > 1) {
          if (p.cells) p.cells[row * hidden + unit(v)] = state[v][1];
        }
        if constexpr (Cell::saved > 0) {
          if (p.saved) {
            A* saved = p.saved + row * Cell::saved * hidden + unit(v);
            RNNKERN_UNROLL
            for (int i = 0; i < Cell::saved; ++i) saved[i * hidden] = save[i];
          }
        }
      }
      fetch(v, k + 1);
    };

    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      A u[values][Cell::gates] = {}, r[values][Cell::gates] = {}, old[values][Cell::states] = {};
      A save[values][Cell::saved + 1] = {};
      if (k > 0) {
        device::wait(arrived + k % 2, (k - 1) / 2 % 2);
        if (device::thread() == 0) device::expect(arrived + k % 2, bytes);
      }
      tile.template multiply<0, Cell::first_gates>(x + k % 2 * Tile::x_size, n);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (Tile::idle(v, n)) continue;
        const bool reset = input[v].reset;
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::gates; ++g) u[v][g] = widen(input[v].u[g]);
        tile.template result<0, Cell::first_gates>(v, r[v]);
        RNNKERN_UNROLL
        for (int g = 0; g < Cell::first_gates; ++g) {
          r[v][g] = vector[g * units + Tile::unit(v)] + (reset ? A(0) : r[v][g]);
        }
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) old[v][s] = reset ? A(0) : state[v][s];
        if constexpr (Cell::two_products) {
          A operand;
          Cell::prepare(u[v], r[v], old[v], save[v], operand);
          give(rank, v, n, real(v) ? operand : A(0), x + 2 * Tile::x_size, arrived + 2);
        } else {
          finish(v, k, u[v], r[v], old[v], save[v]);
        }
      }
      if constexpr (Cell::two_products) {
        device::wait(arrived + 2, k % 2);
        if (device::thread() == 0) device::expect(arrived + 2, bytes);
        tile.template multiply<Cell::first_gates, Cell::gates>(x + 2 * Tile::x_size, n);
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          if (Tile::idle(v, n)) continue;
          tile.template result<Cell::first_gates, Cell::gates>(v, r[v]);
          RNNKERN_UNROLL
          for (int g = Cell::first_gates; g < Cell::gates; ++g) r[v][g] += vector[g * units + Tile::unit(v)];
          finish(v, k, u[v], r[v], old[v], save[v]);
        }
      }
    }
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (!real(v) || !Tile::writes()) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        p.final_state[s][int64_t(sequence(v)) * hidden + unit(v)] = device::narrow<S>(state[v][s]);
      }
    }
    device::cluster_barrier();  // nobody leaves while others may still send
  }
};

}  // namespace rnnkern
