// The backward of the cluster kernel: the gradients of the gates and of the state, for a range of steps whose gates are
// known. Each block keeps the rows of R of its own units, as in the forward. From dr of its units it computes a part of
// dh of all units, and sends every block the part for that block's units, in float32; the receiver adds the parts in
// the order of the blocks. Two groups of sequences alternate: a group's exchange is received when its next turn begins.
// dr and the parts of dh have two buffers each, which alternate: dr in all exchanges, parts in the exchanges of a
// group. No buffer is overwritten before it has been read:
//   dr of own units: after reading it, a block's warps pass a barrier before the buffer is written again.
//   parts of dh: a block sends exchange e + 2 after it has received all of exchange e + 1. Every block sends its
//     part of e + 1 after a block barrier, before which its threads have added up the parts of e.
#pragma once

#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/cluster_tile.cuh"

namespace rnnkern {

template <class Cell, class M, int D>
struct ClusterBackwardKernel {
  using S = Stored<M>;
  using Problem = OnCluster<BlockBackward<S>>;
  static constexpr char header[] = "recurrence/cuda/cluster_backward.cuh";
  using A = Arithmetic<S>;
  using Tile = typename ClusterTiles<Cell, M, D>::Backward;
  static constexpr int threads = Tile::threads, least_blocks = 1, cluster = Tile::blocks, units = Tile::units;
  static constexpr int values = (units * Tile::columns + threads - 1) / threads;
  using Pairs = ClusterPairs<threads, units>;
  static constexpr int64_t parts_size = int64_t(cluster) * Tile::columns * units;
  // Values of a group that a thread keeps in registers: gradients of the state and the parameters, and the scale of the
  // next product.
  static constexpr int carried = Cell::states + Cell::params + 1;
  static constexpr int64_t once_size = Tile::shared_size + 2 * Tile::x_size * sizeof(S) + 32;
  static constexpr int64_t waiting_size = int64_t(values) * (carried * 4 + 8) * threads;
  static constexpr int64_t two_size = once_size + 4 * parts_size * 4 + waiting_size;
  // With two products of this size, two groups need too many registers.
  static constexpr bool two_groups = two_size <= cluster_memory && !(Cell::two_products && D == 768);
  static constexpr int groups = two_groups ? 2 : 1, columns = groups * Tile::columns;
  static constexpr int64_t shared_size = groups == 2 ? two_size : once_size + 2 * parts_size * 4;
  // The first gate of the last product. The cell's `backward` gives the gradients of this gate and the following ones.
  static constexpr int last_first = Cell::two_products ? Cell::first_gates : 0, products = 1 + Cell::two_products;

  // R^T dr of gates first..last-1. `turn` counts the exchanges of a group, `all` those of both groups.
  struct Exchange {
    Tile tile;
    S* x;          // double-buffered
    float* parts;  // two buffers for each group, (cluster, columns, units) each
    device::Mbarrier* arrived;
    int rank, all = 0;

    RNNKERN_DEVICE S* dr() const { return x + all % 2 * Tile::x_size; }
    RNNKERN_DEVICE static int bytes(int n) { return n * D * 4; }
    RNNKERN_DEVICE float* received(int g, int turn) const { return parts + (2 * g + turn % 2) * parts_size; }
    RNNKERN_DEVICE device::Mbarrier* barrier(int g, int turn) const { return arrived + 2 * g + turn % 2; }

    template <int first, int last>
    RNNKERN_DEVICE void send(int g, int turn, int n) {
      float* own = received(g, turn);
      device::Mbarrier* on = barrier(g, turn);
      device::block_barrier();
      tile.template multiply<first, last>(dr(), n, [&](int unit, int column, const float (&four)[4]) {
        device::Word16 word;
        std::memcpy(&word, four, sizeof word);
        float* to = own + (rank * Tile::columns + column) * units + unit % units;
        device::store_async(device::map(to, unit / units), word, device::map(on, unit / units));
      });
      ++all;
    }

    RNNKERN_DEVICE void receive(int g, int turn, int n, A (&product)[values]) {
      device::wait(barrier(g, turn), turn / 2 % 2);
      if (device::thread() == 0) device::expect(barrier(g, turn), bytes(n));
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (Pairs::idle(v, n)) continue;
        const float* from = received(g, turn) + Pairs::column(v) * units + Pairs::unit(v);
        product[v] = 0;
        if (Pairs::column(v) >= n) continue;
        RNNKERN_UNROLL
        for (int r = 0; r < cluster; ++r) product[v] += from[r * Tile::columns * units];
      }
    }
  };

  // Stores the gradients of gates first..last-1 of one unit, in memory and as the operand of the product.
  template <int first, int last>
  RNNKERN_DEVICE static void give(const Problem& p, const A (&du)[Cell::gates], const A (&dr)[Cell::recurrent], S* x,
                                  int v, int unit, int64_t row, int64_t origin) {
    const int hidden = int(p.sequence.hidden);
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      x[Tile::smem_offset(Pairs::column(v), g, Pairs::unit(v))] = multiplied<M>(dr[g]);
      if (p.dr) p.dr[((row - origin) * Cell::recurrent + g) * hidden + unit] = device::narrow<S>(dr[g]);
    }
    RNNKERN_UNROLL
    for (int g = first; g < gates_of_u<Cell>(last); ++g) {
      p.du[(row * Cell::gates + g) * hidden + unit] = device::narrow<S>(du[g]);
    }
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    if constexpr (device::has_clusters) {
      work(p);
    } else {
      device::trap();
    }
  }

  RNNKERN_DEVICE static void work(const Problem& p) {
    const Sequence& seq = p.sequence;
    const int hidden = int(seq.hidden);
    const ClusterGroups rows(seq, int(p.columns), cluster, Tile::columns);
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    Exchange exchange;
    exchange.x = arena.alloc<S>(2 * Tile::x_size);
    exchange.parts = arena.alloc<float>(groups * 2 * parts_size);
    exchange.arrived = arena.alloc<device::Mbarrier>(groups * 2);
    exchange.rank = device::cluster_rank();
    // The register values of the group that is not running.
    A* waiting = arena.alloc<A>(groups == 2 ? values * carried * threads : 0) + device::thread();
    int* waiting_length = arena.alloc<int>(groups == 2 ? values * 2 * threads : 0) + device::thread();
    for (int i = device::thread(); i < 2 * Tile::x_size; i += threads) exchange.x[i] = S{};  // padding counts too
    exchange.tile.load(p.R, hidden, exchange.rank, memory);
    if (device::thread() == 0) {
      for (int k = 0; k < groups * 2; ++k) device::init(exchange.arrived + k, 1);
      device::init_fence();
      for (int k = 0; k < groups * 2; ++k) device::expect(exchange.arrived + k, exchange.bytes(rows.count(k / 2)));
    }

    int g = 0;  // the running group
    const auto unit = [&](int v) { return exchange.rank * units + Pairs::unit(v); };
    const auto sequence = [&](int v) { return rows.first(g) + Pairs::column(v); };
    const auto real = [&](int v) { return unit(v) < hidden && Pairs::column(v) < rows.count(g); };
    // `scale` and `reset` are those of the step whose product is being exchanged.
    int length[values], reset[values] = {};
    A carry[values][Cell::states], params[values][Cell::params + 1], dparams[values][Cell::params + 1] = {};
    A scale[values] = {};
    const auto begin = [&] {
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        length[v] = real(v) ? int(seq.length(sequence(v))) : 0;
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) {
          carry[v][s] = real(v) ? p.carry[s][int64_t(sequence(v)) * hidden + unit(v)] : A(0);
        }
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::params; ++i) dparams[v][i] = 0;
      }
    };
    const auto change = [&](int to) {
      g = to;
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        A* own = waiting + v * carried * threads;
        swap(length[v], waiting_length[2 * v * threads]);
        swap(reset[v], waiting_length[(2 * v + 1) * threads]);
        swap(scale[v], own[0]);
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) swap(carry[v][s], own[(1 + s) * threads]);
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::params; ++i) swap(dparams[v][i], own[(1 + Cell::states + i) * threads]);
      }
    };
    if constexpr (groups == 2) {
      g = 1;
      begin();
      change(0);
    }
    begin();
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) {
        params[v][i] = unit(v) < hidden ? widen(p.params[i][unit(v)]) : A(0);  // the same for both groups
      }
    }
    device::cluster_barrier();  // no block sends before all mbarriers are initialised

    const int first = int(p.first), end = first + int(p.steps);
    const auto last = [&](int of) {
      const int longest = rows.longest(of);
      return longest < end ? longest : end;
    };
    const int last0 = last(0), last1 = groups == 2 ? last(1) : 0;
    const int steps0 = last0 > first ? last0 - first : 0, steps1 = last1 > first ? last1 - first : 0;
    const auto steps = [&] { return groups == 2 && g ? steps1 : steps0; };
    const auto at = [&](int k) { return seq.reverse ? first + k : (groups == 2 && g ? last1 : last0) - 1 - k; };
    const int64_t origin = seq.offset(p.first);
    BackwardInput<Cell, S> input[values] = {};
    const auto fetch = [&](int k) {
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (k >= steps() || at(k) >= length[v]) continue;
        const int64_t row = seq.offset(at(k)) + sequence(v);
        input[v].fetch(p, at(k), row, row - origin, sequence(v), 0, unit(v), hidden, length[v]);
      }
    };
    // Receives the product of this group's last exchange before step k, which belongs to the previous step.
    const auto receive = [&](int k) {
      A product[values];
      exchange.receive(g, products * k - 1, rows.count(g), product);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (at(k - 1) < length[v]) {
          carry[v][0] += scale[v] * product[v];
          RNNKERN_UNROLL
          for (int s = 0; s < Cell::states; ++s) carry[v][s] = reset[v] ? A(0) : carry[v][s];
        }
      }
    };
    fetch(0);
    RNNKERN_ROLLED
    for (int k = 0; k < steps0;) {
      const int t = at(k), n = rows.count(g);
      if (k > 0) receive(k);
      A save[values][Cell::saved + 1], old[values][Cell::states];
      A du[values][Cell::gates], dr[values][Cell::recurrent];
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (Pairs::idle(v, n)) continue;
        A next[Cell::states];
        input[v].states(old[v], next);
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::saved; ++i) save[v][i] = input[v].save[i];
        reset[v] = input[v].reset;
        scale[v] = p.grad_scale ? widen(input[v].scale) : A(1);
        if (t < length[v]) {
          carry[v][0] += widen(input[v].grad_h);
          Cell::backward(save[v], old[v], next, params[v], carry[v], du[v], dr[v], dparams[v]);
          give<last_first, Cell::recurrent>(p, du[v], dr[v], exchange.dr(), v, unit(v), seq.offset(t) + sequence(v),
                                            origin);
        }
      }
      if constexpr (Cell::two_products) {
        A product[values];
        exchange.template send<last_first, Cell::recurrent>(g, 2 * k, n);
        exchange.receive(g, 2 * k, n, product);
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          if (t < length[v]) {
            A operand;
            Cell::prepare_backward(save[v], old[v], scale[v] * product[v], carry[v], du[v], dr[v], operand);
            const int64_t row = seq.offset(t) + sequence(v);
            p.operand[(row - origin) * hidden + unit(v)] = device::narrow<S>(operand);
            give<0, Cell::first_gates>(p, du[v], dr[v], exchange.dr(), v, unit(v), row, origin);
          }
        }
      }
      exchange.template send<0, Cell::two_products ? Cell::first_gates : Cell::recurrent>(g, products * (k + 1) - 1, n);
      const bool second = groups == 2 && g == 0 && k < steps1;
      k += !second;
      if constexpr (groups == 2) {
        if (second != g) change(second);
      }
      fetch(k);
    }
    const auto leave = [&] {
      if (steps() > 0) receive(steps());
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (!real(v)) continue;
        const int64_t element = int64_t(sequence(v)) * hidden + unit(v);
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) p.carry[s][element] = carry[v][s];
        RNNKERN_UNROLL
        for (int i = 0; i < Cell::params; ++i) p.dparams[i][element] += dparams[v][i];
      }
    };
    leave();
    if constexpr (groups == 2) {
      change(1);
      leave();
    }
    device::cluster_barrier();  // no block exits while others may still send to it
  }
};

}  // namespace rnnkern
