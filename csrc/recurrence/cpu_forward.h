// The recurrence over time, forward. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

template <class S, class Cell>
void forward(const Forward<S>& p, Member me) {
  using T = Arithmetic<S>;
  using V = Vec<T>;
  const int64_t hidden = p.weights.hidden, state_size = p.steps.batch * hidden;
  Product<T> first(p.weights, 0, Cell::first_gates, false, me.size, p.packed, p.zeros);
  Product<T> second(p.weights, Cell::first_gates, Cell::gates - Cell::first_gates, false, me.size, first.end(),
                    p.zeros);
  pack(first, p.weights, Cell::gates, me);
  if constexpr (Cell::two_products) pack(second, p.weights, Cell::gates, me);
  const Share share(p.steps, p.split_hidden, me);
  const int64_t from_row = share.copy0 * hidden, elements = (share.copy1 - share.copy0) * hidden;
  for (int s = 0; s < Cell::states; ++s) copy(p.final_state[s] + from_row, p.state[s] + from_row, elements);
  for (int half = 0; narrow<S> && half < 2; ++half)
    copy(p.carried + half * state_size + from_row, p.state[0] + from_row, elements);
  me.meet();

  for (int64_t k = 0; k < p.steps.count; ++k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
    // Steps read one half of what is carried and write the other.
    T* const carried_next = narrow<S> ? p.carried + ((k + 1) & 1) * state_size : nullptr;
    const Entering<T> h_before = [&] {
      if constexpr (narrow<S>)
        return Entering<T>(p.steps, p.carried + (k & 1) * state_size, p.zeros, p.reset, hidden, t);
      else
        return Entering<T>(p.steps, p.state[0], p.h, p.zeros, p.reset, hidden, t);
    }();
    auto saved_row = [&](int64_t b) { return p.saved + ((p.keep_saved ? row : 0) + b) * Cell::saved * hidden; };

    if constexpr (Cell::two_products) {
      first.run(share.first_panel(first.panels()), share.last_panel(first.panels()), share.row0, row1, h_before,
                [&](int64_t b, const Panel<T>& q, const T* results) {
                  for (int v = 0; v < q.vectors; ++v) {
                    const int64_t unit = q.unit + v * V::width, lanes = q.units - v * V::width;
                    V u[Cell::gates], r[Cell::gates], save[Cell::saved], old[1], operand;
                    load_gates(u, Cell::gates, p.u + (row + b) * Cell::gates * hidden, hidden, unit, lanes);
                    load_gates(r, Cell::first_gates, results + v * Cell::first_gates * V::width, V::width, 0, V::width);
                    old[0] = V::load(h_before(b) + unit, lanes);
                    for (int i = 0; i < Cell::saved; ++i) save[i] = V(0);
                    Cell::prepare(u, r, old, save, operand);
                    store_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
                    operand.store(p.operand + b * hidden + unit, lanes);
                  }
                });
      share.meet();
    }

    constexpr int from = Cell::two_products ? Cell::first_gates : 0;
    Product<T>& product = Cell::two_products ? second : first;
    auto finish = [&](int64_t b, const Panel<T>& q, const T* results) {
      for (int v = 0; v < q.vectors; ++v) {
        const int64_t unit = q.unit + v * V::width, lanes = q.units - v * V::width;
        V u[Cell::gates], r[Cell::gates], old[Cell::states], next[Cell::states];
        V params[at_least_one(Cell::params)], save[at_least_one(Cell::saved)];
        load_gates(u, Cell::gates, p.u + (row + b) * Cell::gates * hidden, hidden, unit, lanes);
        load_gates(r + from, Cell::gates - from, results + v * (Cell::gates - from) * V::width, V::width, 0, V::width);
        for (int i = 0; i < Cell::params; ++i) params[i] = V::load(p.weights.params[i] + unit, lanes);
        old[0] = V::load(h_before(b) + unit, lanes);
        if constexpr (Cell::states > 1)
          old[1] = h_before.is_reset(b) ? V(0) : V::load(p.final_state[1] + b * hidden + unit, lanes);
        if constexpr (Cell::two_products) load_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
        Cell::forward(u, r, old, params, next, save);
        store(next[0], p.h + (row + b) * hidden + unit, lanes);
        if constexpr (narrow<S>) next[0].store(carried_next + b * hidden + unit, lanes);
        if constexpr (Cell::states > 1) {
          next[1].store(p.final_state[1] + b * hidden + unit, lanes);
          if (p.cell_states) next[1].store(p.cell_states + (row + b) * hidden + unit, lanes);
        }
        if (Cell::saved && p.keep_saved) store_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
      }
    };
    auto operand = [&](int64_t b) {
      if constexpr (Cell::two_products) return (const T*)p.operand + b * hidden;
      return h_before(b);
    };
    product.run(share.first_panel(product.panels()), share.last_panel(product.panels()), share.row0, row1, operand,
                finish);
    share.meet();
  }

  // h after each sequence's own last step, in processing order; a sequence without steps keeps its initial state.
  for (int64_t b = share.copy0; b < share.copy1; ++b) {
    if (p.steps.count == 0 || b >= p.steps.rows(0)) continue;
    int64_t t = 0;
    if (!p.steps.reverse)
      for (t = p.steps.count - 1; p.steps.rows(t) <= b;) --t;
    const T* last;
    if constexpr (narrow<S>)
      last = p.carried + ((p.steps.at(t) + 1) & 1) * state_size + b * hidden;
    else
      last = p.h + (p.steps.offset(t) + b) * hidden;
    copy(p.final_state[0] + b * hidden, last, hidden);
  }
}

}  // namespace
}  // namespace rnnkern
