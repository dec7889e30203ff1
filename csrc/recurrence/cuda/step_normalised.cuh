// The stepwise kernels of cells with norms. A block has one row, over which the passes run that cells/cell.h describes.
// A thread has the same units in every pass, and reads only what it wrote itself. Sums use a fixed tree.
#pragma once

#include "device/sums.h"
#include "recurrence/cuda/step.cuh"

namespace rnnkern {

constexpr int norm_threads = 128, norm_warps = norm_threads / device::warp_size;
constexpr int most_norm_sums = 6;  // two for each of three norms

// Calls f<first>(), ..., f<last>().
template <int first, int last, class F>
RNNKERN_DEVICE void for_passes(F f) {
  if constexpr (first <= last) {
    f.template operator()<first>();
    for_passes<first + 1, last>(f);
  }
}

// A norm of a row, x -> (x - mean) / sqrt(variance + eps), and its derivative, which is symmetric: it takes a gradient
// dx of the results to that of the inputs.
template <class A>
struct RowNorm {
  A *x, *dx;
  A mean, rstd;
  A sums[2];  // of this thread, then means over the row: of dx, and of dx times the results

  RNNKERN_DEVICE A operator()(int64_t i) const { return (x[i] - mean) * rstd; }
  RNNKERN_DEVICE A derivative(int64_t i) const { return rstd * (dx[i] - sums[0] - (*this)(i)*sums[1]); }
};

// The norms of a row, and what the passes of both directions read.
template <class Cell, class S>
struct NormalisedRow {
  using A = Arithmetic<S>;
  static constexpr char header[] = "recurrence/cuda/step_normalised.cuh";
  static constexpr int threads = norm_threads, least_blocks = 1;  // otherwise some of them spill
  static constexpr int rows = numbers_of<Cell>.norm_rows;
  static_assert(2 * Cell::norms <= most_norm_sums);

  const int64_t row, hidden;
  RowNorm<A> norms[Cell::norms];
  int64_t unit = 0;

  RNNKERN_DEVICE NormalisedRow(int64_t hidden, A* workspace, A* saved) : row(device::block()), hidden(hidden) {
    workspace += row * rows * hidden;
    RNNKERN_UNROLL
    for (int n = 0; n < Cell::norms; ++n) {
      const NormFacts facts = Cell::norm_facts[n];
      norms[n].dx = workspace;
      workspace += facts.values * hidden;
      norms[n].x = facts.slot >= 0 ? saved + facts.slot * hidden : workspace;
      if (facts.slot < 0) workspace += facts.values * hidden;
    }
  }

  // Calls f(norm, facts) for the norms of a level.
  template <int level, class F>
  RNNKERN_DEVICE void of_level(F f) {
    RNNKERN_UNROLL
    for (int n = 0; n < Cell::norms; ++n) {
      const NormFacts facts = Cell::norm_facts[n];
      if (facts.level == level) f(norms[n], facts);
    }
  }

  template <class F>
  RNNKERN_DEVICE void for_units(F f) {
    RNNKERN_ROLLED
    for (unit = device::thread(); unit < hidden; unit += norm_threads) f();
  }

  // Adds f(norm, x) to the first sum of each norm of a level, for all its inputs x.
  template <int level, class F>
  RNNKERN_DEVICE void add_inputs(F f) {
    for_units([&] {
      of_level<level>([&](RowNorm<A>& norm, NormFacts facts) {
        for (int value = 0; value < facts.values; ++value) norm.sums[0] += f(norm, norm.x[place(value)]);
      });
    });
  }

  // Replaces the first `count` sums of the norms of a level by means over the row.
  template <int level, int count>
  RNNKERN_DEVICE void take_means() {
    A* const memory = device::SharedArena{device::shared_memory()}.alloc<A>(most_norm_sums * norm_warps);
    A* of_warps = memory;
    of_level<level>([&](RowNorm<A>& norm, NormFacts) {
      RNNKERN_UNROLL
      for (int i = 0; i < count; ++i, of_warps += norm_warps) {
        const A sum = device::warp_sum(norm.sums[i]);
        if (device::lane() == 0) of_warps[device::warp()] = sum;
      }
    });
    device::block_barrier();
    of_warps = memory;
    of_level<level>([&](RowNorm<A>& norm, NormFacts facts) {
      RNNKERN_UNROLL
      for (int i = 0; i < count; ++i, of_warps += norm_warps) {
        norm.sums[i] = A(0);
        RNNKERN_UNROLL
        for (int warp = 0; warp < norm_warps; ++warp) norm.sums[i] += of_warps[warp];
        norm.sums[i] /= A(facts.values * hidden);
      }
    });
    device::block_barrier();  // the next sums overwrite of_warps
  }

  // The means and variances of the norms of a level.
  template <int level>
  RNNKERN_DEVICE void measure() {
    of_level<level>([](RowNorm<A>& norm, NormFacts) { norm.sums[0] = A(0); });
    add_inputs<level>([](const RowNorm<A>&, A x) { return x; });
    take_means<level, 1>();
    of_level<level>([](RowNorm<A>& norm, NormFacts facts) {
      norm.mean = facts.centered ? norm.sums[0] : A(0);
      norm.sums[0] = A(0);
    });
    add_inputs<level>([](const RowNorm<A>& norm, A x) { return (x - norm.mean) * (x - norm.mean); });
    take_means<level, 1>();
    of_level<level>([](RowNorm<A>& norm, NormFacts facts) {
      norm.rstd = A(1) / sqrt(norm.sums[0] + A(facts.eps));
      norm.sums[0] = norm.sums[1] = A(0);
    });
  }

  RNNKERN_DEVICE int64_t index() const { return row * hidden + unit; }
  RNNKERN_DEVICE int64_t place(int value) const { return value * hidden + unit; }
  RNNKERN_DEVICE A norm(int n, int value) const { return norms[n](place(value)); }
  RNNKERN_DEVICE void set_input(int n, int value, A x) const { norms[n].x[place(value)] = x; }
};

template <class Cell, class S, bool noisy>
struct NormalisedStepForwardKernel : NormalisedRow<Cell, S> {
  using Problem = StepForward<S>;
  using Base = NormalisedRow<Cell, S>;
  using Base::row, Base::hidden, Base::unit, Base::index, Base::place, Base::for_units;
  using typename Base::A;

  const Problem& p;
  A* const saves = p.saved + row * Cell::saved * hidden;
  const bool reset = p.reset && p.reset[row];

  RNNKERN_DEVICE explicit NormalisedStepForwardKernel(const Problem& p)
      : Base(p.hidden, p.workspace, p.saved + device::block() * Cell::saved * p.hidden), p(p) {}

  RNNKERN_DEVICE static void run(const Problem& p) { NormalisedStepForwardKernel(p).run_passes(); }

  RNNKERN_DEVICE void run_passes() {
    if constexpr (Cell::two_products) {
      if (p.operand) return for_units([&] { StepForwardKernel<Cell, S, noisy>(p, index()).prepare(); });
    }
    if constexpr (Cell::r_slot >= 0) {
      for_units([&] {
        for (int g = 0; g < Cell::recurrent; ++g) set_saved(Cell::r_slot + g, r(g));
      });
    }
    for_passes<0, Cell::levels>([&]<int pass>() {
      for_units([&] { Cell::template forward<pass, A>(*this); });
      if constexpr (pass < Cell::levels) this->template measure<pass>();
    });
  }

  RNNKERN_DEVICE A u(int gate) const { return widen(p.u[row * Cell::gates * hidden + place(gate)]); }
  RNNKERN_DEVICE A r(int gate) const {
    const A product = reset ? A(0) : widen(p.r[row * Cell::recurrent * hidden + place(gate)]);
    return p.bias ? product + widen(p.bias[place(gate)]) : product;
  }
  RNNKERN_DEVICE A old(int s) const {
    if (s == 0 && p.previous) return widen(p.previous[index()]);
    return p.state[s] && !reset ? p.state[s][index()] : A(0);
  }
  RNNKERN_DEVICE A param(int i, int value) const { return widen(p.params[i][place(value)]); }
  RNNKERN_DEVICE A saved(int value) const { return saves[place(value)]; }
  RNNKERN_DEVICE void set_saved(int value, A x) const { saves[place(value)] = x; }
  RNNKERN_DEVICE void set_next(int s, A x) const {
    if constexpr (noisy) x = mix(p.noise, s, row, unit, hidden, old(s), x);
    if (p.next[s]) p.next[s][index()] = x;
    if (s == 0) store_h<noisy>(p, index(), device::narrow<S>(x));
    if (s > 0 && p.cells[s]) p.cells[s][index()] = x;
  }
};

template <class Cell, class S, bool noisy>
struct NormalisedStepBackwardKernel : NormalisedRow<Cell, S> {
  using Problem = StepBackward<S>;
  using Base = NormalisedRow<Cell, S>;
  using Base::row, Base::hidden, Base::unit, Base::index, Base::place, Base::norms, Base::for_units;
  using typename Base::A;

  const Problem& p;
  const int64_t row_now = p.row + row, row_here = p.here + row;
  BackwardInput<Cell, S> input;
  A states[Cell::states], next[Cell::states];

  RNNKERN_DEVICE explicit NormalisedStepBackwardKernel(const Problem& p)
      : Base(p.sequence.hidden, p.workspace,
             const_cast<A*>(p.saved) + (p.here + device::block()) * Cell::saved * p.sequence.hidden),
        p(p) {}

  RNNKERN_DEVICE static void run(const Problem& p) { NormalisedStepBackwardKernel(p).run_passes(); }

  RNNKERN_DEVICE void run_passes() {
    if constexpr (Cell::two_products) {
      if (p.second) return for_units([&] { StepBackwardKernel<Cell, S, noisy>(p, index()).run_second(); });
    }
    for_units([&] {
      StepBackwardKernel<Cell, S, noisy> of_unit(p, index());
      of_unit.finish();
      of_unit.store_carry();
    });
    if (p.t < 0 || row >= p.alive) return;
    for_passes<0, Cell::levels - 1>([&]<int pass>() {
      for_fetched([&] { Cell::template inputs<pass, A>(*this); });
      this->template measure<pass>();
    });
    for_passes<0, Cell::levels>([&]<int k>() {
      constexpr int pass = Cell::levels - 1 - k;
      for_fetched([&] { Cell::template backward<pass, A>(*this); });
      if constexpr (pass >= 0) {
        this->template take_means<pass, 2>();
        this->template of_level<pass>([](RowNorm<A>& norm, NormFacts facts) {
          if (!facts.centered) norm.sums[0] = A(0);
        });
      }
    });
  }

  // The compiler removes the loads that a pass does not need.
  template <class F>
  RNNKERN_DEVICE void for_fetched(F f) {
    for_units([&] {
      input.fetch(p, int(p.t), row_now, row_here, int(row), 0, int(unit), int(hidden), int(p.sequence.length(row)));
      input.states(states, next);
      f();
    });
  }

  RNNKERN_DEVICE A kept(int s) const {  // the gradient that zoneout passes to the old state directly
    return noisy ? old_weight(p.noise, s, p.t, row, unit, hidden) * p.carry[s][index()] : A(0);
  }

  RNNKERN_DEVICE A old(int s) const { return states[s]; }
  RNNKERN_DEVICE A saved(int value) const { return input.save[value]; }
  RNNKERN_DEVICE A param(int i, int value) const { return widen(p.params[i][place(value)]); }
  RNNKERN_DEVICE A grad(int s) const { return p.carry[s][index()] - kept(s); }
  RNNKERN_DEVICE A dinput(int n, int value) const { return norms[n].derivative(place(value)); }
  RNNKERN_DEVICE void set_dnorm(int n, int value, A x) {
    norms[n].dx[place(value)] = x;
    norms[n].sums[0] += x;
    norms[n].sums[1] += x * norms[n](place(value));
  }
  RNNKERN_DEVICE void set_grad(int s, A x) const { p.carry[s][index()] = x + kept(s); }
  RNNKERN_DEVICE void set_du(int gate, A x) const {
    p.du[row_now * Cell::gates * hidden + place(gate)] = device::narrow<S>(x);
  }
  RNNKERN_DEVICE void set_dr(int gate, A x) const {
    if (Cell::joint) set_du(gate, x);
    if (p.dr) p.dr[row_here * Cell::recurrent * hidden + place(gate)] = device::narrow<S>(x);
    p.step_dr[row * Cell::recurrent * hidden + place(gate)] = device::narrow<S>(x);
  }
  RNNKERN_DEVICE void add_dparam(int i, int value, A x) const {
    p.dparams[i][row * Cell::param_rows[i] * hidden + place(value)] += x;
  }
};

}  // namespace rnnkern
