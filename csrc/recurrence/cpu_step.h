// One step forward, which the backward takes again where gates were not kept, and the input projection of a chunk of
// steps. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

// The products of a step, R h by the gates of the first and of a second product, and of the input projection.
template <class S, class Cell>
struct StepProducts {
  using T = Arithmetic<S>;
  using V = Vec<T>;
  using F = Factor<S>;

  Product<F> first, second, input;
  T* widened;  // a member's rows of x in T, where products do not take them as they are stored
  T* cells;    // a member's row of c, where it waits for its norm

  template <class Problem>
  StepProducts(const Problem& p, int64_t rows, bool streamed_R, bool streamed_W, Room<T>& room, Member me)
      : first(multiplied<Cell>(p.weights.R), 0, Cell::first_gates, false, streamed_R, room, nullptr, me),
        second(p.weights.R, Cell::first_gates, Cell::gates - Cell::first_gates, false, streamed_R, room, nullptr, me),
        input(p.weights.W, 0, Cell::gates, false, streamed_W, room, nullptr, me),
        widened(widens && p.x ? room.take(rows * p.weights.W.columns, me) : nullptr),
        cells(Cell::normalised ? room.take(p.weights.hidden, me) : nullptr) {}

  static constexpr bool widens = !std::is_same_v<F, S>;

  void pack(Member me) const {
    first.pack(me);
    second.pack(me);
    input.pack(me);
  }

  // u (places of the chunk, G*H) = x W^T + b.
  void project(const S* x, const Share& share, const Chunk& chunk, T* u) const {
    const int64_t inputs = input.matrix.columns, hidden = input.matrix.units;
    if constexpr (widens)
      for (int64_t i = 0; i < chunk.rows(); ++i) widen(x + chunk.at(i).row * inputs, widened + i * inputs, inputs);
    auto operand = [&](int64_t i) -> const F* {
      if constexpr (widens)
        return widened + i * inputs;
      else
        return x + chunk.at(i).row * inputs;
    };
    input.run(share.first_panel(input.panels()), share.last_panel(input.panels()), 0, chunk.rows(), operand,
              [&](int64_t i, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                  V gates[Cell::gates];
                  load_gates(gates, Cell::gates, results + (unit - q.unit) * Cell::gates, V::width, 0, V::all);
                  store_gates(gates, Cell::gates, u + i * Cell::gates * hidden, hidden, unit, lanes);
                });
              });
    share.meet();
  }

  // For a member's sequences up to row1 and its units. factors(b) is h_before(b) as products take it. load_u(u, b,
  // unit, lanes) reads the gates of u, saved_row(b) is where gates are saved, or at least those of the first product
  // until the second, or R h until its norm, old_c(b, unit, lanes) is the c that enters; put(b, unit, lanes, old,
  // next, save) takes the results. Members meet between products, not at the end.
  template <class HBefore, class LoadU, class SavedRow, class OldC, class Put>
  RNNKERN_INLINE void step(const Weights<T>& weights, const Share& share, int64_t row1, const HBefore& h_before,
                           const Entering<F>& factors, const Dropout<T>& dropout, F* operand, LoadU load_u,
                           SavedRow saved_row, OldC old_c, Put put) const {
    const int64_t hidden = weights.hidden;
    if constexpr (Cell::normalised) {
      first.run(share.first_panel(first.panels()), share.last_panel(first.panels()), share.row0, row1, factors,
                [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                  T* const products = saved_row(b) + (Cell::saved - Cell::gates) * hidden;
                  for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                    V r[Cell::gates];
                    load_gates(r, Cell::gates, results + (unit - q.unit) * Cell::gates, V::width, 0, V::all);
                    store_gates(r, Cell::gates, products, hidden, unit, lanes);
                  });
                });
      share.meet();
      return normalised_rows<Cell>(weights, share, row1, cells, h_before, load_u, saved_row, old_c, put);
    }
    if constexpr (Cell::two_products) {
      first.run(share.first_panel(first.panels()), share.last_panel(first.panels()), share.row0, row1, factors,
                [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                  for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                    V u[Cell::gates], r[Cell::gates], save[Cell::saved], old[1], next;
                    load_u(u, b, unit, lanes);
                    load_gates(r, Cell::first_gates, results + (unit - q.unit) * Cell::first_gates, V::width, 0,
                               V::all);
                    old[0] = load(h_before(b) + unit, lanes);
                    for (int i = 0; i < Cell::saved; ++i) save[i] = V(0);
                    Cell::prepare(u, r, old, save, next);
                    store_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
                    store(dropout.apply(next, b, unit, lanes), operand + b * hidden + unit, lanes);
                  });
                });
      share.meet();
    }

    constexpr int from = Cell::two_products ? Cell::first_gates : 0;
    const Product<F>& product = Cell::two_products ? second : first;
    auto finish = [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
      for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V u[Cell::gates], r[Cell::gates], old[Cell::states], next[Cell::states];
        V params[at_least_one(Cell::params)], save[at_least_one(Cell::saved)];
        load_u(u, b, unit, lanes);
        load_gates(r + from, Cell::gates - from, results + (unit - q.unit) * (Cell::gates - from), V::width, 0, V::all);
        for (int i = 0; i < Cell::params; ++i) params[i] = V::load(weights.params[i] + unit, lanes);
        old[0] = Cell::projected ? V(0) : load(h_before(b) + unit, lanes);
        if constexpr (Cell::states > 1) old[1] = h_before.is_reset(b) ? V(0) : old_c(b, unit, lanes);
        if constexpr (Cell::two_products) load_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
        Cell::forward(u, r, old, params, next, save);
        put(b, unit, lanes, old, next, save);
      });
    };
    auto rows_of_operand = [&](int64_t b) -> const F* {
      if constexpr (Cell::two_products)
        return operand + b * hidden;
      else
        return factors(b);
    };
    product.run(share.first_panel(product.panels()), share.last_panel(product.panels()), share.row0, row1,
                rows_of_operand, finish);
  }
};

}  // namespace
}  // namespace rnnkern
