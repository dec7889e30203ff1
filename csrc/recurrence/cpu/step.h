// One forward step, which the backward repeats where gates were not saved, and the input projection of a chunk of
// steps. kernels.h includes this file once per SIMD level.
#pragma once

#include "recurrence/cpu/noise.h"
#include "recurrence/cpu/product.h"
#include "recurrence/cpu/sequence.h"

namespace rnnkern {
namespace {

// A cell that is called through its strip functions.
template <class T>
struct StripCell : CellNumbers, Strips<T> {};

// The cell of a problem; one with inlined equations is empty.
template <class Cell, class Problem>
Cell cell_of(const Problem& p) {
  if constexpr (std::is_empty_v<Cell>)
    return {};
  else
    return {p.cell, p.strips};
}

// The units that a thread computes: those of its panels, or a share of all units where there is no product.
template <class F>
Units units_of(const Product<F>& product, const WorkRange& share, int64_t hidden) {
  const int64_t panels = product.panels();
  if (panels) return {product.first_unit(share.first_panel(panels)), product.first_unit(share.last_panel(panels))};
  if (!share.split_hidden) return {0, hidden};
  return {hidden * share.me.rank / share.me.size, hidden * (share.me.rank + 1) / share.me.size};
}

// Whether products that multiply factors of type F cannot read rows as they are stored.
template <class F, class T>
bool must_widen(Rows<T> rows) {
  return !has_bf16_dot<F> && rows && rows.narrow();
}

// The GEMMs of a step: R h for the gates of the first product, of the second product, and the input projection.
template <class F>
struct StepProducts {
  using T = Arithmetic<F>;
  using V = Vec<T>;

  const CellNumbers cell;
  Product<F> first, second, input;
  T* wide_x;       // per thread: rows of x converted to T, where products cannot read them as stored
  T* operand_row;  // per thread: a row of the second product's operand in T, before conversion
  T* norms;        // per thread: workspace for the norms of a row
  T* products;     // rows: R h for the norms, where it is not saved

  template <class Problem>
  StepProducts(const Problem& p, int64_t rows, bool streamed_R, bool streamed_W, bool saves, Workspace<T>& workspace,
               ThreadContext me)
      : cell(p.cell),
        first(p.weights.R, 0, cell.first_gates, false, streamed_R, workspace, nullptr, me, p.parts, p.steps.batch),
        second(p.weights.R, cell.first_gates, cell.recurrent - cell.first_gates, false, streamed_R, workspace, nullptr,
               me, p.parts, p.steps.batch),
        input(p.weights.W, 0, cell.gates, false, streamed_W, workspace, nullptr, me, p.parts, rows),
        wide_x(must_widen<F>(p.x) ? workspace.alloc(rows * p.weights.W.columns, me) : nullptr),
        operand_row(has_bf16_dot<F> && cell.two_products() ? workspace.alloc(p.weights.hidden, me) : nullptr),
        norms(cell.normalised ? workspace.alloc(cell.norm_rows * p.weights.hidden, me) : nullptr),
        products(cell.normalised && (cell.r_slot < 0 || !saves)
                     ? workspace.alloc(p.steps.batch * cell.second_gates() * p.weights.hidden)
                     : nullptr) {}

  void pack(ThreadContext me) const {
    first.pack(me);
    second.pack(me);
    input.pack(me);
  }

  // The projected input of a chunk is (rows, G*H). Products in tiles are so fast that writing it in pieces would take
  // long, so theirs is (vectors of units, rows, gates, lanes), except with heads, which may begin within a vector.
  bool u_by_vectors() const { return input.parts && first.matrix.heads == 1 && cell.recurrent > 0; }
  int64_t u_size() const { return cell.gates * padded<T>(input.matrix.units); }  // of a row

  // A row of u, (gates, H), where it is, or in `workspace` for the units of the strip: of the projected input of a
  // chunk with `rows` rows the row `index`, or `row` of the u that was given.
  template <class Problem>
  RNNKERN_INLINE const T* u_of(const Problem& p, const T* projected, int64_t rows, int64_t index, int64_t row,
                               const ForwardStrip<T>& strip, T* workspace) const {
    const int64_t hidden = p.weights.hidden;
    const int gates = cell.gates;
    if (!p.x) return widened(p.u.from(row * gates * hidden), gates, hidden, strip, workspace);
    if (!u_by_vectors()) return projected + index * gates * hidden;
    for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      const T* const from = projected + (unit * rows + index * V::width) * gates;
      for (int g = 0; g < gates; ++g) V::load(from + g * V::width).store(workspace + g * hidden + unit, lanes);
    });
    return workspace;
  }

  // u = x W^T + b for the rows of a chunk.
  void project(Rows<T> x, const WorkRange& share, const Chunk& chunk, int64_t rows, T* u) const {
    const int64_t inputs = input.matrix.columns, hidden = input.matrix.units;
    const int gates = cell.gates;
    auto row_of_x = [&](int64_t i) { return x.from(chunk.at(i).row * inputs); };
    for (int64_t i = 0; wide_x && i < chunk.rows(); ++i) widen(row_of_x(i), inputs, wide_x + i * inputs);
    auto operand = [&](int64_t i) -> const F* {
      return wide_x ? reinterpret_cast<const F*>(wide_x + i * inputs) : row_of_x(i).template as<F>();
    };
    input.run(share.first_panel(input.panels()), share.last_panel(input.panels()), 0, chunk.rows(), operand,
              [&](int64_t i, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                if (u_by_vectors()) {
                  for (int64_t v = 0; v < q.vectors; ++v) {
                    T* const to = u + ((q.unit + v * V::width) * rows + i * V::width) * gates;
                    for (int g = 0; g < gates; ++g)
                      V::load(results + (v * gates + g) * V::width).store(to + g * V::width);
                  }
                  return;
                }
                T* const row = u + i * gates * hidden;
                for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                  const T* const from = results + (unit - q.unit) * gates;
                  for (int g = 0; g < gates; ++g) V::load(from + g * V::width).store(row + g * hidden + unit, lanes);
                });
              });
    share.barrier();
  }

  // One step for a thread's sequences up to row1 and its units. factors(b) returns the previous h in the form that
  // products read. saved_row(b) returns where gates are saved, or null; a cell with two products needs it between them,
  // and one with norms between these. fill(strip, b) sets u and the old and new state; done(strip, b) takes the
  // results. Threads wait for each other between products, but not at the end.
  template <class Cell, class SavedRow, class Fill, class Done>
  RNNKERN_INLINE void step(const Cell& equations, const Weights<T>& weights, const WorkRange& share, int64_t row1,
                           const PreviousState<T>& factors, const Dropout<T>& dropout, F* operand, SavedRow saved_row,
                           Fill fill, Done done) const {
    const int64_t hidden = weights.hidden;
    auto strip_of = [&](Units units, int64_t b) RNNKERN_INLINE_LAMBDA {
      ForwardStrip<T> strip;
      strip.begin = units.begin, strip.end = units.end, strip.hidden = hidden;
      for (int i = 0; i < equations.params; ++i) strip.params[i] = weights.params[i];
      fill(strip, b);
      strip.saved = saved_row(b);
      return strip;
    };
    auto set_products = [&](ForwardStrip<T>& strip, const T* results, int gates) RNNKERN_INLINE_LAMBDA {
      strip.r = results, strip.lanes = strip.r_gate = V::width, strip.r_vector = gates * V::width;
    };
    auto rows_of_h = [&](int64_t b) { return factors(b).template as<F>(); };
    if (equations.two_products()) {
      first.run(share.first_panel(first.panels()), share.last_panel(first.panels()), share.row0, row1, rows_of_h,
                [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                  ForwardStrip<T> strip = strip_of({q.unit, q.unit + q.units}, b);
                  set_products(strip, results, equations.first_gates);
                  F* const to = operand + b * hidden;
                  strip.operand = in_arithmetic(to, operand_row);
                  equations.prepare(strip);
                  if (dropout.on() || has_bf16_dot<F>)
                    for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                      const V x = V::load(strip.operand + unit, lanes);
                      store(dropout.apply(x, b, unit, lanes), to + unit, lanes);
                    });
                });
      share.barrier();
    }
    const Product<F>& product = equations.two_products() ? second : first;
    auto rows_of_operand = [&](int64_t b) -> const F* {
      return equations.two_products() ? operand + b * hidden : rows_of_h(b);
    };
    auto multiply = [&](auto finish) RNNKERN_INLINE_LAMBDA {
      product.run(share.first_panel(product.panels()), share.last_panel(product.panels()), share.row0, row1,
                  rows_of_operand, finish);
    };
    if (equations.normalised) {
      const int gates = cell.second_gates();
      auto products_of = [&](int64_t b) {
        return products ? products + b * gates * hidden : saved_row(b) + cell.r_slot * hidden;
      };
      if (gates > 0)
        multiply([&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
          for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            const T* const from = results + (unit - q.unit) * gates;
            for (int g = 0; g < gates; ++g)
              V::load(from + g * V::width).store(products_of(b) + g * hidden + unit, lanes);
          });
        });
      share.barrier();
      for (int64_t b = share.copy0; b < smaller(share.copy1, row1); ++b) {
        ForwardStrip<T> strip = strip_of({0, hidden}, b);
        strip.r = products_of(b);
        strip.workspace = norms;
        equations.forward(strip);
        done(strip, b);
      }
      return;
    }
    auto rest = [&](Units units, int64_t b, const T* results) RNNKERN_INLINE_LAMBDA {
      ForwardStrip<T> strip = strip_of(units, b);
      set_products(strip, results, equations.recurrent - (equations.two_products() ? equations.first_gates : 0));
      equations.forward(strip);
      done(strip, b);
    };
    if (equations.recurrent == 0) {
      const Units units = units_of(first, share, hidden);
      for (int64_t b = share.row0; b < row1; ++b) rest(units, b, nullptr);
      return;
    }
    multiply([&](int64_t b, const Panel<T>& q, const T* results)
                 RNNKERN_INLINE_LAMBDA { rest({q.unit, q.unit + q.units}, b, results); });
  }
};

}  // namespace
}  // namespace rnnkern
