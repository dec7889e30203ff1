// Tiles of sequences, one per lane of a register: row k of a tile holds element k of all sequences, so that a rotation
// is the same for all lanes. Apart from givens_product.h, which has no steps. Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/givens_product.h"

namespace rnnkern {
namespace {

// The sequences first..first + count - 1.
template <class T>
struct Tile {
  const GivensSequences& sequences;
  int64_t first, count;

  // Number of sequences that have this step. They are the first ones, since lengths do not increase.
  int64_t alive(int64_t step) const {
    int64_t lane = 0;
    while (lane < count && step < sequences.length(first + lane)) ++lane;
    return lane;
  }

  bool is_reset(int64_t step, int64_t lane) const {
    return sequences.reset && sequences.reset[step * sequences.batch + first + lane];
  }

  bool any_reset(int64_t step, int64_t alive) const {
    bool any = false;
    for (int64_t lane = 0; sequences.reset && lane < alive; ++lane) any = any || is_reset(step, lane);
    return any;
  }

  // The rows that `row(lane)` returns.
  template <class Pointer, class F>
  LaneRows<Pointer> rows(F row) const {
    LaneRows<Pointer> found{};
    for (int64_t lane = 0; lane < count; ++lane) {
      found.of[lane] = row(lane);
      found.any = found.any || found.of[lane];
    }
    return found;
  }

  template <class Pointer>
  LaneRows<Pointer> at(Pointer x, int64_t step, int64_t alive) const {
    return rows<Pointer>([&](int64_t lane) {
      return x && lane < alive ? x + sequences.row(step, first + lane) * sequences.reals : nullptr;
    });
  }

  // The state before a step.
  LaneRows<const T*> before(int64_t step, int64_t alive, const T* h, const T* h0) const {
    return rows<const T*>([&](int64_t lane) -> const T* {
      const int64_t sequence = first + lane, from = sequences.reverse ? step + 1 : step - 1;
      if (lane >= alive || is_reset(step, lane)) return nullptr;
      if (step == sequences.first_step(sequence)) return h0 + sequence * sequences.reals;
      return h + sequences.row(from, sequence) * sequences.reals;
    });
  }

  // The rows of a tensor (B, N) for lanes whose first or last step, as `ends` returns it, is `step`.
  template <class Pointer>
  LaneRows<Pointer> where(Pointer x, int64_t step, int64_t (GivensSequences::*ends)(int64_t) const) const {
    return rows<Pointer>([&](int64_t lane) {
      const int64_t sequence = first + lane;
      const bool here = x && sequences.length(sequence) && (sequences.*ends)(sequence) == step;
      return here ? x + sequence * sequences.reals : nullptr;
    });
  }
};

template <class T>
int64_t tile_count(const GivensSequences& sequences) {
  return (sequences.batch + Vec<T>::width - 1) / Vec<T>::width;
}

template <class T>
Tile<T> tile_at(const GivensSequences& sequences, int64_t tile) {
  const int64_t first = tile * Vec<T>::width;
  return {sequences, first, smaller(Vec<T>::width, sequences.batch - first)};
}

// Cosines and sines of all angles and phases, computed once for the whole sequence.
template <class T>
struct GivensSinCos {
  T *angles, *phases, *diagonal;

  GivensSinCos(const GivensRecurrence<T>& problem, Workspace<T>& workspace)
      : angles(workspace.alloc(2 * problem.sizes.angles())),
        phases(workspace.alloc(problem.is_complex() ? 2 * problem.sizes.angles() : 0)),
        diagonal(workspace.alloc(problem.is_complex() ? 2 * problem.numbers() : 0)) {}

  void compute(const GivensRecurrence<T>& problem, ThreadContext me) const {
    compute_sincos(problem.angles, problem.sizes.angles(), angles, me);
    if (problem.is_complex()) {
      compute_sincos(problem.phases, problem.sizes.angles(), phases, me);
      compute_sincos(problem.diagonal, problem.numbers(), diagonal, me);
    }
    me.barrier();
  }
};

// Applies F_L ... F_1 D to a tile. A phase rotates the real against the imaginary part of a number.
template <int parts, class T>
void rotate_tile(const GivensRecurrence<T>& problem, const GivensSinCos<T>& sincos, T* tile) {
  using V = Vec<T>;
  constexpr int64_t each = parts * V::width;
  if constexpr (parts == 2)
    for (int64_t i = 0; i < problem.numbers(); ++i)
      rotate(V(sincos.diagonal[2 * i]), V(sincos.diagonal[2 * i + 1]), tile + i * each, tile + i * each + V::width);
  for (int64_t k = 0; k < problem.piece_count; ++k) {
    const GivensPiece piece = problem.pieces[k];
    const GivensLayer layer = layer_of(problem.sizes, piece.layer);
    const int64_t at = 2 * piece.layer * problem.sizes.pairs(), apart = layer.stride * each;
    for (int64_t j = piece.first; j < piece.last; ++j) {
      const V c(sincos.angles[at + 2 * j]), s(sincos.angles[at + 2 * j + 1]);
      T* const a = tile + layer.first(j) * each;
      rotate(c, s, a, a + apart);
      if constexpr (parts == 2) {
        rotate(c, s, a + V::width, a + apart + V::width);
        rotate(V(sincos.phases[at + 2 * j]), V(sincos.phases[at + 2 * j + 1]), a, a + V::width);
      }
    }
  }
}

}  // namespace
}  // namespace rnnkern
