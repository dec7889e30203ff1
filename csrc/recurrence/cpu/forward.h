// The forward pass over time. kernels.h includes this file once per SIMD level.
#pragma once

#include "recurrence/cpu/step.h"

namespace rnnkern {
namespace {

template <class F>
struct ForwardPlan {
  using T = Arithmetic<F>;

  int64_t chunk;  // number of steps that are projected together
  Workspace<T> packs, workspace;
  StepProducts<F> products;
  Product<F> projection;
  Zoneouts<T> zoneout;
  Dropout<T> dropout;
  T *zeros, *carried, *saved, *u;
  T *u_row, *m_row;  // per thread: u and m in T, where they are stored in another type
  T* unmixed;        // per thread: new states except h, before zoneout
  F *initial, *dropped, *operand, *m;

  // Whether each product with R runs once.
  static bool once(const Forward<T>& p) { return p.split_hidden && p.steps.count == 1 && !p.layout_team; }

  ForwardPlan(const Forward<T>& p, ThreadContext me)
      : chunk(chunk_steps(p, p.below, me.size)),
        packs{p.packs},
        workspace{p.workspace, 0, p.layout_team ? &packs : nullptr},
        products(p, chunk * p.steps.batch, once(p), p.split_hidden && p.steps.count <= chunk && !p.layout_team, p.saved,
                 workspace, me),
        projection(p.weights.W_hr, 0, 1, false, once(p), workspace, nullptr, me, p.parts, p.steps.batch),
        zoneout(p.noise, p.keep, p.cell, p.steps.batch, p.weights, workspace),
        dropout(p.noise, p.steps.batch, p.weights.width, workspace) {
    const CellNumbers& cell = p.cell;
    const int64_t hidden = p.weights.hidden, batch = p.steps.batch, state_size = batch * p.weights.width;
    zeros = workspace.alloc_lasting(larger(p.weights.width, hidden));
    initial = has_bf16_dot<F> ? workspace.template alloc_as<F>(state_size) : nullptr;
    dropped = p.noise.dropout > 0 ? workspace.template alloc_as<F>(2 * state_size) : nullptr;  // like `carried`
    operand = cell.two_products() ? workspace.template alloc_as<F>(batch * hidden) : nullptr;
    saved = p.saved               ? nullptr
            : cell.two_products() ? workspace.alloc(batch * cell.saved * hidden)  // of one step
            : cell.normalised     ? workspace.alloc(cell.saved * hidden, me)      // of one row
                                  : nullptr;
    carried = p.h.narrow() ? workspace.alloc(2 * state_size)
                           : nullptr;  // h between two steps, because the h of the output is rounded
    u = p.x ? workspace.alloc(chunk * batch * products.u_size()) : nullptr;
    m = cell.projected ? workspace.template alloc_as<F>(batch * hidden)
                       : nullptr;  // input of the projection of h, of one step
    u_row = p.h.narrow() || p.x ? workspace.alloc(cell.gates * hidden, me) : nullptr;
    m_row = cell.projected && has_bf16_dot<F> ? workspace.alloc(hidden, me) : nullptr;
    unmixed = zoneout.any() ? workspace.alloc(cell.states * hidden, me) : nullptr;
  }
};

template <class F>
int64_t forward_workspace(const Forward<Arithmetic<F>>& p, int team) {
  return ForwardPlan<F>(p, ThreadContext{0, team, nullptr}).workspace.used;
}

template <class F>
int64_t forward_packs(const Forward<Arithmetic<F>>& p, int team) {
  return ForwardPlan<F>(p, ThreadContext{0, team, nullptr}).packs.used;
}

// What one thread does.
template <class F, class Cell>
class ForwardPass {
  using T = Arithmetic<F>;
  using V = Vec<T>;

 public:
  ForwardPass(const Forward<T>& p, ThreadContext me)
      : p(p),
        me(me),
        cell(cell_of<Cell>(p)),
        plan(p, {me.rank, p.layout_team ? p.layout_team : me.size, nullptr}),
        share(p.steps, p.split_hidden, me),
        hidden(p.weights.hidden),
        width(cell.projected ? p.weights.width : hidden),
        state_size(p.steps.batch * width),
        u_rows(plan.chunk * (share.row1 - share.row0)),
        projected_x(p.x ? plan.u + plan.chunk * share.row0 * plan.products.u_size() : nullptr),
        units(units_of(last_product(), share, hidden)),
        columns(units_of(cell.projected ? plan.projection : last_product(), share, width)),
        has_stages(plan.carried || plan.dropped || plan.zoneout[0].on()) {}

  RNNKERN_INLINE void run() {
    start();
    for (int64_t begin = 0; begin < p.steps.count; begin += plan.chunk) {
      const Chunk chunk(p.steps, begin, smaller(begin + plan.chunk, p.steps.count), share);
      if (p.below) p.below->wait(chunk.end);
      if (p.x) plan.products.project(p.x, share, chunk, u_rows, projected_x);
      for (int64_t k = begin; k < chunk.end; ++k) step(chunk, k);
      if (p.progress && me.rank == 0) p.progress->reach(chunk.end);
    }
    finish();
  }

 private:
  struct Step {
    int64_t t, row, row1;         // its number, its first row, the last of this thread's sequences
    PreviousState<T> h, factors;  // the previous h, and as R multiplies it
    T* new_h;                     // in T: where it is stored, or carried to the next step
    F* dropped;                   // the new h after dropout, or null
  };

  RNNKERN_INLINE void step(const Chunk& chunk, int64_t k) {
    const Step now = at(k);
    plan.zoneout.draw_step(p.cell, share, now.t, now.row1, columns, units);
    plan.products.step(
        cell, p.weights, share, now.row1, now.factors, plan.dropout, plan.operand,
        [&](int64_t b) { return saved_row(now, b); },
        [&](ForwardStrip<T>& strip, int64_t b) RNNKERN_INLINE_LAMBDA { read(strip, now, chunk.index(k, b), b); },
        [&](const ForwardStrip<T>& strip, int64_t b) RNNKERN_INLINE_LAMBDA { write(strip, now, b); });
    share.barrier();
    if (!cell.projected) return;
    project_h(now);
    share.barrier();
  }

  void start() {
    if (!p.packed) {
      plan.products.pack(me);
      plan.projection.pack(me);
      if (me.rank == 0) clear(plan.zeros, larger(width, hidden));
    }
    const int64_t first = share.copy0, count = share.copy1 - share.copy0;
    for (int s = 0; s < cell.states; ++s) {
      const int64_t row = s ? hidden : width;
      if (p.state[s] != p.final_state[s]) copy(p.final_state[s] + first * row, p.state[s] + first * row, count * row);
    }
    const T* const h = p.state[0] + first * width;
    for (int half = 0; plan.carried && half < 2; ++half)
      copy(plan.carried + half * state_size + first * width, h, count * width);
    if constexpr (has_bf16_dot<F>) narrow_row(h, count * width, plan.initial + first * width);
    plan.dropout.draw_all(p.noise, share.copy0, share.copy1);
    for (int half = 0; plan.dropped && half < 2; ++half)
      for (int64_t b = share.copy0; b < share.copy1; ++b)
        drop(plan.dropout, b, Rows<T>(p.state[0] + b * width), plan.dropped + half * state_size + b * width);
    me.barrier();
  }

  // Steps read one half of `carried` and of `dropped`, and write the other.
  RNNKERN_INLINE Step at(int64_t k) const {
    const int64_t t = p.steps.at(k), before = (k & 1) * state_size, next = state_size - before;
    auto carried = [&](Rows<T> h) { return PreviousState<T>(p.steps, h, plan.zeros, p.reset, width, t); };
    auto in_sequence = [&](Rows<T> initial) {
      return PreviousState<T>(p.steps, initial, p.h, plan.zeros, p.reset, width, t);
    };
    const PreviousState<T> h = plan.carried ? carried(plan.carried + before) : in_sequence(p.state[0]);
    return {t,
            p.steps.offset(t),
            smaller(share.row1, p.steps.rows(t)),
            h,
            plan.dropped      ? carried(plan.dropped + before)
            : has_bf16_dot<F> ? in_sequence(plan.initial)
                              : h,
            plan.carried ? plan.carried + next : p.h.template as<T>() + p.steps.offset(t) * width,
            plan.dropped ? plan.dropped + next : nullptr};
  }

  RNNKERN_INLINE T* saved_row(const Step& now, int64_t b) const {
    if (p.saved) return p.saved + (now.row + b) * cell.saved * hidden;
    return plan.saved ? plan.saved + cell.two_products() * b * cell.saved * hidden : nullptr;
  }

  // Whether a state of all steps is kept and nothing changes it after the equations: then each step reads what the step
  // before wrote there. Otherwise the state of the step before is in `final_state`.
  RNNKERN_INLINE bool in_sequence(int s) const { return p.states[s] && !plan.zoneout[s].on(); }

  // What the equations read, and where they write: u and the old and new states.
  RNNKERN_INLINE void read(ForwardStrip<T>& strip, const Step& now, int64_t index, int64_t b) const {
    strip.u = plan.products.u_of(p, projected_x, u_rows, index, p.u_repeats ? b : now.row + b, strip, plan.u_row);
    strip.old[0] = cell.projected ? plan.zeros : now.h(b).template as<T>();
    strip.next[0] = !cell.projected ? now.new_h + b * width : in_arithmetic(plan.m + b * hidden, plan.m_row);
    for (int s = 1; s < cell.states; ++s) {
      T* const state = p.final_state[s] + b * hidden;
      if (in_sequence(s)) {
        const PreviousState<T> old(p.steps, p.state[s], p.states[s], plan.zeros, p.reset, hidden, now.t);
        strip.old[s] = old(b).template as<T>();
        strip.next[s] = p.states[s] + (now.row + b) * hidden;
      } else {
        strip.old[s] = now.h.is_reset(b) ? plan.zeros : state;
        strip.next[s] = plan.zoneout[s].on() ? plan.unmixed + s * hidden : state;
      }
    }
  }

  // What follows the equations.
  RNNKERN_INLINE void write(const ForwardStrip<T>& strip, const Step& now, int64_t b) const {
    if (!cell.projected) {
      write_h(now, b, strip.begin, strip.end);
    } else if constexpr (has_bf16_dot<F>) {
      store_row(strip.next[0], 1, hidden, strip, Rows<T>(plan.m + b * hidden));
    }
    for (int s = 1; s < cell.states; ++s) {
      if (!plan.zoneout[s].on()) continue;
      T* const kept = p.states[s] ? p.states[s] + (now.row + b) * hidden : nullptr;
      T* const state = p.final_state[s] + b * hidden;
      for_vectors<V>(strip.begin, strip.end, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V next = V::load(strip.next[s] + unit, lanes);
        next = plan.zoneout[s].mix(V::load(strip.old[s] + unit, lanes), next, b, unit, lanes);
        next.store(state + unit, lanes);
        if (kept) next.store(kept + unit, lanes);
      });
    }
  }

  // The stages of some columns of the new h that a call may have: zoneout, storage and dropout.
  RNNKERN_INLINE void write_h(const Step& now, int64_t b, int64_t first, int64_t last) const {
    if (!has_stages) return;
    const Zoneout<T>& zoneout = plan.zoneout[0];
    T* const h = now.new_h + b * width;
    if (zoneout.on())
      for_vectors<V>(first, last, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V next = V::load(h + unit, lanes), old = V::load(now.h(b).template as<T>() + unit, lanes);
        if (p.candidates) next.store(p.candidates + (now.row + b) * hidden + unit, lanes);
        zoneout.mix(old, next, b, unit, lanes).store(h + unit, lanes);
      });
    if (plan.carried) narrow_row(h + first, last - first, p.h.from((now.row + b) * width + first));
    if (now.dropped)
      for_vectors<V>(first, last, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V h_dropped = plan.dropout.apply(V::load(h + unit, lanes), b, unit, lanes);
        store(h_dropped, now.dropped + b * width + unit, lanes);
      });
  }

  RNNKERN_INLINE void project_h(const Step& now) const {
    const Product<F>& product = plan.projection;
    product.run(
        share.first_panel(product.panels()), share.last_panel(product.panels()), share.row0, now.row1,
        [&](int64_t b) { return plan.m + b * hidden; },
        [&](int64_t b, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
          copy(now.new_h + b * width + q.unit, results, q.units);
          write_h(now, b, q.unit, q.unit + q.units);
        });
  }

  // The final state is that of each sequence's last step in processing order; a sequence without steps keeps its
  // initial state.
  void finish() const {
    for (int64_t b = share.copy0; b < share.copy1; ++b) {
      if (p.steps.count == 0 || b >= p.steps.rows(0)) continue;
      int64_t t = 0;
      if (!p.steps.reverse)
        for (t = p.steps.count - 1; p.steps.rows(t) <= b;) --t;
      copy(p.final_state[0] + b * width, at(p.steps.at(t)).new_h + b * width, width);
      for (int s = 1; s < cell.states; ++s)
        if (in_sequence(s)) copy(p.final_state[s] + b * hidden, p.states[s] + (p.steps.offset(t) + b) * hidden, hidden);
    }
  }

  const Product<F>& last_product() const { return cell.two_products() ? plan.products.second : plan.products.first; }

  const Forward<T>& p;
  const ThreadContext me;
  const Cell cell;
  const ForwardPlan<F> plan;
  const WorkRange share;
  const int64_t hidden, width, state_size;
  const int64_t u_rows;        // of this thread in a chunk
  T* const projected_x;        // them
  const Units units, columns;  // those of the state and of h that this thread computes
  const bool has_stages;       // between the equations and the next step
};

template <class F, class Cell>
void forward(const Forward<Arithmetic<F>>& p, ThreadContext me) {
  ForwardPass<F, Cell>(p, me).run();
}

}  // namespace
}  // namespace rnnkern
