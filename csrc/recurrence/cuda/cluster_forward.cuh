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
#include "recurrence/cuda/cluster_loop.cuh"
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

  RNNKERN_DEVICE static void run(const Problem& p) { run_cluster<ClusterForwardKernel>(p); }

  // This thread's values of the running group.
  struct Values {
    int length[values];
    A state[values][Cell::states];
    ForwardInput<Cell, S> input[values];
  };

  const Problem& p;
  const Sequence& seq = p.sequence;
  ClusterPlace<Tile, units, groups> at;
  Tile& tile;
  Values& own;
  char* all_sums;
  S* all_x;  // of each group: h of even and of odd steps, and the operand of a second product
  device::Mbarrier* all_arrived;
  A* vector;            // (vectors, units)
  A* waiting;           // the state of the group that is not running
  int* waiting_length;  // and its lengths

  // The quantities of one unit and sequence in a step.
  struct Equations {
    A u[Cell::gates] = {}, r[Cell::recurrent] = {}, old[Cell::states] = {}, save[Cell::saved + 1] = {};
  };

  RNNKERN_DEVICE ClusterForwardKernel(const Problem& p, Tile& tile, Values& own)
      : p(p), at(seq, int(p.columns), cluster, Tile::columns), tile(tile), own(own) {
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    all_sums = arena.alloc<char>(groups * Tile::sums_size);
    all_x = arena.alloc<S>(groups * buffers * Tile::x_size);
    all_arrived = arena.alloc<device::Mbarrier>(groups * buffers);
    vector = arena.alloc<A>(vectors * units);
    waiting = arena.alloc<A>(groups == 2 ? values * Cell::states * threads : 0) + device::thread();
    waiting_length = arena.alloc<int>(groups == 2 ? values * threads : 0) + device::thread();
    for (int i = device::thread(); i < groups * buffers * Tile::x_size; i += threads) {
      all_x[i] = S{};  // padding is multiplied too
    }
    load_vectors();
    tile.load(p.R, at.hidden, at.rank, memory);
    begin_exchanges(all_arrived, groups * buffers, [&](int k) { return bytes(k / buffers); });
    device::block_barrier();
    load_h();
    at.set_steps([&](int g) { return at.longest(g); });
  }

  RNNKERN_DEVICE void load_vectors() const {
    for (int i = device::thread(); i < vectors * units; i += threads) {
      const int unit = at.rank * units + i % units, k = i / units;
      const S* from = k >= Cell::recurrent ? p.params[k - Cell::recurrent] : p.bias ? p.bias + k * at.hidden : nullptr;
      vector[i] = from && unit < at.hidden ? widen(from[unit]) : A(0);
    }
  }

  RNNKERN_DEVICE void load_h() const {
    for (int i = device::thread(); i < at.n * at.hidden; i += threads) {
      const int column = i / at.hidden, unit = i % at.hidden, second = column >= at.half;
      const S h = p.state[0][(int64_t(at.b0) + column) * at.hidden + unit];
      all_x[second * buffers * Tile::x_size + Tile::smem_offset(column - second * at.half, unit)] =
          multiplied<M>(widen(h));
    }
  }

  RNNKERN_DEVICE int bytes(int g) const { return at.count(g) * D * int(sizeof(S)); }
  RNNKERN_DEVICE S* x(int buffer) const { return all_x + (at.g * buffers + buffer) * Tile::x_size; }
  RNNKERN_DEVICE device::Mbarrier* arrived(int buffer) const { return all_arrived + at.g * buffers + buffer; }
  RNNKERN_DEVICE int time(int k) const { return seq.reverse ? at.steps() - 1 - k : k; }

  RNNKERN_DEVICE void begin() {
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      own.length[v] = at.length(v);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) own.state[v][s] = at.real(v) ? widen(p.state[s][at.element(v)]) : A(0);
    }
  }

  RNNKERN_DEVICE void change(int to) {
    at.g = to;
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      swap(own.length[v], waiting_length[v * threads]);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) swap(own.state[v][s], waiting[(v * Cell::states + s) * threads]);
    }
  }

  RNNKERN_DEVICE void fetch(int k) {
    if (k >= at.steps()) return;
    const int t = time(k);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      const int64_t row = seq.offset(t) + at.sequence(v);
      own.input[v].fetch(seq, p.u + row * Cell::gates * at.hidden + at.unit(v), t, at.sequence(v), t < own.length[v]);
    }
  }

  RNNKERN_DEVICE void step(int k) {
    const int n = at.count();
    Equations eq[values];
    if (k > 0) receive(arrived(k % 2), (k - 1) / 2 % 2, bytes(at.g));
    tile.use(all_sums + at.g * Tile::sums_size);
    tile.template multiply<0, Cell::first_gates>(x(k % 2), n);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (Tile::idle(v, n)) continue;
      read(v, eq[v]);
      if constexpr (Cell::two_products) {
        A operand;
        Cell::prepare(eq[v].u, eq[v].r, eq[v].old, eq[v].save, operand);
        send(v, at.real(v) ? operand : A(0), x(2), arrived(2));
      } else {
        finish(v, k, eq[v]);
      }
    }
    if constexpr (Cell::two_products) {
      receive(arrived(2), k % 2, bytes(at.g));
      tile.template multiply<Cell::first_gates, Cell::recurrent>(x(2), n);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (!Tile::idle(v, n)) finish(v, k, eq[v]);
      }
    }
  }

  RNNKERN_DEVICE void read(int v, Equations& eq) const {
    const bool reset = own.input[v].reset;
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::gates; ++i) eq.u[i] = widen(own.input[v].u[i]);
    tile.template result<0, Cell::first_gates>(v, eq.r);
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::first_gates; ++i) {
      eq.r[i] = vector[i * units + Tile::unit(v)] + (reset ? A(0) : eq.r[i]);
    }
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) eq.old[s] = reset ? A(0) : own.state[v][s];
  }

  RNNKERN_DEVICE void finish(int v, int k, Equations& eq) {
    const int t = time(k), next = (k + 1) % 2;
    const bool alive = t < own.length[v];
    A now[Cell::states], params[Cell::params + 1];
    if constexpr (Cell::two_products) {
      tile.template result<Cell::first_gates, Cell::recurrent>(v, eq.r);
      RNNKERN_UNROLL
      for (int i = Cell::first_gates; i < Cell::recurrent; ++i) eq.r[i] += vector[i * units + Tile::unit(v)];
    }
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::params; ++i) params[i] = vector[(Cell::recurrent + i) * units + Tile::unit(v)];
    Cell::forward(eq.u, eq.r, eq.old, params, now, eq.save);
    RNNKERN_UNROLL
    for (int s = 0; s < Cell::states; ++s) own.state[v][s] = alive ? now[s] : own.state[v][s];
    // First, since the other blocks wait for it.
    if (k + 1 < at.steps()) send(v, own.state[v][0], x(next), arrived(next));
    if (alive && Tile::writes()) {
      const int64_t row = seq.offset(t) + at.sequence(v);
      store_step<Cell>(p, device::narrow<S>(own.state[v][0]), own.state[v], eq.save, row * at.hidden + at.unit(v),
                       row * Cell::saved * at.hidden + at.unit(v));
    }
  }

  // Sends value v, gathered from the lanes of neighbouring units, to a buffer of every block. Called by whole warps.
  RNNKERN_DEVICE void send(int v, A value, S* to, device::Mbarrier* on) const {
    constexpr int group = 16 / sizeof(S);
    const device::Word16 word = Tile::gather(multiplied<M>(value));
    device::warp_barrier();  // all lanes have read sums, which are overwritten when words of the others have arrived
    if (Tile::column(v) >= at.count()) return;
    S* target = to + Tile::smem_offset(Tile::column(v), at.rank * units + Tile::unit(v) / group * group);
    RNNKERN_UNROLL
    for (int k = 0; k < cluster; k += Tile::members) {
      const int other = k + Tile::member();
      device::store_async(device::map(target, other), word, device::map(on, other));
    }
  }

  RNNKERN_DEVICE void end() const {
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (!at.real(v) || !Tile::writes()) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.final_state[s][at.element(v)] = device::narrow<S>(own.state[v][s]);
    }
  }
};

}  // namespace rnnkern
