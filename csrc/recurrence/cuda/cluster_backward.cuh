// The backward of the cluster kernel: the gradients of the gates and of the state, for a range of steps whose gates are
// known. Each block keeps the rows of R of its own units, as in the forward. From dr of its units it computes a part of
// dh of all units, and sends every block the part for that block's units, in float32; the receiver adds the parts in
// the order of the blocks. Two groups of sequences alternate: the last exchange of a group's step is received when its
// next step begins. dr and the parts of dh have two buffers each, which alternate: dr in all exchanges, parts in the
// exchanges of a group. No buffer is overwritten before it has been read:
//   dr of own units: after reading it, a block's warps pass a barrier before the buffer is written again.
//   parts of dh: a block sends exchange e + 2 after it has received all of exchange e + 1. Every block sends its
//     part of e + 1 after a block barrier, before which its threads have added up the parts of e.
#pragma once

#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/cluster_loop.cuh"
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
  static constexpr int first_last = Cell::two_products ? Cell::first_gates : Cell::recurrent;

  RNNKERN_DEVICE static void run(const Problem& p) { run_cluster<ClusterBackwardKernel>(p); }

  // This thread's values of the running group. `scale` and `reset` are those of the step whose product is exchanged.
  struct Values {
    int length[values], reset[values] = {};
    A carry[values][Cell::states], params[values][Cell::params + 1], dparams[values][Cell::params + 1] = {};
    A scale[values] = {};
    BackwardInput<Cell, S> input[values] = {};
  };

  // The quantities of one unit and sequence in a step.
  struct Equations {
    A save[Cell::saved + 1], old[Cell::states], du[Cell::gates], dr[Cell::recurrent];
  };

  const Problem& p;
  const Sequence& seq = p.sequence;
  ClusterPlace<Pairs, units, groups> at;
  const int origin = int(seq.offset(p.first));
  Tile& tile;
  Values& own;
  S* all_dr;         // the operand of a product, double-buffered
  float* all_parts;  // of dh: two buffers for each group, (cluster, columns, units) each
  device::Mbarrier* all_arrived;
  A* waiting;                      // the values of the group that is not running
  int* waiting_length;             // and its lengths and resets
  const int first = int(p.first);  // the first step of the range
  int exchanges = 0;               // of both groups together

  RNNKERN_DEVICE ClusterBackwardKernel(const Problem& p, Tile& tile, Values& own)
      : p(p), at(seq, int(p.columns), cluster, Tile::columns), tile(tile), own(own) {
    device::SharedArena arena{device::shared_memory()};
    char* memory = arena.alloc<char>(Tile::shared_size);
    all_dr = arena.alloc<S>(2 * Tile::x_size);
    all_parts = arena.alloc<float>(groups * 2 * parts_size);
    all_arrived = arena.alloc<device::Mbarrier>(groups * 2);
    waiting = arena.alloc<A>(groups == 2 ? values * carried * threads : 0) + device::thread();
    waiting_length = arena.alloc<int>(groups == 2 ? values * 2 * threads : 0) + device::thread();
    for (int i = device::thread(); i < 2 * Tile::x_size; i += threads) all_dr[i] = S{};  // padding is multiplied too
    tile.load(p.R, at.hidden, at.rank, memory);
    begin_exchanges(all_arrived, groups * 2, [&](int k) { return bytes(k / 2); });
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) {
        own.params[v][i] = at.unit(v) < at.hidden ? widen(p.params[i][at.unit(v)]) : A(0);  // the same for both groups
      }
    }
    at.set_steps([&](int g) {
      const int longest = at.longest(g), end = first + int(p.steps), last = longest < end ? longest : end;
      return last > first ? last - first : 0;
    });
  }

  RNNKERN_DEVICE int time(int k) const { return first + (seq.reverse ? k : at.steps() - 1 - k); }
  // A row's number in the range, which has fewer than 2^31 rows. With 32 bits all kernels keep it in registers.
  RNNKERN_DEVICE int64_t here(int64_t row) const { return int(row) - origin; }
  RNNKERN_DEVICE int bytes(int g) const { return at.count(g) * D * 4; }
  RNNKERN_DEVICE S* dr() const { return all_dr + exchanges % 2 * Tile::x_size; }
  RNNKERN_DEVICE float* parts(int e) const { return all_parts + (2 * at.g + e % 2) * parts_size; }
  RNNKERN_DEVICE device::Mbarrier* arrived(int e) const { return all_arrived + 2 * at.g + e % 2; }

  RNNKERN_DEVICE void begin() {
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      own.length[v] = at.length(v);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) own.carry[v][s] = at.real(v) ? p.carry[s][at.element(v)] : A(0);
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) own.dparams[v][i] = 0;
    }
  }

  RNNKERN_DEVICE void change(int to) {
    at.g = to;
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      A* other = waiting + v * carried * threads;
      swap(own.length[v], waiting_length[2 * v * threads]);
      swap(own.reset[v], waiting_length[(2 * v + 1) * threads]);
      swap(own.scale[v], other[0]);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) swap(own.carry[v][s], other[(1 + s) * threads]);
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) swap(own.dparams[v][i], other[(1 + Cell::states + i) * threads]);
    }
  }

  RNNKERN_DEVICE void fetch(int k) {
    if (k >= at.steps()) return;
    const int t = time(k);
    const int64_t first_row = seq.offset(t);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (t >= own.length[v]) continue;
      const int64_t row = first_row + at.sequence(v);
      own.input[v].fetch(p, t, row, here(row), at.sequence(v), 0, at.unit(v), at.hidden, own.length[v]);
    }
  }

  RNNKERN_DEVICE int64_t row_of(int v, int t) const { return seq.offset(t) + at.sequence(v); }

  RNNKERN_DEVICE void step(int k) {
    const int t = time(k), n = at.count();
    if (k > 0) finish(k - 1);
    Equations eq[values];
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (!Pairs::idle(v, n)) backward(v, t, eq[v]);
    }
    if constexpr (Cell::two_products) {
      A product[values];
      send<last_first, Cell::recurrent>(2 * k);
      receive_sum(2 * k, product);
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (t < own.length[v]) prepare_backward(v, t, product[v], eq[v]);
      }
    }
    send<0, first_last>(products * (k + 1) - 1);
  }

  RNNKERN_DEVICE void backward(int v, int t, Equations& eq) {
    const BackwardInput<Cell, S>& input = own.input[v];
    A next[Cell::states];
    input.states(eq.old, next);
    RNNKERN_UNROLL
    for (int i = 0; i < Cell::saved; ++i) eq.save[i] = input.save[i];
    own.reset[v] = input.reset;
    own.scale[v] = p.grad_scale ? widen(input.scale) : A(1);
    if (t >= own.length[v]) return;
    own.carry[v][0] += widen(input.grad_h);
    Cell::backward(eq.save, eq.old, next, own.params[v], own.carry[v], eq.du, eq.dr, own.dparams[v]);
    store<last_first, Cell::recurrent>(v, row_of(v, t), eq);
  }

  RNNKERN_DEVICE void prepare_backward(int v, int t, A product, Equations& eq) {
    A operand;
    Cell::prepare_backward(eq.save, eq.old, own.scale[v] * product, own.carry[v], eq.du, eq.dr, operand);
    const int64_t row = row_of(v, t);
    p.operand[here(row) * at.hidden + at.unit(v)] = device::narrow<S>(operand);
    store<0, Cell::first_gates>(v, row, eq);
  }

  // Stores the gradients of gates first..last-1 of one unit, in memory and as the operand of the product.
  template <int first, int last>
  RNNKERN_DEVICE void store(int v, int64_t row, const Equations& eq) const {
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      dr()[Tile::smem_offset(Pairs::column(v), g, Pairs::unit(v))] = multiplied<M>(eq.dr[g]);
    }
    store_gradients<Cell, S, first, last>(p, row, here(row), 0, at.unit(v), at.hidden, eq.du, eq.dr);
  }

  // The group's exchange e: multiplies dr of gates first..last-1 by R^T, and sends each block its part of dh.
  template <int first, int last>
  RNNKERN_DEVICE void send(int e) {
    float* to_block = parts(e);
    device::Mbarrier* on = arrived(e);
    device::block_barrier();
    tile.template multiply<first, last>(dr(), at.count(), [&](int unit, int column, const float (&four)[4]) {
      device::Word16 word;
      std::memcpy(&word, four, sizeof word);
      float* to = to_block + (at.rank * Tile::columns + column) * units + unit % units;
      device::store_async(device::map(to, unit / units), word, device::map(on, unit / units));
    });
    ++exchanges;
  }

  RNNKERN_DEVICE void receive_sum(int e, A (&product)[values]) const {
    const int n = at.count();
    receive(arrived(e), e / 2 % 2, bytes(at.g));
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (Pairs::idle(v, n)) continue;
      const float* from = parts(e) + Pairs::column(v) * units + Pairs::unit(v);
      product[v] = 0;
      if (Pairs::column(v) >= n) continue;
      RNNKERN_UNROLL
      for (int r = 0; r < cluster; ++r) product[v] += from[r * Tile::columns * units];
    }
  }

  // Completes the gradients of the state before step k with the last exchange of that step.
  RNNKERN_DEVICE void finish(int k) {
    A product[values];
    receive_sum(products * (k + 1) - 1, product);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (time(k) >= own.length[v]) continue;
      own.carry[v][0] += own.scale[v] * product[v];
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) own.carry[v][s] = own.reset[v] ? A(0) : own.carry[v][s];
    }
  }

  RNNKERN_DEVICE void end() {
    if (at.steps() > 0) finish(at.steps() - 1);
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (!at.real(v)) continue;
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][at.element(v)] = own.carry[v][s];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) p.dparams[i][at.element(v)] += own.dparams[v][i];
    }
  }
};

}  // namespace rnnkern
