// The forward of the cluster kernel: the blocks of a cluster run all steps of a few sequences. They keep R in registers
// and shared memory, and each unit's state in registers of the block that owns the unit. In every step the blocks
// exchange h: each block stores its units into the buffers of all blocks, including its own, and a block waits until
// all bytes of the next step have arrived. There is no cluster barrier in the loop. Two groups of sequences alternate,
// each with its own buffers, sums and mbarriers. No buffer is overwritten before it has been read:
//   h has two buffers. A block sends h of step k + 2 after it has received all of step k + 1; every block sends its
//     part of k + 1 after its warps have read step k.
//   The operand of a second product has one buffer: between two uses lies the exchange of h, to which the same applies.
//   Partial sums (cluster_tile.cuh) have one buffer: a block multiplies again only after it has received h, which
//     includes what it has sent itself.
#pragma once

#include "recurrence/cuda/block_forward.cuh"
#include "recurrence/cuda/cluster_tile.cuh"

namespace rnnkern {

template <class Cell, class M, int D>
struct ClusterForwardKernel {
  using S = Stored<M>;
  using Problem = OnCluster<BlockForward<S>>;
  static constexpr char header[] = "recurrence/cuda/cluster_forward.cuh";
  using A = Arithmetic<S>;
  using Tile = typename ClusterTiles<Cell, M, D>::Forward;
  static constexpr int threads = Tile::threads, least_blocks = 1, values = Tile::values, cluster = Tile::blocks;
  static constexpr int units = Tile::units, buffers = Cell::two_products ? 3 : 2;
  static constexpr int vectors = Cell::recurrent + Cell::params;  // the bias of each gate, and the cell's parameters
  static constexpr int64_t group_size = Tile::sums_size + buffers * Tile::x_size * sizeof(S);
  static constexpr int64_t once_size = Tile::shared_size + round_up(2 * buffers * 8, 16) + vectors * units * 4;
  static constexpr int64_t waiting_size = int64_t(values) * (Cell::states + 1) * threads * 4;
  static constexpr int64_t two_size = once_size + 2 * group_size + waiting_size;
  static constexpr int groups = two_size <= cluster_memory ? 2 : 1, columns = groups * Tile::columns;
  static constexpr int64_t shared_size = groups == 2 ? two_size : once_size + group_size;

  RNNKERN_DEVICE static void run(const Problem& p) {
    if constexpr (device::has_clusters) {
      work(p);
    } else {
      device::trap();
    }
  }

  // Sends this value, gathered from the lanes of neighbouring units, to every block. Called by whole warps.
  RNNKERN_DEVICE static void give(int rank, int v, int n, A value, S* to, device::Mbarrier* on) {
    constexpr int group = 16 / sizeof(S);
    const device::Word16 word = Tile::gather(multiplied<M>(value));
    device::warp_barrier();  // all lanes have read sums, which are overwritten when words of the others have arrived
    if (Tile::column(v) >= n) return;
    S* target = to + Tile::smem_offset(Tile::column(v), rank * units + Tile::unit(v) / group * group);
    RNNKERN_UNROLL
    for (int k = 0; k < cluster; k += Tile::members) {
      const int other = k + Tile::member();
      device::store_async(device::map(target, other), word, device::map(on, other));
    }
  }

  RNNKERN_DEVICE static void work(const Problem& p) {
    const Sequence& seq = p.sequence;
    const int hidden = int(seq.hidden), rank = device::cluster_rank(), first_unit = rank * units;
    const ClusterGroups rows(seq, int(p.columns), cluster, Tile::columns);
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    char* sums = arena.alloc<char>(groups * Tile::sums_size);
    // For each group: h of this step and of the next, and the operand of a second product.
    S* all_x = arena.alloc<S>(groups * buffers * Tile::x_size);
    auto* all_arrived = arena.alloc<device::Mbarrier>(groups * buffers);
    A* vector = arena.alloc<A>(vectors * units);
    // The register values of the group that is not running.
    A* waiting = arena.alloc<A>(groups == 2 ? values * Cell::states * threads : 0) + device::thread();
    int* waiting_length = arena.alloc<int>(groups == 2 ? values * threads : 0) + device::thread();
    for (int i = device::thread(); i < groups * buffers * Tile::x_size; i += threads) {
      all_x[i] = S{};  // padding is multiplied too
    }
    for (int i = device::thread(); i < vectors * units; i += threads) {
      const int unit = first_unit + i % units, k = i / units;
      const S* from = k >= Cell::recurrent ? p.params[k - Cell::recurrent] : p.bias ? p.bias + k * hidden : nullptr;
      vector[i] = from && unit < hidden ? widen(from[unit]) : A(0);
    }
    Tile tile;
    tile.load(p.R, hidden, rank, memory);
    const auto bytes = [&](int g) { return rows.count(g) * D * int(sizeof(S)); };
    if (device::thread() == 0) {
      for (int k = 0; k < groups * buffers; ++k) device::init(all_arrived + k, 1);
      device::init_fence();
      for (int k = 0; k < groups * buffers; ++k) device::expect(all_arrived + k, bytes(k / buffers));
    }
    device::block_barrier();
    for (int i = device::thread(); i < rows.n * hidden; i += threads) {
      const int column = i / hidden, second = column >= rows.half;
      const S h = p.state[0][(int64_t(rows.b0) + column) * hidden + i % hidden];
      all_x[second * buffers * Tile::x_size + Tile::smem_offset(column - second * rows.half, i % hidden)] =
          multiplied<M>(widen(h));
    }

    int g = 0;  // the running group
    const auto unit = [&](int v) { return first_unit + Tile::unit(v); };
    const auto sequence = [&](int v) { return rows.first(g) + Tile::column(v); };
    const auto real = [&](int v) { return unit(v) < hidden && Tile::column(v) < rows.count(g); };
    int length[values];
    A state[values][Cell::states];
    const auto begin = [&] {
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        length[v] = real(v) ? int(seq.length(sequence(v))) : 0;
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) {
          state[v][s] = real(v) ? widen(p.state[s][int64_t(sequence(v)) * hidden + unit(v)]) : A(0);
        }
      }
    };
    const auto change = [&](int to) {
      g = to;
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        swap(length[v], waiting_length[v * threads]);
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) swap(state[v][s], waiting[(v * Cell::states + s) * threads]);
      }
    };
    if constexpr (groups == 2) {
      g = 1;
      begin();
      change(0);
    }
    begin();
    device::cluster_barrier();  // no block sends before all mbarriers are initialised

    const int steps0 = rows.longest(0), steps1 = groups == 2 ? rows.longest(1) : 0;
    const auto steps = [&] { return groups == 2 && g ? steps1 : steps0; };
    const auto at = [&](int k) { return seq.reverse ? steps() - 1 - k : k; };
    ForwardInput<Cell, S> input[values];
    const auto fetch = [&](int k) {
      if (k >= steps()) return;
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        const int64_t row = seq.offset(at(k)) + sequence(v);
        input[v].fetch(seq, p.u + row * Cell::gates * hidden + unit(v), at(k), sequence(v), at(k) < length[v]);
      }
    };
    fetch(0);

    RNNKERN_ROLLED
    for (int k = 0; k < steps0;) {
      const int n = rows.count(g);
      S* x = all_x + g * buffers * Tile::x_size;
      device::Mbarrier* arrived = all_arrived + g * buffers;
      A u[values][Cell::gates] = {}, r[values][Cell::recurrent] = {}, old[values][Cell::states] = {};
      A save[values][Cell::saved + 1] = {};
      // Sends h before everything else, since the other blocks wait for it.
      const auto finish = [&](int v) {
        const int t = at(k), next = (k + 1) % 2;
        const bool alive = t < length[v];
        A now[Cell::states], params[Cell::params + 1];
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::params; ++i) params[i] = vector[(Cell::recurrent + i) * units + Tile::unit(v)];
        Cell::forward(u[v], r[v], old[v], params, now, save[v]);
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) state[v][s] = alive ? now[s] : state[v][s];
        if (k + 1 < steps()) give(rank, v, n, state[v][0], x + next * Tile::x_size, arrived + next);
        if (alive && Tile::writes()) {
          const int64_t row = seq.offset(t) + sequence(v);
          p.h[row * hidden + unit(v)] = device::narrow<S>(state[v][0]);
          RNNKERN_UNROLL
          for (int s = 1; s < Cell::states; ++s) {
            if (p.cells[s]) p.cells[s][row * hidden + unit(v)] = state[v][s];
          }
          if constexpr (Cell::saved > 0) {
            if (p.saved) {
              A* saved = p.saved + row * Cell::saved * hidden + unit(v);
              RNNKERN_UNROLL
              for (int i = 0; i < Cell::saved; ++i) saved[i * hidden] = save[v][i];
            }
          }
        }
      };
      if (k > 0) {
        device::wait(arrived + k % 2, (k - 1) / 2 % 2);
        if (device::thread() == 0) device::expect(arrived + k % 2, bytes(g));
      }
      tile.use(sums + g * Tile::sums_size);
      tile.template multiply<0, Cell::first_gates>(x + k % 2 * Tile::x_size, n);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (Tile::idle(v, n)) continue;
        const bool reset = input[v].reset;
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::gates; ++i) u[v][i] = widen(input[v].u[i]);
        tile.template result<0, Cell::first_gates>(v, r[v]);
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::first_gates; ++i) {
          r[v][i] = vector[i * units + Tile::unit(v)] + (reset ? A(0) : r[v][i]);
        }
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) old[v][s] = reset ? A(0) : state[v][s];
        if constexpr (Cell::two_products) {
          A operand;
          Cell::prepare(u[v], r[v], old[v], save[v], operand);
          give(rank, v, n, real(v) ? operand : A(0), x + 2 * Tile::x_size, arrived + 2);
        } else {
          finish(v);
        }
      }
      if constexpr (Cell::two_products) {
        device::wait(arrived + 2, k % 2);
        if (device::thread() == 0) device::expect(arrived + 2, bytes(g));
        tile.template multiply<Cell::first_gates, Cell::recurrent>(x + 2 * Tile::x_size, n);
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          if (Tile::idle(v, n)) continue;
          tile.template result<Cell::first_gates, Cell::recurrent>(v, r[v]);
          RNNKERN_UNROLL
          for (int i = Cell::first_gates; i < Cell::recurrent; ++i) r[v][i] += vector[i * units + Tile::unit(v)];
          finish(v);
        }
      }
      const bool second = groups == 2 && g == 0 && k < steps1;
      k += !second;
      if constexpr (groups == 2) {
        if (second != g) change(second);
      }
      fetch(k);
    }
    const auto end = [&] {
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (!real(v) || !Tile::writes()) continue;
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) {
          p.final_state[s][int64_t(sequence(v)) * hidden + unit(v)] = device::narrow<S>(state[v][s]);
        }
      }
    };
    end();
    if constexpr (groups == 2) {
      change(1);
      end();
    }
    device::cluster_barrier();  // no block exits while others may still send to it
  }
};

}  // namespace rnnkern
