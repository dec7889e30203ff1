// The recurrence over time for one SIMD level: forward and backward of every cell. Included once per level file, which
// says the vector's width; a thread runs the whole sequence and meets its team at barriers only when hidden units are
// shared out.
#pragma once

#include "common/simd.h"

#include "cells/list.h"
#include "recurrence/cpu_product.h"
#include "recurrence/cpu_weight_gradient.h"

namespace rnnkern {
namespace {

// What a member of the team works on: panels of a product (all of them, or its share) and sequences (its share, or
// all).
struct Share {
  int64_t row0, row1;    // sequences it computes
  int64_t copy0, copy1;  // sequences whose states it copies in and out
  bool split_hidden;
  Member me;

  Share(const Steps& steps, bool split_hidden, Member me) : split_hidden(split_hidden), me(me) {
    copy0 = split_hidden ? steps.batch * me.rank / me.size : boundary(steps, me.rank, me.size);
    copy1 = split_hidden ? steps.batch * (me.rank + 1) / me.size : boundary(steps, me.rank + 1, me.size);
    row0 = split_hidden ? 0 : copy0;
    row1 = split_hidden ? steps.batch : copy1;
  }

  // The first sequence of a member, such that all have as many steps to do: sequences are sorted, longest first.
  static int64_t boundary(const Steps& steps, int rank, int size) {
    if (rank == size || !steps.batch_sizes) return steps.batch * rank / size;
    int64_t low = 0, high = steps.batch;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      int64_t work = 0;
      for (int64_t t = 0; t < steps.count; ++t) work += smaller(steps.rows(t), middle);
      if (work * size < steps.total() * rank) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  int64_t first_panel(int64_t panels) const { return split_hidden ? panels * me.rank / me.size : 0; }
  int64_t last_panel(int64_t panels) const { return split_hidden ? panels * (me.rank + 1) / me.size : panels; }

  // Everybody's results of a product are needed by everybody.
  void meet() const {
    if (split_hidden) me.meet();
  }
};

// With nothing to copy the pointers may be null, which the library's functions do not take.
template <class T>
void copy(T* to, const T* from, int64_t elements) {
  if (elements > 0) std::memcpy(to, from, sizeof(T) * elements);
}

template <class T>
void clear(T* to, int64_t elements) {
  if (elements > 0) std::memset(to, 0, sizeof(T) * elements);
}

template <class T>
void pack(Product<T>& product, const Weights<T>& weights, int gates, Member me) {
  const int64_t panels = product.panels();
  product.pack(weights, gates, panels * me.rank / me.size, panels * (me.rank + 1) / me.size);
}

// The state of one sequence as it enters step t: from the step before, the initial state, or zeros after a reset.
template <class T>
struct Entering {
  const Steps& steps;
  const T* initial;   // (B, H)
  const T* sequence;  // (rows, H)
  const T* zeros;
  const bool* reset;
  int64_t hidden, t, rows_before;
  const T* before;

  RNNKERN_INLINE Entering(const Steps& steps, const T* initial, const T* sequence, const T* zeros, const bool* reset,
                          int64_t hidden, int64_t t)
      : steps(steps), initial(initial), sequence(sequence), zeros(zeros), reset(reset), hidden(hidden), t(t) {
    const int64_t tb = steps.before(t);
    const bool first = tb < 0 || tb >= steps.count;
    rows_before = first ? 0 : steps.rows(tb);
    before = first ? initial : sequence + steps.offset(tb) * hidden;
  }

  RNNKERN_INLINE bool is_reset(int64_t b) const { return reset && reset[t * steps.batch + b]; }
  RNNKERN_INLINE const T* operator()(int64_t b) const {
    if (is_reset(b)) return zeros;
    return (b < rows_before ? before : initial) + b * hidden;
  }
};

template <class V, class T>
RNNKERN_INLINE void load_gates(V* v, int count, const T* row, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = 0; g < count; ++g) v[g] = V::load(row + g * hidden + unit, lanes);
}

template <class V, class T>
RNNKERN_INLINE void store_gates(const V* v, int count, T* row, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = 0; g < count; ++g) v[g].store(row + g * hidden + unit, lanes);
}

constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

// Adds to the gradient of the bias. Steps are summed one by one and then up: errors grow with B + T, not with B T.
template <class V, class T>
RNNKERN_INLINE void add_gates(const V* v, int first, int last, T* sums, int64_t hidden, int64_t unit, int64_t lanes) {
  for (int g = first; g < last; ++g) {
    T* sum = sums + g * hidden + unit;
    (V::load(sum, lanes) + v[g]).store(sum, lanes);
  }
}

template <class T>
void fold(T* step, T* total, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    total[i] += step[i];
    step[i] = 0;
  }
}

template <class T, class Cell>
void forward(const Forward<T>& p, Member me) {
  using V = Vec<T>;
  const int64_t hidden = p.weights.hidden;
  Product<T> first(p.weights, 0, Cell::first_gates, false, me.size, p.packed, p.zeros);
  Product<T> second(p.weights, Cell::first_gates, Cell::gates - Cell::first_gates, false, me.size, first.end(),
                    p.zeros);
  pack(first, p.weights, Cell::gates, me);
  if constexpr (Cell::two_products) pack(second, p.weights, Cell::gates, me);
  const Share share(p.steps, p.split_hidden, me);
  for (int s = 0; s < Cell::states; ++s)
    copy(p.final_state[s] + share.copy0 * hidden, p.state[s] + share.copy0 * hidden,
         (share.copy1 - share.copy0) * hidden);
  me.meet();

  for (int64_t k = 0; k < p.steps.count; ++k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
    const Entering<T> h_before(p.steps, p.state[0], p.h, p.zeros, p.reset, hidden, t);
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
        next[0].store(p.h + (row + b) * hidden + unit, lanes);
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

  // h of each sequence's own last step, in processing order; a sequence without steps keeps its initial state.
  for (int64_t b = share.copy0; b < share.copy1; ++b) {
    if (p.steps.count == 0 || b >= p.steps.rows(0)) continue;
    int64_t t = 0;
    if (!p.steps.reverse)
      for (t = p.steps.count - 1; p.steps.rows(t) <= b;) --t;
    copy(p.final_state[0] + b * hidden, p.h + (p.steps.offset(t) + b) * hidden, hidden);
  }
}

template <class T, class Cell>
void backward(const Backward<T>& p, Member me) {
  using V = Vec<T>;
  constexpr int last = Cell::states - 1;  // c's place, or h's where there is no c
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
  WeightGradient<T> first_dR(p.weights, Cell::gates, 0, Cell::first_gates, unit0, unit1, part);
  WeightGradient<T> second_dR(p.weights, Cell::gates, Cell::first_gates, Cell::gates - Cell::first_gates, unit0, unit1,
                              part);
  for (int64_t k = p.steps.count - 1; k >= 0; --k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
    const Entering<T> h_before(p.steps, p.state[0], p.h, p.zeros, p.reset, hidden, t);
    const Entering<T> c_before(p.steps, p.state[last], last ? p.cell_states : p.h, p.zeros, p.reset, hidden, t);
    auto scale = [&](int64_t b) { return V(p.grad_scale ? p.grad_scale[t * p.scale_step + b * p.scale_row] : T(1)); };

    for (int64_t b = share.row0; b < row1; ++b) {
      const int64_t at = (row + b) * hidden;
      const T* before[] = {h_before(b), c_before(b)};
      const T* after[] = {p.h + at, (last ? p.cell_states : p.h) + at};
      for (int64_t unit = unit0; unit < unit1; unit += V::width) {
        const int64_t lanes = unit1 - unit, here = b * hidden + unit;
        V save[at_least_one(Cell::saved)], params[at_least_one(Cell::params)], dparams[at_least_one(Cell::params)];
        V old[Cell::states], next[Cell::states], grad[Cell::states], du[Cell::gates], dr[Cell::gates];
        load_gates(save, Cell::saved, p.saved + at * Cell::saved, hidden, unit, lanes);
        for (int i = 0; i < Cell::params; ++i) {
          params[i] = V::load(p.weights.params[i] + unit, lanes);
          dparams[i] = V::load(p.dparams[i] + here, lanes);
        }
        for (int s = 0; s < Cell::states; ++s) {
          old[s] = V::load(before[s] + unit, lanes);
          next[s] = V::load(after[s] + unit, lanes);
          grad[s] = V::load(p.dstate[s] + here, lanes);
        }
        if (p.grad_h) grad[0] = grad[0] + V::load(p.grad_h + at + unit, lanes);
        for (int g = 0; g < Cell::gates; ++g) du[g] = dr[g] = V(0);
        Cell::backward(save, old, next, params, grad, du, dr, dparams);
        for (int s = 0; s < Cell::states; ++s) (h_before.is_reset(b) ? V(0) : grad[s]).store(p.dstate[s] + here, lanes);
        for (int i = 0; i < Cell::params; ++i) dparams[i].store(p.dparams[i] + here, lanes);
        store_gates(dr, Cell::gates, p.dr + (row + b) * columns, hidden, unit, lanes);
        if (!Cell::joint) store_gates(du, Cell::gates, p.du + (row + b) * columns, hidden, unit, lanes);
        if (step_bias)
          add_gates(dr, Cell::two_products ? Cell::first_gates : 0, Cell::gates, step_bias, hidden, unit, lanes);
      }
    }
    share.meet();

    auto dr_row = [&](int64_t b) { return (const T*)p.dr + (row + b) * columns; };
    if constexpr (Cell::two_products) {
      second.run(panel0, panel1, share.row0, row1, dr_row, [&](int64_t b, const Panel<T>& q, const T* results) {
        const int64_t at = (row + b) * hidden;
        for (int v = 0; v < q.vectors; ++v) {
          const int64_t unit = q.unit + v * V::width, lanes = q.units - v * V::width, here = b * hidden + unit;
          V save[Cell::saved], old[1], grad[1], du[Cell::gates], dr[Cell::gates], operand;
          load_gates(save, Cell::saved, p.saved + at * Cell::saved, hidden, unit, lanes);
          load_gates(dr, Cell::gates, p.dr + (row + b) * columns, hidden, unit, lanes);
          load_gates(du, Cell::gates, p.du + (row + b) * columns, hidden, unit, lanes);
          old[0] = V::load(h_before(b) + unit, lanes);
          grad[0] = V::load(p.dstate[0] + here, lanes);
          const V doperand = scale(b) * V::load(results + v * V::width);
          Cell::prepare_backward(save, old, doperand, grad, du, dr, operand);
          if (!h_before.is_reset(b)) grad[0].store(p.dstate[0] + here, lanes);
          // Other members read the later gates' dr until they meet: only the earlier gates are written.
          store_gates(dr, Cell::first_gates, p.dr + (row + b) * columns, hidden, unit, lanes);
          if (!Cell::joint) store_gates(du, Cell::first_gates, p.du + (row + b) * columns, hidden, unit, lanes);
          if (step_bias) add_gates(dr, 0, Cell::first_gates, step_bias, hidden, unit, lanes);
          if (p.dR) operand.store(p.operand + at + unit, lanes);
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
      if constexpr (Cell::two_products) second_dR.add(dr_row(b), p.operand + (row + b) * hidden);
    }
  }
  if (!p.dR) return;
  first_dR.flush();
  if constexpr (Cell::two_products) second_dR.flush();
  me.meet();
  add_up(p.dR_parts, parts, R_rows, hidden / p.weights.heads, padded, R_rows * me.rank / me.size,
         R_rows * (me.rank + 1) / me.size, p.dR);
}

template <class T>
int64_t packed_size(int64_t hidden, int64_t heads, int gates) {
  const int64_t d = hidden / heads, width = Vec<T>::width;
  return heads * ((d + width - 1) / width * width) * gates * (d + 1);
}

template <class T>
int64_t gradient_size(int64_t hidden, int64_t heads, int gates) {
  return gates * hidden * padded_columns<T>(hidden, heads);
}

template <class T>
Kernels<T> kernels() {
#define RNNKERN_FORWARD(Cell) forward<T, Cell>,
#define RNNKERN_BACKWARD(Cell) backward<T, Cell>,
  static void (*const all_forward[])(const Forward<T>&, Member) = {RNNKERN_CELLS(RNNKERN_FORWARD)};
  static void (*const all_backward[])(const Backward<T>&, Member) = {RNNKERN_CELLS(RNNKERN_BACKWARD)};
  return {packed_size<T>, gradient_size<T>, all_forward, all_backward};
}

}  // namespace
}  // namespace rnnkern
