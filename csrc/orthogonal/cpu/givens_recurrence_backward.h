// The backward of h_t = modrelu(u_t + F_L ... F_1 D h_{t-1}; b), from the last step to the first. Only u and h are
// saved: each step computes its layers again from h_{t-1}, and then undoes them one by one, for the values and their
// gradient. Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/givens_tile.h"
#include "orthogonal/givens_activation.h"

namespace rnnkern {
namespace {

// Number of partial sums over sequences, the same for all teams, so that results do not depend on the team.
template <class T>
int64_t recurrence_parts(const GivensSequences& sequences) {
  return smaller(tile_count<T>(sequences), 16);
}

// The gradients of all parameters, per lane: a row for each parameter.
template <class T>
struct GivensSums {
  T *angles, *phases, *diagonal, *bias;

  GivensSums(const GivensRecurrence<T>& problem, T* all) : angles(all), phases(all), diagonal(all) {
    constexpr int64_t width = Vec<T>::width;
    bias = all + problem.sizes.angles() * width;
    if (problem.is_complex()) {
      phases = bias;
      diagonal = phases + problem.sizes.angles() * width;
      bias = diagonal + problem.numbers() * width;
    }
  }
};

template <class T>
struct GivensRecurrenceBackwardWorkspace {
  GivensSinCos<T> sincos;
  T *sums, *values, *grads, *inputs, *lanes;

  GivensRecurrenceBackwardWorkspace(const GivensRecurrenceBackward<T>& problem, Workspace<T>& workspace,
                                    ThreadContext me)
      : sincos(problem, workspace),
        sums(workspace.alloc(recurrence_parts<T>(problem.sequences) * problem.parameters())) {
    const int64_t tile = problem.sequences.reals * Vec<T>::width;
    values = workspace.alloc(tile, me);
    grads = workspace.alloc(tile, me);
    inputs = workspace.alloc(tile, me);
    lanes = workspace.alloc(problem.parameters() * Vec<T>::width, me);
  }
};

template <class T>
RNNKERN_INLINE void add_row(T* to, Vec<T> x) {
  (Vec<T>::load(to) + x).store(to);
}

// The backward of the activation of z = u + y, where `inputs` is u and `values` is y. `grads`: in dL/dh, out dL/dz.
template <int parts, class T>
void activate_tile_back(const GivensRecurrence<T>& problem, const T* inputs, const T* values, T* grads, T* bias_sums) {
  using V = Vec<T>;
  for (int64_t i = 0; i < problem.numbers(); ++i) {
    const int64_t at = i * parts * V::width;
    V z[parts], grad[parts];
    for (int part = 0; part < parts; ++part) {
      const int64_t place = at + part * V::width;
      z[part] = V::load(inputs + place) + V::load(values + place);
      grad[part] = V::load(grads + place);
    }
    const V to_bias = activate_back(z, V(problem.bias[i]), grad);
    for (int part = 0; part < parts; ++part) grad[part].store(grads + at + part * V::width);
    add_row(bias_sums + i * V::width, to_bias);
  }
}

// Applies D^-1 F_1^-1 ... F_L^-1 to values and gradients, and adds to the gradients of the angles and phases.
template <int parts, class T>
void unrotate_tile(const GivensRecurrence<T>& problem, const GivensSinCos<T>& sincos, T* values, T* grads,
                   const GivensSums<T>& sums) {
  using V = Vec<T>;
  constexpr int64_t each = parts * V::width;
  for (int64_t k = problem.piece_count; k-- > 0;) {
    const GivensPiece piece = problem.pieces[k];
    const GivensLayer layer = layer_of(problem.sizes, piece.layer);
    const int64_t first = piece.layer * problem.sizes.pairs(), apart = layer.stride * each;
    for (int64_t j = piece.first; j < piece.last; ++j) {
      const int64_t at = layer.first(j) * each, angle = first + j;
      const V c(sincos.angles[2 * angle]), s(sincos.angles[2 * angle + 1]);
      if constexpr (parts == 2) {
        const V cosine(sincos.phases[2 * angle]), sine(sincos.phases[2 * angle + 1]);
        add_row(sums.phases + angle * V::width, rotate_back(cosine, sine, values + at, grads + at, V::width));
      }
      V sum = rotate_back(c, s, values + at, grads + at, apart);
      if constexpr (parts == 2) sum = sum + rotate_back(c, s, values + at + V::width, grads + at + V::width, apart);
      add_row(sums.angles + angle * V::width, sum);
    }
  }
  if constexpr (parts == 2)
    for (int64_t i = 0; i < problem.numbers(); ++i) {
      const V c(sincos.diagonal[2 * i]), s(sincos.diagonal[2 * i + 1]);
      add_row(sums.diagonal + i * V::width, rotate_back(c, s, values + i * each, grads + i * each, V::width));
    }
}

// Clears the gradients of lanes that are reset at this step.
template <class T>
void stop_at_resets(const Tile<T>& tile, int64_t step, T* grads) {
  using V = Vec<T>;
  T stops[V::width] = {};
  for (int64_t lane = 0; lane < tile.count; ++lane) stops[lane] = tile.is_reset(step, lane);
  const V stopped = V::load(stops);
  for (int64_t k = 0; k < tile.sequences.reals; ++k) {
    T* const row = grads + k * V::width;
    select(stopped > V(T(0)), V(T(0)), V::load(row)).store(row);
  }
}

template <int parts, class T>
void backward_tile(const GivensRecurrenceBackward<T>& problem, const Tile<T>& tile,
                   const GivensRecurrenceBackwardWorkspace<T>& workspace) {
  const GivensSequences& sequences = tile.sequences;
  const GivensSums<T> sums(problem, workspace.lanes);
  const int64_t reals = sequences.reals;
  std::memset(workspace.grads, 0, sizeof(T) * reals * Vec<T>::width);
  for (int64_t place = sequences.steps; place-- > 0;) {
    const int64_t step = sequences.step_at(place), alive = tile.alive(step);
    if (!alive) continue;
    const auto ended = tile.where(problem.grad_last, step, &GivensSequences::last_step);
    if (ended.any) load_rows<true>(ended, reals, workspace.grads);
    if (problem.grad_h) load_rows<true>(tile.at(problem.grad_h, step, alive), reals, workspace.grads);
    load_rows<false>(tile.before(step, alive, problem.h, problem.h0), reals, workspace.values);
    rotate_tile<parts>(problem, workspace.sincos, workspace.values);
    load_rows<false>(tile.at(problem.u, step, alive), reals, workspace.inputs);
    activate_tile_back<parts>(problem, workspace.inputs, workspace.values, workspace.grads, sums.bias);
    store_rows(workspace.grads, reals, tile.at(problem.grad_u, step, alive));
    unrotate_tile<parts>(problem, workspace.sincos, workspace.values, workspace.grads, sums);
    if (tile.any_reset(step, alive)) stop_at_resets(tile, step, workspace.grads);
    const auto begun = tile.where(problem.grad_h0, step, &GivensSequences::first_step);
    if (begun.any) store_rows(workspace.grads, reals, begun);
  }
  for (int64_t sequence = tile.first; sequence < tile.first + tile.count; ++sequence) {
    if (sequences.length(sequence)) continue;
    T* const to = problem.grad_h0 + sequence * reals;
    if (problem.grad_last)
      std::memcpy(to, problem.grad_last + sequence * reals, sizeof(T) * reals);
    else
      std::memset(to, 0, sizeof(T) * reals);
  }
}

// Sums over the lanes of each row.
template <class T>
void sum_lanes(const T* rows, int64_t count, T* sums) {
  using V = Vec<T>;
  for (int64_t first = 0; first < count; first += V::width) {
    V v[V::width];
    for (int64_t k = 0; k < V::width; ++k) v[k] = first + k < count ? V::load(rows + (first + k) * V::width) : V(T(0));
    sums_over_lanes<T>(v).store(sums + first, count - first);
  }
}

template <class T>
void givens_recurrence_backward(const GivensRecurrenceBackward<T>& problem, ThreadContext me) {
  const auto workspace = lay_out<GivensRecurrenceBackwardWorkspace<T>>(problem, me);
  workspace.sincos.compute(problem, me);
  const int64_t tiles = tile_count<T>(problem.sequences), parts = recurrence_parts<T>(problem.sequences);
  const int64_t parameters = problem.parameters(), angles = problem.sizes.angles();
  const auto [begin, end] = me.share(parts);
  for (int64_t part = begin; part < end; ++part) {
    std::memset(workspace.lanes, 0, sizeof(T) * parameters * Vec<T>::width);
    for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile)
      (problem.is_complex() ? backward_tile<2, T> : backward_tile<1, T>)(problem, tile_at<T>(problem.sequences, tile),
                                                                         workspace);
    sum_lanes(workspace.lanes, parameters, workspace.sums + part * parameters);
  }
  me.barrier();
  const auto [first, last] = me.share(parameters);
  const int64_t before_bias = parameters - problem.numbers();
  for (int64_t k = first; k < last; ++k) {
    T sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += workspace.sums[part * parameters + k];
    T* const to = k < angles         ? problem.grad_angles + k
                  : k >= before_bias ? problem.grad_bias + (k - before_bias)
                  : k < 2 * angles   ? problem.grad_phases + (k - angles)
                                     : problem.grad_diagonal + (k - 2 * angles);
    *to = sum;
  }
}

}  // namespace
}  // namespace rnnkern
