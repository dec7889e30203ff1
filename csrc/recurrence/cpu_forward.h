// The recurrence over time, forward. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

template <class S, class Cell>
struct ForwardPlan {
  using T = Arithmetic<S>;
  using F = Factor<S>;

  int64_t chunk;  // steps that are projected at once
  Room<T> room;
  StepProducts<S, Cell> products;
  Product<F> projection;
  Zoneout<T> zoneout_h, zoneout_c;
  Dropout<T> dropout;
  T *zeros, *carried, *saved, *u;
  F *initial, *dropped, *operand, *m;

  ForwardPlan(const Forward<S>& p, Member me)
      : chunk(chunk_steps(p, p.below, me.size)),
        room{p.room},
        products(p, chunk * p.steps.batch, p.split_hidden && p.steps.count == 1,
                 p.split_hidden && p.steps.count <= chunk, room, me),
        projection(p.weights.W_hr, 0, 1, false, p.split_hidden && p.steps.count == 1, room, nullptr, me),
        zoneout_h(p.noise, 0, p.steps.batch, p.weights.width, room),
        zoneout_c(p.noise, 1, p.steps.batch, p.weights.hidden, room),
        dropout(p.noise, p.steps.batch, p.weights.width, room) {
    const int64_t hidden = p.weights.hidden, batch = p.steps.batch;
    zeros = room.take(p.weights.width);
    initial = dots<S> ? room.template take_as<F>(batch * p.weights.width) : nullptr;
    dropped = p.noise.dropout > 0 ? room.template take_as<F>(2 * batch * p.weights.width) : nullptr;  // like `carried`
    operand = Cell::two_products ? room.template take_as<F>(batch * hidden) : nullptr;
    saved = (Cell::two_products || Cell::normalised) && !p.saved ? room.take(batch * Cell::saved * hidden)
                                                                 : nullptr;  // of one step
    carried = narrow<S> ? room.take(2 * batch * p.weights.width) : nullptr;  // h between two steps: h itself is rounded
    u = p.x ? room.take(chunk * batch * Cell::gates * hidden) : nullptr;
    m = Cell::projected ? room.template take_as<F>(batch * hidden) : nullptr;  // what is projected, of one step
  }
};

template <class S, class Cell>
int64_t forward_room(const Forward<S>& p, int team) {
  return ForwardPlan<S, Cell>(p, Member{0, team, nullptr}).room.used;
}

template <class S, class Cell>
void forward(const Forward<S>& p, Member me) {
  using T = Arithmetic<S>;
  using F = Factor<S>;
  using V = Vec<T>;
  const ForwardPlan<S, Cell> plan(p, me);
  const int64_t hidden = p.weights.hidden, columns = Cell::gates * hidden;
  const int64_t width = Cell::projected ? p.weights.width : hidden, state_size = p.steps.batch * width;
  plan.products.pack(me);
  plan.projection.pack(me);
  if (me.rank == 0) clear(plan.zeros, width);
  const Share share(p.steps, p.split_hidden, me);
  auto copy_in = [&](T* to, const T* from, int64_t row) {
    copy(to + share.copy0 * row, from + share.copy0 * row, (share.copy1 - share.copy0) * row);
  };
  for (int s = 0; s < Cell::states; ++s) copy_in(p.final_state[s], p.state[s], s ? hidden : width);
  for (int half = 0; narrow<S> && half < 2; ++half) copy_in(plan.carried + half * state_size, p.state[0], width);
  if constexpr (dots<S>)
    for (int64_t i = share.copy0 * width; i < share.copy1 * width; i += V::width)
      store(V::load(p.state[0] + i, share.copy1 * width - i), plan.initial + i, share.copy1 * width - i);
  plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
  for (int half = 0; plan.dropped && half < 2; ++half)
    for (int64_t b = share.copy0; b < share.copy1; ++b)
      drop(plan.dropout, b, p.state[0] + b * width, plan.dropped + half * state_size + b * width);
  me.meet();
  const Product<F>& by_units = Cell::two_products ? plan.products.second : plan.products.first;
  const Product<F>& by_columns = Cell::projected ? plan.projection : by_units;
  auto units_of = [&](const Product<F>& q) {
    return Units{q.first_unit(share.first_panel(q.panels())), q.first_unit(share.last_panel(q.panels()))};
  };

  T* const projected = p.x ? plan.u + plan.chunk * share.row0 * columns : nullptr;
  for (int64_t begin = 0; begin < p.steps.count; begin += plan.chunk) {
    const Chunk chunk(p.steps, begin, smaller(begin + plan.chunk, p.steps.count), share);
    if (p.below) p.below->wait(chunk.end);
    if (p.x) plan.products.project(p.x, share, chunk, projected);
    for (int64_t k = begin; k < chunk.end; ++k) {
      const int64_t t = p.steps.at(k), row = p.steps.offset(t), row1 = smaller(share.row1, p.steps.rows(t));
      // Steps read one half of what is carried and write the other.
      T* const carried_next = narrow<S> ? plan.carried + ((k + 1) & 1) * state_size : nullptr;
      const Entering<T> h_before = [&] {
        if constexpr (narrow<S>)
          return Entering<T>(p.steps, plan.carried + (k & 1) * state_size, plan.zeros, p.reset, width, t);
        else
          return Entering<T>(p.steps, p.state[0], p.h, plan.zeros, p.reset, width, t);
      }();
      F* const dropped_next = plan.dropped ? plan.dropped + ((k + 1) & 1) * state_size : nullptr;
      const Entering<F> factors = [&] {
        if (plan.dropped)
          return Entering<F>(p.steps, plan.dropped + (k & 1) * state_size, reinterpret_cast<const F*>(plan.zeros),
                             p.reset, width, t);
        if constexpr (dots<S>)
          return Entering<S>(p.steps, plan.initial, p.h, reinterpret_cast<const S*>(plan.zeros), p.reset, width, t);
        else
          return h_before;
      }();
      auto put_h = [&](V h, int64_t b, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        store(h, p.h + (row + b) * width + unit, lanes);
        if constexpr (narrow<S>) h.store(carried_next + b * width + unit, lanes);
        if (plan.dropout.on()) store(plan.dropout.apply(h, b, unit, lanes), dropped_next + b * width + unit, lanes);
      };
      draw_step<Cell>(plan, share, t, row1, units_of(by_columns), units_of(by_units));
      plan.products.step(
          p.weights, share, row1, h_before, factors, plan.dropout, plan.operand,
          [&](V* u, int64_t b, int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            if (p.x) {
              load_gates(u, Cell::gates, projected + chunk.place(k, b) * columns, hidden, unit, lanes);
            } else {
              load_gates(u, Cell::gates, p.u + (row + b) * columns, hidden, unit, lanes);
            }
          },
          [&](int64_t b) {
            return (p.saved ? p.saved + row * Cell::saved * hidden : plan.saved) + b * Cell::saved * hidden;
          },
          [&](int64_t b, int64_t unit, auto lanes)
              RNNKERN_INLINE_LAMBDA { return V::load(p.final_state[1] + b * hidden + unit, lanes); },
          [&](int64_t b, int64_t unit, auto lanes, const V* old, V* next, const V* save) RNNKERN_INLINE_LAMBDA {
            if constexpr (Cell::projected) {
              store(next[0], plan.m + b * hidden + unit, lanes);
            } else {
              if (plan.zoneout_h.on()) {
                if (p.candidates) next[0].store(p.candidates + (row + b) * hidden + unit, lanes);
                next[0] = plan.zoneout_h.mix(old[0], next[0], b, unit, lanes);
              }
              put_h(next[0], b, unit, lanes);
            }
            if constexpr (Cell::states > 1) {
              if (plan.zoneout_c.on()) next[1] = plan.zoneout_c.mix(old[1], next[1], b, unit, lanes);
              next[1].store(p.final_state[1] + b * hidden + unit, lanes);
              if (p.cell_states) next[1].store(p.cell_states + (row + b) * hidden + unit, lanes);
            }
            if (Cell::saved && p.saved)
              store_gates(save, Cell::saved, p.saved + (row + b) * Cell::saved * hidden, hidden, unit, lanes);
          });
      share.meet();
      if constexpr (Cell::projected) {
        const Product<F>& product = plan.projection;
        product.run(
            share.first_panel(product.panels()), share.last_panel(product.panels()), share.row0, row1,
            [&](int64_t b) { return plan.m + b * hidden; },
            [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
              for_vectors<V>(q.unit, q.unit + q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
                V h = V::load(results + unit - q.unit);
                if (plan.zoneout_h.on()) h = plan.zoneout_h.mix(load(h_before(b) + unit, lanes), h, b, unit, lanes);
                put_h(h, b, unit, lanes);
              });
            });
        share.meet();
      }
    }
    if (p.progress && me.rank == 0) p.progress->reach(chunk.end);
  }

  // h after each sequence's own last step, in processing order; a sequence without steps keeps its initial state.
  for (int64_t b = share.copy0; b < share.copy1; ++b) {
    if (p.steps.count == 0 || b >= p.steps.rows(0)) continue;
    int64_t t = 0;
    if (!p.steps.reverse)
      for (t = p.steps.count - 1; p.steps.rows(t) <= b;) --t;
    const T* last;
    if constexpr (narrow<S>)
      last = plan.carried + ((p.steps.at(t) + 1) & 1) * state_size + b * width;
    else
      last = p.h + (p.steps.offset(t) + b) * width;
    copy(p.final_state[0] + b * width, last, width);
  }
}

}  // namespace
}  // namespace rnnkern
