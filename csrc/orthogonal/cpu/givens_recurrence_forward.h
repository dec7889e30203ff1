// h_t = modrelu(u_t + F_L ... F_1 D h_{t-1}; b). Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/givens_tile.h"
#include "orthogonal/givens_activation.h"

namespace rnnkern {
namespace {

template <class T>
struct GivensRecurrenceForwardWorkspace {
  GivensSinCos<T> sincos;
  T* state;

  GivensRecurrenceForwardWorkspace(const GivensRecurrenceForward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : sincos(problem, workspace), state(workspace.alloc(problem.sequences.reals * Vec<T>::width, me)) {}
};

template <int parts, class T>
void activate_tile(const GivensRecurrence<T>& problem, T* tile) {
  using V = Vec<T>;
  for (int64_t i = 0; i < problem.numbers(); ++i) {
    T* const x = tile + i * parts * V::width;
    V z[parts];
    for (int part = 0; part < parts; ++part) z[part] = V::load(x + part * V::width);
    activate(z, V(problem.bias[i]));
    for (int part = 0; part < parts; ++part) z[part].store(x + part * V::width);
  }
}

template <int parts, class T>
void forward_tile(const GivensRecurrenceForward<T>& problem, const Tile<T>& tile, const GivensSinCos<T>& sincos,
                  T* state) {
  const GivensSequences& sequences = tile.sequences;
  int64_t before = 0;
  for (int64_t place = 0; place < sequences.steps; ++place) {
    const int64_t step = sequences.step_at(place), alive = tile.alive(step);
    // The state is already in the tile, unless a sequence begins, ends or is reset.
    if (alive != before || tile.any_reset(step, alive))
      load_rows<false>(tile.before(step, alive, problem.h, problem.h0), sequences.reals, state);
    before = alive;
    if (!alive) continue;
    rotate_tile<parts>(problem, sincos, state);
    load_rows<true>(tile.at(problem.u, step, alive), sequences.reals, state);
    activate_tile<parts>(problem, state);
    store_rows(state, sequences.reals, tile.at(problem.h, step, alive));
  }
  for (int64_t sequence = tile.first; sequence < tile.first + tile.count; ++sequence) {
    const int64_t row = sequences.length(sequence) ? sequences.row(sequences.last_step(sequence), sequence) : 0;
    const T* const from =
        sequences.length(sequence) ? problem.h + row * sequences.reals : problem.h0 + sequence * sequences.reals;
    std::memcpy(problem.last + sequence * sequences.reals, from, sizeof(T) * sequences.reals);
  }
}

template <class T>
void givens_recurrence_forward(const GivensRecurrenceForward<T>& problem, ThreadContext me) {
  const auto workspace = lay_out<GivensRecurrenceForwardWorkspace<T>>(problem, me);
  workspace.sincos.compute(problem, me);
  const auto [begin, end] = me.share(tile_count<T>(problem.sequences));
  for (int64_t tile = begin; tile < end; ++tile)
    (problem.is_complex() ? forward_tile<2, T> : forward_tile<1, T>)(problem, tile_at<T>(problem.sequences, tile),
                                                                     workspace.sincos, workspace.state);
}

}  // namespace
}  // namespace rnnkern
