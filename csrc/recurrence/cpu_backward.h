// The recurrence over time, backward. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

template <class S, class Cell>
void backward(const Backward<S>& p, Member me) {
  using T = Arithmetic<S>;
  using V = Vec<T>;
  const int64_t hidden = p.weights.hidden, columns = Cell::gates * hidden;
  Product<T> first(p.weights, 0, Cell::first_gates, true, me.size, p.packed, p.zeros);
  Product<T> second(p.weights, Cell::first_gates, Cell::gates - Cell::first_gates, true, me.size, first.end(), p.zeros);
  pack(first, p.weights, Cell::gates, me);
  if constexpr (Cell::two_products) pack(second, p.weights, Cell::gates, me);
  const Share share(p.steps, p.split_hidden, me);
  const int64_t from = share.copy0 * hidden, elements = (share.copy1 - share.copy0) * hidden;
  for (int s = 0; s < Cell::states; ++s) {
    if (p.grad_state[s]) {
      copy(p.dstate[s] + from, p.grad_state[s] + from, elements);
    } else {
      clear(p.dstate[s] + from, elements);
    }
  }
  for (int i = 0; i < Cell::params; ++i) clear(p.dparams[i] + from, elements);
  const int64_t R_rows = Cell::gates * hidden, padded = padded_columns<T>(hidden, p.weights.heads);
  const int parts = p.split_hidden ? 1 : me.size;  // of dR: every member fills its own, or its units' rows of the one
  T* const part = p.dR_parts + (p.split_hidden ? 0 : me.rank * R_rows * padded);
  if (p.dR) {
    const int64_t begin = p.split_hidden ? R_rows * me.rank / me.size : 0;
    const int64_t end = p.split_hidden ? R_rows * (me.rank + 1) / me.size : R_rows;
    clear(part + begin * padded, (end - begin) * padded);
  }
  me.meet();

  T* const step_bias = p.dbias ? p.dbias + me.rank * 2 * columns : nullptr;
  const int64_t panel0 = share.first_panel(first.panels()), panel1 = share.last_panel(first.panels());
  const int64_t unit0 = first.first_unit(panel0), unit1 = first.first_unit(panel1);
  WeightGradient<T, S> first_dR(p.weights, Cell::gates, 0, Cell::first_gates, unit0, unit1, part);
  WeightGradient<T, T> second_dR(p.weights, Cell::gates, Cell::first_gates, Cell::gates - Cell::first_gates, unit0,
                                 unit1, part);
  for (int64_t k = p.steps.count - 1; k >= 0; --k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
    // The first of the rows in what is kept of dr and of operands.
    const int64_t slot = narrow<S> ? k % p.slots : 0, kept = narrow<S> ? slot * p.steps.batch : row;
    const Entering<S> h_before(p.steps, p.h0, p.h, reinterpret_cast<const S*>(p.zeros), p.reset, hidden, t);
    const Entering<T> c_before = Cell::states > 1
                                     ? Entering<T>(p.steps, p.c0, p.cell_states, p.zeros, p.reset, hidden, t)
                                     : Entering<T>(p.steps, nullptr, p.zeros, p.reset, hidden, t);
    auto dr_row = [&](int64_t b) { return p.dr + (kept + b) * columns; };
    auto store_gradients = [&](const V* du, const V* dr, int gates, int64_t b, int64_t unit, int64_t lanes) {
      store_gates(dr, gates, dr_row(b), hidden, unit, lanes);
      if (narrow<S> || !Cell::joint) store_gates(du, gates, p.du + (row + b) * columns, hidden, unit, lanes);
    };
    auto scale = [&](int64_t b) { return V(p.grad_scale ? p.grad_scale[t * p.scale_step + b * p.scale_row] : T(1)); };

    for (int64_t b = share.row0; b < row1; ++b) {
      const int64_t at = (row + b) * hidden;
      const S* const before = h_before(b);
      const T* const cells_before = Cell::states > 1 ? c_before(b) : nullptr;
      for (int64_t unit = unit0; unit < unit1; unit += V::width) {
        const int64_t lanes = unit1 - unit, here = b * hidden + unit;
        V save[at_least_one(Cell::saved)], params[at_least_one(Cell::params)], dparams[at_least_one(Cell::params)];
        V old[Cell::states], next[Cell::states], grad[Cell::states], du[Cell::gates], dr[Cell::gates];
        load_gates(save, Cell::saved, p.saved + at * Cell::saved, hidden, unit, lanes);
        for (int i = 0; i < Cell::params; ++i) {
          params[i] = V::load(p.weights.params[i] + unit, lanes);
          dparams[i] = V::load(p.dparams[i] + here, lanes);
        }
        old[0] = load(before + unit, lanes);
        next[0] = load(p.h + at + unit, lanes);
        if constexpr (Cell::states > 1) {
          old[1] = V::load(cells_before + unit, lanes);
          next[1] = V::load(p.cell_states + at + unit, lanes);
        }
        for (int s = 0; s < Cell::states; ++s) grad[s] = V::load(p.dstate[s] + here, lanes);
        if (p.grad_h) grad[0] = grad[0] + load(p.grad_h + at + unit, lanes);
        for (int g = 0; g < Cell::gates; ++g) du[g] = dr[g] = V(0);
        Cell::backward(save, old, next, params, grad, du, dr, dparams);
        for (int s = 0; s < Cell::states; ++s) (h_before.is_reset(b) ? V(0) : grad[s]).store(p.dstate[s] + here, lanes);
        for (int i = 0; i < Cell::params; ++i) dparams[i].store(p.dparams[i] + here, lanes);
        store_gradients(du, dr, Cell::gates, b, unit, lanes);
        if (step_bias)
          add_gates(dr, Cell::two_products ? Cell::first_gates : 0, Cell::gates, step_bias, hidden, unit, lanes);
      }
    }
    share.meet();

    if constexpr (Cell::two_products) {
      second.run(panel0, panel1, share.row0, row1, dr_row, [&](int64_t b, const Panel<T>& q, const T* results) {
        const int64_t at = (row + b) * hidden;
        for (int v = 0; v < q.vectors; ++v) {
          const int64_t unit = q.unit + v * V::width, lanes = q.units - v * V::width, here = b * hidden + unit;
          V save[Cell::saved], old[1], grad[1], du[Cell::gates], dr[Cell::gates], operand;
          load_gates(save, Cell::saved, p.saved + at * Cell::saved, hidden, unit, lanes);
          load_gates(dr, Cell::gates, dr_row(b), hidden, unit, lanes);
          load_gates(du, Cell::gates, p.du + (row + b) * columns, hidden, unit, lanes);
          old[0] = load(h_before(b) + unit, lanes);
          grad[0] = V::load(p.dstate[0] + here, lanes);
          const V doperand = scale(b) * V::load(results + v * V::width);
          Cell::prepare_backward(save, old, doperand, grad, du, dr, operand);
          if (!h_before.is_reset(b)) grad[0].store(p.dstate[0] + here, lanes);
          // Other members read the later gates' dr until they meet: only the earlier gates are written.
          store_gradients(du, dr, Cell::first_gates, b, unit, lanes);
          if (step_bias) add_gates(dr, 0, Cell::first_gates, step_bias, hidden, unit, lanes);
          if (p.dR) operand.store(p.operand + (kept + b) * hidden + unit, lanes);
        }
      });
      share.meet();
    }
    if (step_bias)
      for (int g = 0; g < Cell::gates; ++g)
        fold(step_bias, step_bias + columns, g * hidden + unit0, g * hidden + unit1);
    first.run(panel0, panel1, share.row0, row1, dr_row, [&](int64_t b, const Panel<T>& q, const T* results) {
      if (h_before.is_reset(b)) return;
      for (int v = 0; v < q.vectors; ++v) {
        const int64_t unit = q.unit + v * V::width, lanes = q.units - v * V::width;
        T* dh = p.dstate[0] + b * hidden + unit;
        (V::load(dh, lanes) + scale(b) * V::load(results + v * V::width)).store(dh, lanes);
      }
    });
    if (!p.dR) continue;
    for (int64_t b = share.row0; b < row1; ++b) {
      first_dR.add(dr_row(b), h_before(b));
      if constexpr (Cell::two_products) second_dR.add(dr_row(b), p.operand + (kept + b) * hidden);
    }
    if (narrow<S> && slot == 0) {  // the next step's rows take the place of those that wait
      first_dR.flush();
      if constexpr (Cell::two_products) second_dR.flush();
    }
  }
  if (!p.dR) return;
  first_dR.flush();
  if constexpr (Cell::two_products) second_dR.flush();
  me.meet();
  add_up(p.dR_parts, parts, R_rows, hidden / p.weights.heads, padded, R_rows * me.rank / me.size,
         R_rows * (me.rank + 1) / me.size, p.dR);
}

}  // namespace
}  // namespace rnnkern
