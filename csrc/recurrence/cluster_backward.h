// The cluster kernel, backward: dpre and dh alone, for a range of steps whose gates are there. Each block keeps the
// rows of R of its own units, as the forward does. From dr of its own units it has a part of dh of all units; it sends
// every block the part for that block's units, in float32, and these add up what came in the order of the blocks. What
// is written when, of which two each, taken in turns by the exchanges:
//   dr of own units: a block's warps pass a barrier, when they have read it, before the next dr but one.
//   parts of dh: a block sends those of exchange e + 2 when it has all of e + 1, to which every block has sent its
//     share behind a barrier of its threads, which had then added up those of e.
#pragma once

#include "recurrence/block_backward.h"
#include "recurrence/cluster_tile.h"

namespace rnnkern {

template <class Cell, class M, int D>
struct ClusterBackwardKernel {
  using S = Stored<M>;
  using Problem = ClusterBackward<S>;
  using A = Arithmetic<S>;
  using Tile = typename ClusterTiles<Cell, M, D>::Backward;
  static constexpr int threads = Tile::threads, cluster = Tile::blocks, columns = Tile::columns, units = Tile::units;
  static constexpr int values = (units * columns + threads - 1) / threads;
  using Pairs = ClusterPairs<threads, units>;
  static constexpr int64_t parts_size = int64_t(cluster) * columns * units;
  static constexpr int64_t shared_size = Tile::shared_size + 2 * Tile::x_size * sizeof(S) + 2 * parts_size * 4 + 16;
  // The gates whose gradients the cell's `backward` gives: those of the last product.
  static constexpr int last_first = Cell::two_products ? Cell::first_gates : 0;

  // One exchange after the other: R^T dr of the gates first..last-1.
  struct Exchange {
    Tile tile;
    S* x;          // of two
    float* parts;  // of two, (cluster, columns, units) each
    device::Mbarrier* arrived;
    int rank, n, turn = 0;

    RNNKERN_DEVICE S* dr() const { return x + turn % 2 * Tile::x_size; }
    RNNKERN_DEVICE int bytes() const { return n * D * 4; }

    // `meanwhile` is what a thread does while the parts are on their way.
    template <int first, int last, class F>
    RNNKERN_DEVICE void run(A (&product)[values], F meanwhile) {
      const int half = turn % 2;
      float* received = parts + half * parts_size;
      device::block_barrier();
      tile.template multiply<first, last>(dr(), n, [&](int unit, int column, const float (&four)[4]) {
        device::Word16 word;
        std::memcpy(&word, four, sizeof word);
        float* to = received + (rank * columns + column) * units + unit % units;
        device::store_async(device::map(to, unit / units), word, device::map(arrived + half, unit / units));
      });
      meanwhile();
      device::wait(arrived + half, turn / 2 % 2);
      if (device::thread() == 0) device::expect(arrived + half, bytes());
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (Pairs::idle(v, n)) continue;
        const float* from = received + Pairs::column(v) * units + Pairs::unit(v);
        product[v] = 0;
        if (Pairs::column(v) >= n) continue;
        RNNKERN_UNROLL
        for (int r = 0; r < cluster; ++r) product[v] += from[r * columns * units];
      }
      ++turn;
    }
  };

  // Gradients of gates first..last-1 of one unit, to memory and to the product.
  template <int first, int last>
  RNNKERN_DEVICE static void give(const Problem& p, const A (&du)[Cell::gates], const A (&dr)[Cell::gates], S* x, int v,
                                  int unit, int64_t row, int64_t origin) {
    const int hidden = int(p.sequence.hidden);
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      x[Tile::place(Pairs::column(v), g, Pairs::unit(v))] = multiplied<M>(dr[g]);
      p.du[(row * Cell::gates + g) * hidden + unit] = device::narrow<S>(du[g]);
      if (p.dr) p.dr[((row - origin) * Cell::gates + g) * hidden + unit] = device::narrow<S>(dr[g]);
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
    const int hidden = int(seq.hidden), b0 = device::block() / cluster * int(p.columns);
    const int left = int(seq.batch) - b0, n = left < int(p.columns) ? left : int(p.columns);
    device::Carver carver{device::shared_memory()};
    char* memory = carver.take<char>(Tile::shared_size);
    Exchange exchange;
    exchange.x = carver.take<S>(2 * Tile::x_size);
    exchange.parts = carver.take<float>(2 * parts_size);
    exchange.arrived = carver.take<device::Mbarrier>(2);
    exchange.rank = device::cluster_rank();
    exchange.n = n;
    for (int i = device::thread(); i < 2 * Tile::x_size; i += threads) exchange.x[i] = S{};  // padding counts too
    exchange.tile.load(p.R, hidden, exchange.rank, memory);
    if (device::thread() == 0) {
      for (int k = 0; k < 2; ++k) device::init(exchange.arrived + k, 1);
      device::init_fence();
      for (int k = 0; k < 2; ++k) device::expect(exchange.arrived + k, exchange.bytes());
    }

    const auto unit = [&](int v) { return exchange.rank * units + Pairs::unit(v); };
    const auto sequence = [&](int v) { return b0 + Pairs::column(v); };
    const auto real = [&](int v) { return unit(v) < hidden && Pairs::column(v) < n; };
    int length[values];
    A carry[values][Cell::states], params[values][Cell::params + 1], dparams[values][Cell::params + 1] = {};
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      length[v] = real(v) ? int(seq.length(sequence(v))) : 0;
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) params[v][i] = real(v) ? widen(p.params[i][unit(v)]) : A(0);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        carry[v][s] = real(v) ? p.carry[s][int64_t(sequence(v)) * hidden + unit(v)] : A(0);
      }
    }
    device::cluster_barrier();  // nobody sends before all barriers are there

    const int longest = int(seq.length(b0)), first = int(p.first), end = first + int(p.steps);
    const int last = longest < end ? longest : end, steps = last > first ? last - first : 0;
    const auto at = [&](int k) { return seq.reverse ? first + k : last - 1 - k; };
    const int64_t origin = seq.offset(p.first);
    BackwardInput<Cell, S> input[values] = {};
    const auto fetch = [&](int k) {
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (k >= steps || at(k) >= length[v]) continue;
        const int64_t row = seq.offset(at(k)) + sequence(v);
        input[v].fetch(p, at(k), row, row - origin, sequence(v), 0, unit(v), hidden, length[v]);
      }
    };
    fetch(0);
    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      const int t = at(k);
      A save[values][Cell::saved + 1], old[values][Cell::states], scale[values];
      A du[values][Cell::gates], dr[values][Cell::gates], product[values];
      bool reset[values];
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
          give<last_first, Cell::gates>(p, du[v], dr[v], exchange.dr(), v, unit(v), seq.offset(t) + sequence(v),
                                        origin);
        }
      }
      if constexpr (Cell::two_products) {
        exchange.template run<last_first, Cell::gates>(product, [] {});
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
      exchange.template run<0, Cell::two_products ? Cell::first_gates : Cell::gates>(product, [&] { fetch(k + 1); });
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (t < length[v]) {
          carry[v][0] += scale[v] * product[v];
          RNNKERN_UNROLL
          for (int s = 0; s < Cell::states; ++s) carry[v][s] = reset[v] ? A(0) : carry[v][s];
        }
      }
    }
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (!real(v)) continue;
      const int64_t element = int64_t(sequence(v)) * hidden + unit(v);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][element] = carry[v][s];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) p.dparams[i][element] += dparams[v][i];
    }
    device::cluster_barrier();  // nobody leaves while others may still send
  }
};

}  // namespace rnnkern
