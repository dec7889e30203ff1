// The cluster kernel, backward: dpre and dh alone, for a range of steps whose gates are there. Each block keeps the rows
// of R of its own units, as the forward does. From dr of its own units it has a part of dh of all units; it sends every
// block the part for that block's units, in float32, and these add up what came in the order of the blocks. What is
// written when, of which two each, taken in turns by the exchanges:
//   dr of own units: a block's warps pass a barrier, when they have read it, before the next dr but one.
//   parts of dh: a block sends those of exchange e + 2 when it has all of e + 1, to which every block has sent its share
//     behind a barrier of its threads, which had then added up those of e.
#pragma once

#include "recurrence/block_backward.h"
#include "recurrence/cluster_tile.h"

namespace rnnkern {

template <class Cell, class S, int D>
struct ClusterBackwardKernel {
  using Problem = ClusterBackward<S>;
  using A = Arithmetic<S>;
  using Tile = typename ClusterTiles<Cell, S, D>::Backward;
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

    template <int first, int last>
    RNNKERN_DEVICE void run(A (&product)[values]) {
      const int half = turn % 2;
      float* received = parts + half * parts_size;
      device::block_barrier();
      tile.template multiply<first, last>(dr(), n, [&](int unit, int column, const float (&four)[4]) {
        device::Word16 word;
        std::memcpy(&word, four, sizeof word);
        float* to = received + (rank * columns + column) * units + unit % units;
        device::store_async(device::map(to, unit / units), word, device::map(arrived + half, unit / units));
      });
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
  RNNKERN_DEVICE static void give(const Problem& p, const A (&du)[Cell::gates], const A (&dr)[Cell::gates], S* x,
                                  int column, int own, int unit, int64_t row, int64_t here) {
    const int hidden = int(p.sequence.hidden);
    RNNKERN_UNROLL
    for (int g = first; g < last; ++g) {
      const S rounded = device::narrow<S>(dr[g]);
      x[Tile::place(column, g, own)] = rounded;
      p.du[(row * Cell::gates + g) * hidden + unit] = device::narrow<S>(du[g]);
      if (p.dr) p.dr[(here * Cell::gates + g) * hidden + unit] = rounded;
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
    for (int i = device::thread(); i < 2 * Tile::x_size; i += threads) exchange.x[i] = S{};  // padding is multiplied too
    exchange.tile.load(p.R, hidden, exchange.rank, memory);
    if (device::thread() == 0) {
      for (int k = 0; k < 2; ++k) device::init(exchange.arrived + k, 1);
      device::init_fence();
      for (int k = 0; k < 2; ++k) device::expect(exchange.arrived + k, exchange.bytes());
    }

    int b[values], length[values], unit[values];
    bool real[values];
    A carry[values][Cell::states], params[values][Cell::params + 1], dparams[values][Cell::params + 1] = {};
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      unit[v] = exchange.rank * units + Pairs::unit(v);
      b[v] = b0 + Pairs::column(v);
      real[v] = unit[v] < hidden && Pairs::column(v) < n;
      length[v] = real[v] ? int(seq.length(b[v])) : 0;
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) params[v][i] = real[v] ? widen(p.params[i][unit[v]]) : A(0);
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) {
        carry[v][s] = real[v] ? p.carry[s][int64_t(b[v]) * hidden + unit[v]] : A(0);
      }
    }
    device::cluster_barrier();  // nobody sends before all barriers are there

    const int longest = int(seq.length(b0)), first = int(p.first), end = first + int(p.steps);
    const int last = longest < end ? longest : end, steps = last > first ? last - first : 0;
    const auto at = [&](int k) { return seq.reverse ? first + k : last - 1 - k; };
    const int64_t origin = seq.offset(p.first);
    // As in the block kernel: rows are known so early that no load waits for another.
    const auto offset = [&](int k) { return at(k) >= 0 && at(k) < seq.count ? seq.offset(at(k)) : 0; };
    int64_t row = offset(0), ahead = offset(1), later = offset(2);
    BackwardInput<Cell, S> input[values] = {};
    const auto fetch = [&](int v, int k, int64_t row, int64_t after) {
      if (k >= steps || at(k) >= length[v]) return;
      const int before = at(k + 1);
      input[v].fetch_after(p, before >= 0 && before < length[v] ? after + b[v] : -1, at(k), row + b[v],
                           row + b[v] - origin, b[v], 0, unit[v], hidden);
    };
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) fetch(v, 0, row, ahead);
    RNNKERN_ROLLED
    for (int k = 0; k < steps; ++k) {
      const int t = at(k);
      const int64_t latest = offset(k + 3);
      A save[values][Cell::saved + 1], old[values][Cell::states], grad[values][Cell::states], scale[values];
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
        RNNKERN_UNROLL
        for (int s = 0; s < Cell::states; ++s) grad[v][s] = carry[v][s];
        grad[v][0] += widen(input[v].grad_h);
        fetch(v, k + 1, ahead, later);
        if (t < length[v]) {
          Cell::backward(save[v], old[v], next, params[v], grad[v], du[v], dr[v], dparams[v]);
          give<last_first, Cell::gates>(p, du[v], dr[v], exchange.dr(), Pairs::column(v), Pairs::unit(v), unit[v],
                                        row + b[v], row + b[v] - origin);
        }
      }
      exchange.template run<last_first, Cell::gates>(product);
      if constexpr (Cell::two_products) {
        RNNKERN_UNROLL
        for (int v = 0; v < values; ++v) {
          if (t < length[v]) {
            A operand;
            Cell::prepare_backward(save[v], old[v], scale[v] * product[v], grad[v], du[v], dr[v], operand);
            p.operand[(row + b[v] - origin) * hidden + unit[v]] = device::narrow<S>(operand);
            give<0, Cell::first_gates>(p, du[v], dr[v], exchange.dr(), Pairs::column(v), Pairs::unit(v), unit[v],
                                       row + b[v], row + b[v] - origin);
          }
        }
        exchange.template run<0, Cell::first_gates>(product);
      }
      RNNKERN_UNROLL
      for (int v = 0; v < values; ++v) {
        if (t < length[v]) {
          grad[v][0] += scale[v] * product[v];
          RNNKERN_UNROLL
          for (int s = 0; s < Cell::states; ++s) carry[v][s] = reset[v] ? A(0) : grad[v][s];
        }
      }
      row = ahead;
      ahead = later;
      later = latest;
    }
    RNNKERN_UNROLL
    for (int v = 0; v < values; ++v) {
      if (!real[v]) continue;
      const int64_t element = int64_t(b[v]) * hidden + unit[v];
      RNNKERN_UNROLL
      for (int s = 0; s < Cell::states; ++s) p.carry[s][element] = carry[v][s];
      RNNKERN_UNROLL
      for (int i = 0; i < Cell::params; ++i) p.dparams[i][element] += dparams[v][i];
    }
    device::cluster_barrier();  // nobody leaves while others may still send
  }
};

}  // namespace rnnkern
