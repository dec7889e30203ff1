// The recurrence over time, backward. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

// Workspace. A chunk of steps is kept, rows (slot, sequence), until the weights' gradients and dx have taken it: the
// gradients of r and of u, the operands of a second product, what was projected and the gradient of what it became,
// the gates where they are computed again.
template <class S, class Cell>
struct BackwardPlan {
  using T = Arithmetic<S>;
  using F = Factor<S>;

  int64_t chunk;              // steps
  int64_t stride, dh_stride;  // elements between rows of dr and of du, and of dh, which are apart in the cache
  int parts;                  // of the weights' gradients: every member fills its own, or its units' rows of the one
  Room<T> room;
  T* zeros;
  F *dr, *du, *operand, *dh, *m;
  T *dR_room, *second_dR_room, *dW_room, *dW_hr_room, *step_bias, *step_bias_ih;
  Parts<T> dR, dW, dW_hr, dbias, dbias_ih;
  Product<F> first, second, input, projection;
  Zoneout<T> zoneout_h, zoneout_c;
  Dropout<T> dropout;
  F* dropped;  // a member's rows of what R multiplied, where that was not h
  std::optional<StepProducts<S, Cell>> again;
  T *u = nullptr, *saved = nullptr, *h_before = nullptr;
  T* norms;  // a member's rows of gradients before norms, and of c before zoneout

  BackwardPlan(const Backward<S>& p, Member me)
      : chunk(chunk_steps(p, p.above, me.size)),
        stride(Cell::gates * p.weights.hidden + 64 / sizeof(F)),
        dh_stride(p.weights.width + 64 / sizeof(F)),
        parts(p.split_hidden ? 1 : me.size),
        room{p.room},
        zeros(room.take(zeros_size(p.weights))),
        dr(room.template take_as<F>(rows(p) * stride)),
        du(Cell::joint ? dr : room.template take_as<F>(rows(p) * stride)),
        operand(Cell::two_products ? room.template take_as<F>(rows(p) * p.weights.hidden) : nullptr),
        dh(Cell::projected ? room.template take_as<F>(rows(p) * dh_stride) : nullptr),
        m(Cell::projected ? room.template take_as<F>(rows(p) * p.weights.hidden) : nullptr),
        dR_room(p.dR ? room.take(WeightGradient<F>::room_size(p.weights.R), me) : nullptr),
        second_dR_room(p.dR && Cell::two_products ? room.take(WeightGradient<F>::room_size(p.weights.R), me) : nullptr),
        dW_room(p.dW ? room.take(WeightGradient<F>::room_size(p.weights.W), me) : nullptr),
        dW_hr_room(p.dW_hr ? room.take(WeightGradient<F>::room_size(p.weights.W_hr), me) : nullptr),
        step_bias(p.dbias ? room.take(Cell::gates * p.weights.hidden, me) : nullptr),
        step_bias_ih(p.dbias_ih ? room.take(Cell::gates * p.weights.hidden, me) : nullptr),
        dR(p.dR, parts, p.weights.R, room),
        dW(p.dW, parts, p.weights.W, room),
        dW_hr(p.dW_hr, parts, p.weights.W_hr, room),
        dbias(p.dbias, Cell::normalised ? me.size : parts, Cell::gates, p.weights.hidden, p.weights.hidden, room),
        dbias_ih(p.dbias_ih, Cell::normalised ? me.size : parts, Cell::gates, p.weights.hidden, p.weights.hidden, room),
        first(p.weights.R, 0, Cell::first_gates, true, false, room, zeros, me),
        second(p.weights.R, Cell::first_gates, Cell::gates - Cell::first_gates, true, false, room, zeros, me),
        input(p.dx ? p.weights.W : Matrix<T>{}, 0, Cell::gates, true, false, room, zeros, me),
        projection(p.weights.W_hr, 0, 1, true, false, room, zeros, me),
        zoneout_h(p.noise, 0, p.steps.batch, p.weights.width, room),
        zoneout_c(p.noise, 1, p.steps.batch, p.weights.hidden, room),
        dropout(p.noise, p.steps.batch, p.weights.width, room),
        dropped(p.noise.dropout > 0 ? reinterpret_cast<F*>(room.take(p.steps.batch * p.weights.width, me)) : nullptr),
        norms(Cell::normalised ? room.take((Cell::gates + 2) * p.weights.hidden, me) : nullptr) {
    if (!Cell::saved || p.saved) return;
    again.emplace(p, rows(p), false, false, room, me);
    saved = room.take(rows(p) * Cell::saved * p.weights.hidden);
    if (p.x) u = room.take(rows(p) * Cell::gates * p.weights.hidden);
    if (StepProducts<S, Cell>::widens) h_before = room.take(p.steps.batch * p.weights.width, me);
  }

  static int64_t zeros_size(const Weights<T>& weights) {
    return larger(larger(weights.hidden, weights.width), max_vectors * Vec<T>::width);
  }
  int64_t rows(const Backward<S>& p) const { return chunk * p.steps.batch; }
};

template <class S, class Cell>
int64_t backward_room(const Backward<S>& p, int team) {
  return BackwardPlan<S, Cell>(p, Member{0, team, nullptr}).room.used;
}

// The gates of a chunk, from the h that entered each step.
template <class S, class Cell>
void gates_again(const Backward<S>& p, const BackwardPlan<S, Cell>& plan, const Share& share, const Chunk& chunk) {
  using T = Arithmetic<S>;
  using F = Factor<S>;
  using V = Vec<T>;
  const int64_t hidden = p.weights.hidden, columns = Cell::gates * hidden, batch = p.steps.batch;
  const int64_t width = Cell::projected ? p.weights.width : hidden;
  const StepProducts<S, Cell>& products = *plan.again;
  T* const projected = p.x ? plan.u + plan.chunk * share.row0 * columns : nullptr;
  if (p.x) products.project(p.x, share, chunk, projected);
  for (int64_t k = chunk.begin; k < chunk.end; ++k) {
    const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
    const int64_t slot_row = (k - chunk.begin) * batch;
    const Entering<F> h_before = [&] {
      const Entering<S> stored(p.steps, p.h0, p.h, reinterpret_cast<const S*>(plan.zeros), p.reset, width, t);
      if constexpr (StepProducts<S, Cell>::widens) {
        for (int64_t b = share.row0; b < row1; ++b) widen(stored(b), plan.h_before + b * width, width);
        return Entering<T>(p.steps, plan.h_before, plan.zeros, p.reset, width, t);
      } else {
        return stored;
      }
    }();
    if (plan.dropped)
      for (int64_t b = share.row0; b < row1; ++b) drop(plan.dropout, b, h_before(b), plan.dropped + b * width);
    const F* const zeros = reinterpret_cast<const F*>(plan.zeros);
    const Entering<F> factors = plan.dropped ? Entering<F>(p.steps, plan.dropped, zeros, p.reset, width, t) : h_before;
    const Entering<T> c_before(p.steps, p.c0, p.cell_states, plan.zeros, p.reset, hidden, t);
    auto saved_row = [&](int64_t b) { return plan.saved + (slot_row + b) * Cell::saved * hidden; };
    products.step(
        p.weights, share, row1, h_before, factors, plan.dropout,
        plan.operand ? plan.operand + slot_row * hidden : nullptr,
        [&](V* u, int64_t b, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
          if (p.x) {
            load_gates(u, Cell::gates, projected + chunk.place(k, b) * columns, hidden, unit, lanes);
          } else {
            load_gates(u, Cell::gates, p.u + (row + b) * columns, hidden, unit, lanes);
          }
        },
        saved_row,
        [&](int64_t b, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(c_before(b) + unit, lanes); },
        [&](int64_t b, int64_t unit, auto lanes, const V*, const V*, const V* save)
            RNNKERN_INLINE_LAMBDA { store_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes); });
  }
  share.meet();
}

template <class S, class Cell>
void backward(const Backward<S>& p, Member me) {
  using T = Arithmetic<S>;
  using F = Factor<S>;
  using V = Vec<T>;
  const BackwardPlan<S, Cell> plan(p, me);
  const int64_t hidden = p.weights.hidden, columns = Cell::gates * hidden, batch = p.steps.batch;
  const int64_t width = Cell::projected ? p.weights.width : hidden;
  const Product<F>&first = plan.first, &second = plan.second, &input = plan.input, &projection = plan.projection;
  for (const Product<F>* product : {&first, &second, &input, &projection}) product->pack(me);
  if constexpr (Cell::saved > 0)
    if (plan.again) plan.again->pack(me);
  const Share share(p.steps, p.split_hidden, me);
  for (int s = 0; s < Cell::states; ++s) {
    const int64_t row = s ? hidden : width, from = share.copy0 * row, elements = (share.copy1 - share.copy0) * row;
    if (p.grad_state[s]) {
      copy(p.dstate[s] + from, p.grad_state[s] + from, elements);
    } else {
      clear(p.dstate[s] + from, elements);
    }
  }
  for (int i = 0; i < Cell::params; ++i) {
    const int64_t row = Cell::normalised && i == 0 ? columns : hidden;
    clear(p.dparams[i] + share.copy0 * row, (share.copy1 - share.copy0) * row);
  }
  if (me.rank == 0) clear(plan.zeros, plan.zeros_size(p.weights));
  plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
  T *const step_bias = plan.step_bias, *const step_bias_ih = plan.step_bias_ih;
  for (T* const sums : {step_bias, step_bias_ih})
    if (sums) clear(sums, columns);
  T *const dR = plan.dR.begin(me), *const dW = plan.dW.begin(me), *const dW_hr = plan.dW_hr.begin(me);
  T *const dbias = plan.dbias.begin(me), *const dbias_ih = plan.dbias_ih.begin(me);
  me.meet();

  const int64_t panel0 = share.first_panel(first.panels()), panel1 = share.last_panel(first.panels());
  const int64_t column0 = first.first_unit(panel0), column1 = first.first_unit(panel1);
  const Product<F>& by_units = Cell::projected ? projection : first;
  const int64_t by_units0 = share.first_panel(by_units.panels()), by_units1 = share.last_panel(by_units.panels());
  const int64_t unit0 = by_units.first_unit(by_units0), unit1 = by_units.first_unit(by_units1);
  // Rows that are normalised are one member's as a whole.
  const int64_t bias0 = Cell::normalised ? 0 : unit0, bias1 = Cell::normalised ? hidden : unit1;
  constexpr int params_of_units = Cell::normalised ? 0 : Cell::params;
  WeightGradient<F> first_dR(p.weights.R, 0, Cell::first_gates, unit0, unit1, dR, plan.dR_room);
  WeightGradient<F> second_dR(p.weights.R, Cell::first_gates, Cell::gates - Cell::first_gates, unit0, unit1, dR,
                              plan.second_dR_room);
  WeightGradient<F> input_dW(p.weights.W, 0, Cell::gates, unit0, unit1, dW, plan.dW_room);
  WeightGradient<F> projection_dW(p.weights.W_hr, 0, 1, column0, column1, dW_hr, plan.dW_hr_room);

  for (int64_t end = p.steps.count; end > 0; end -= plan.chunk) {
    const Chunk chunk(p.steps, larger(end - plan.chunk, 0), end, share);
    if (p.above) p.above->wait(p.steps.count - chunk.begin);
    if constexpr (Cell::saved > 0)
      if (plan.again) gates_again(p, plan, share, chunk);
    auto slot_row = [&](int64_t k, int64_t b) { return (k - chunk.begin) * batch + b; };
    auto h_entering = [&](int64_t k) {
      return Entering<S>(p.steps, p.h0, p.h, reinterpret_cast<const S*>(plan.zeros), p.reset, width, p.steps.at(k));
    };
    for (int64_t k = end - 1; k >= chunk.begin; --k) {
      const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
      const Entering<S> h_before = h_entering(k);
      const Entering<T> c_before(p.steps, p.c0, p.cell_states, plan.zeros, p.reset, hidden, t);
      auto saved_row = [&](int64_t b) {
        return plan.again ? plan.saved + slot_row(k, b) * Cell::saved * hidden
                          : p.saved + (row + b) * Cell::saved * hidden;
      };
      auto dr_row = [&](int64_t b) { return plan.dr + slot_row(k, b) * plan.stride; };
      auto du_row = [&](int64_t b) { return plan.du + slot_row(k, b) * plan.stride; };
      auto store_gradients = [&](const V* du, const V* dr, int gates, int64_t b, int64_t unit, auto lanes)
                                 RNNKERN_INLINE_LAMBDA {
                                   store_gates(dr, gates, dr_row(b), hidden, unit, lanes);
                                   if (!Cell::joint) store_gates(du, gates, du_row(b), hidden, unit, lanes);
                                   if (p.du) store_gates(du, gates, p.du + (row + b) * columns, hidden, unit, lanes);
                                 };
      // What flows back through R to what it multiplied.
      auto through_R = [&](const T* results, int64_t b, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V scale(p.grad_scale ? p.grad_scale[t * p.scale_step + b * p.scale_row] : T(1));
        return plan.dropout.apply(scale * V::load(results), b, unit, lanes);
      };

      draw_step<Cell>(plan, share, t, row1, {column0, column1}, {unit0, unit1});

      // The gradient of h, for columns of a sequence.
      auto dh_of = [&](int64_t b, int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V later = V::load(p.dstate[0] + b * width + column, lanes);
        return p.grad_h ? later + load(p.grad_h + (row + b) * width + column, lanes) : later;
      };
      // The equations, for units of a sequence; dh is the gradient of the h that they gave, norms those around them.
      auto pointwise = [&](int64_t b, const S* before, const T* cells_before, int64_t unit, auto lanes, V dh,
                           const auto&... norms) RNNKERN_INLINE_LAMBDA {
        const int64_t at = (row + b) * hidden + unit, here = b * hidden + unit;
        V save[at_least_one(Cell::saved)], params[at_least_one(Cell::params)], dparams[at_least_one(Cell::params)];
        V old[Cell::states], next[Cell::states], grad[Cell::states], du[Cell::gates], dr[Cell::gates];
        if (Cell::saved) load_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
        // What the next sequence reads of this step comes from far: such short runs are not foreseen by the processor.
        for (int g = 0; g < Cell::saved; ++g) __builtin_prefetch(saved_row(b + 1) + g * hidden + unit);
        if (Cell::states > 1) __builtin_prefetch(p.cell_states + at + hidden);
        if (p.grad_h) __builtin_prefetch(p.grad_h + at + hidden);
        for (int i = 0; i < params_of_units; ++i) {
          params[i] = V::load(p.weights.params[i] + unit, lanes);
          dparams[i] = V::load(p.dparams[i] + here, lanes);
        }
        old[0] = Cell::projected ? V(0) : load(before + unit, lanes);
        next[0] = Cell::projected ? V(0) : p.candidates ? V::load(p.candidates + at, lanes) : load(p.h + at, lanes);
        V kept[2] = {V(0), V(0)};  // the gradients that go to the old values around the equations
        if (!Cell::projected && plan.zoneout_h.on()) kept[0] = plan.zoneout_h.weight(b, unit, lanes) * dh;
        grad[0] = dh - kept[0];
        if constexpr (Cell::states > 1) {
          old[1] = V::load(cells_before + unit, lanes);
          next[1] = V::load(p.cell_states + at, lanes);
          grad[1] = V::load(p.dstate[1] + here, lanes);
          if (plan.zoneout_c.on()) kept[1] = plan.zoneout_c.weight(b, unit, lanes) * grad[1];
          grad[1] = grad[1] - kept[1];
        }
        for (int g = 0; g < Cell::gates; ++g) du[g] = dr[g] = V(0);
        (norms.before(unit, lanes, save, next, grad), ...);
        Cell::backward(save, old, next, params, grad, du, dr, dparams);
        (norms.after(unit, lanes, dr), ...);
        for (int s = Cell::projected; s < Cell::states; ++s)
          (h_before.is_reset(b) ? V(0) : grad[s] + kept[s]).store(p.dstate[s] + here, lanes);
        for (int i = 0; i < params_of_units; ++i) dparams[i].store(p.dparams[i] + here, lanes);
        store_gradients(du, dr, Cell::gates, b, unit, lanes);
        constexpr int from_gate = Cell::two_products ? Cell::first_gates : 0;
        if (step_bias) add_gates(dr, from_gate, Cell::gates, step_bias, hidden, unit, lanes);
        if (step_bias_ih) add_gates(du, from_gate, Cell::gates, step_bias_ih, hidden, unit, lanes);
        if constexpr (Cell::projected)
          store(Cell::unprojected(save, old), plan.m + slot_row(k, b) * hidden + unit, lanes);
      };
      if constexpr (Cell::projected) {
        auto dh_row = [&](int64_t b) { return plan.dh + slot_row(k, b) * plan.dh_stride; };
        for (int64_t b = share.row0; b < row1; ++b) {
          for_vectors<V>(column0, column1, [&](int64_t column, auto lanes) RNNKERN_INLINE_LAMBDA {
            const V dh = dh_of(b, column, lanes);
            V kept(0);  // all else that goes on goes through R
            if (plan.zoneout_h.on()) kept = plan.zoneout_h.weight(b, column, lanes) * dh;
            store(dh - kept, dh_row(b) + column, lanes);
            (h_before.is_reset(b) ? V(0) : kept).store(p.dstate[0] + b * width + column, lanes);
          });
        }
        share.meet();
        projection.run(by_units0, by_units1, share.row0, row1, dh_row,
                       [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                         for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                           pointwise(b, nullptr, c_before(b), unit, lanes, V::load(results + unit - q.unit));
                         });
                       });
      } else if constexpr (Cell::normalised) {
        for (int64_t b = share.copy0; b < smaller(share.copy1, row1); ++b) {
          const T *cells = nullptr, *cells_before = nullptr;
          if (Cell::states > 1) {
            cells = p.cell_states + (row + b) * hidden;
            cells_before = c_before(b);
            if (plan.zoneout_c.on()) {
              cells_again<Cell>(saved_row(b), cells_before, plan.norms + (Cell::gates + 1) * hidden, hidden);
              cells = plan.norms + (Cell::gates + 1) * hidden;
            }
          }
          const S* const before = h_before(b);
          NormsBackward<Cell, T> norms(p.weights, saved_row(b), cells, p.dparams, b, plan.norms);
          norms.begin([&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            const V dh = dh_of(b, unit, lanes);
            return plan.zoneout_h.on() ? dh - plan.zoneout_h.weight(b, unit, lanes) * dh : dh;
          });
          for_vectors<V>(0, hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            pointwise(b, before, cells_before, unit, lanes, dh_of(b, unit, lanes), norms);
          });
          norms.end([&](int64_t i, auto lanes, V dr) RNNKERN_INLINE_LAMBDA { store(dr, dr_row(b) + i, lanes); });
        }
      } else {
        for (int64_t b = share.row0; b < row1; ++b) {
          const S* const before = h_before(b);
          const T* const cells_before = Cell::states > 1 ? c_before(b) : nullptr;
          for_vectors<V>(unit0, unit1, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            pointwise(b, before, cells_before, unit, lanes, dh_of(b, unit, lanes));
          });
        }
      }
      share.meet();

      if constexpr (Cell::two_products) {
        second.run(panel0, panel1, share.row0, row1, dr_row,
                   [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                     for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                       const int64_t here = b * hidden + unit;
                       V save[Cell::saved], old[1], grad[1], du[Cell::gates], dr[Cell::gates], operand;
                       load_gates(save, Cell::saved, saved_row(b), hidden, unit, lanes);
                       load_gates(dr, Cell::gates, dr_row(b), hidden, unit, lanes);
                       load_gates(du, Cell::gates, du_row(b), hidden, unit, lanes);
                       old[0] = load(h_before(b) + unit, lanes);
                       grad[0] = V::load(p.dstate[0] + here, lanes);
                       const V doperand = through_R(results + unit - q.unit, b, unit, lanes);
                       Cell::prepare_backward(save, old, doperand, grad, du, dr, operand);
                       if (!h_before.is_reset(b)) grad[0].store(p.dstate[0] + here, lanes);
                       // Other members read the later gates' dr until they meet: only the earlier gates are written.
                       store_gradients(du, dr, Cell::first_gates, b, unit, lanes);
                       if (step_bias) add_gates(dr, 0, Cell::first_gates, step_bias, hidden, unit, lanes);
                       if (step_bias_ih) add_gates(du, 0, Cell::first_gates, step_bias_ih, hidden, unit, lanes);
                       store(plan.dropout.apply(operand, b, unit, lanes), plan.operand + slot_row(k, b) * hidden + unit,
                             lanes);
                     });
                   });
        share.meet();
      }
      for (int g = 0; g < Cell::gates; ++g) {
        if (dbias) fold(step_bias, dbias, g * hidden + bias0, g * hidden + bias1);
        if (dbias_ih) fold(step_bias_ih, dbias_ih, g * hidden + bias0, g * hidden + bias1);
      }
      first.run(panel0, panel1, share.row0, row1, dr_row,
                [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
                  if (h_before.is_reset(b)) return;
                  for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                    T* dh = p.dstate[0] + b * width + unit;
                    (V::load(dh, lanes) + through_R(results + unit - q.unit, b, unit, lanes)).store(dh, lanes);
                  });
                });
      if constexpr (Cell::normalised) share.meet();
    }

    // What waits for no step: the weights' gradients of the chunk, a block of rows at a time, and dx.
    const int64_t rows = chunk.rows();
    auto at_slot = [&](int64_t place) {
      const Chunk::Row r = chunk.at(place);
      return slot_row(r.k, r.b);
    };
    if (p.dR) {
      first_dR.expect(rows);
      second_dR.expect(rows);
      for (int64_t k = chunk.begin; k < end; ++k) {
        const Entering<S> h_before = h_entering(k);
        for (int64_t b = share.row0; b < smaller(share.row1, p.steps.rows(p.steps.at(k))); ++b) {
          const F* const dr = plan.dr + slot_row(k, b) * plan.stride;
          if (plan.dropped) {
            drop(plan.dropout, b, h_before(b), plan.dropped);
            first_dR.add(dr, plan.dropped);
          } else {
            first_dR.add(dr, h_before(b));
          }
          if constexpr (Cell::two_products) second_dR.add(dr, plan.operand + slot_row(k, b) * hidden);
        }
      }
      first_dR.flush();
      second_dR.flush();
    }
    if (p.dW_hr) {
      projection_dW.expect(rows);
      for (int64_t i = 0; i < rows; ++i)
        projection_dW.add(plan.dh + at_slot(i) * plan.dh_stride, plan.m + at_slot(i) * hidden);
      projection_dW.flush();
    }
    if (p.dW) {
      input_dW.expect(rows);
      for (int64_t i = 0; i < rows; ++i)
        input_dW.add(plan.du + at_slot(i) * plan.stride, p.x + chunk.at(i).row * p.weights.W.columns);
      input_dW.flush();
    }
    if (p.dx) {
      input.run(
          share.first_panel(input.panels()), share.last_panel(input.panels()), 0, rows,
          [&](int64_t i) { return plan.du + at_slot(i) * plan.stride; },
          [&](int64_t i, const Panel<T>& q, const T* results) {
            S* const to = p.dx + chunk.at(i).row * p.weights.W.columns + q.unit;
            for (int v = 0; v < q.vectors; ++v)
              store(V::load(results + v * V::width), to + v * V::width, q.units - v * V::width);
          });
    }
    share.meet();  // all have done with what the next chunk writes over
    if (p.progress && me.rank == 0) p.progress->reach(p.steps.count - chunk.begin);
  }
  me.meet();
  for (const Parts<T>* gradient : {&plan.dR, &plan.dW, &plan.dW_hr, &plan.dbias, &plan.dbias_ih}) gradient->add_up(me);
}

}  // namespace
}  // namespace rnnkern
