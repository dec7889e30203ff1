// The recurrence over time for one storage type at one SIMD level, forward and backward: once for any cell, through its
// strip functions, and once for each of the most used cells, with inlined equations. A thread runs the whole sequence
// and synchronizes with the others only if hidden units are divided among threads. Each storage type has its own level
// source, which balances the build.
#pragma once

#include "recurrence/cpu/includes.h"

#include "common/simd_target.h"

#include "cells/list.h"
#include "recurrence/cpu/backward.h"
#include "recurrence/cpu/cell.h"
#include "recurrence/cpu/forward.h"

namespace rnnkern {
namespace {

// The inlined cells. Calling strip functions costs them 2 to 8 % of a forward pass in float32 (AVX2), and nothing
// measurable if 16-bit types are only stored.
template <class S, class Cell>
constexpr bool is_inline =
    (std::is_same_v<S, float> || has_bf16_dot<S>) && (std::is_same_v<Cell, Tanh> || std::is_same_v<Cell, Relu> ||
                                                      std::is_same_v<Cell, Lstm> || std::is_same_v<Cell, Gru>);

template <class S>
void any_forward(const Forward<S>& p, ThreadContext me) {
  forward(p, me, StripCell<Arithmetic<S>>{p.cell, p.strips});
}

template <class S>
void any_backward(const Backward<S>& p, ThreadContext me) {
  backward(p, me, StripCell<Arithmetic<S>>{p.cell, p.strips});
}

// `Cell` is void for cells compiled at run time.
template <class S, class Cell>
constexpr Kernels<S> kernels_of() {
  if constexpr (is_inline<S, Cell>) {
    using Equations = InlineCell<Arithmetic<S>, Cell>;
    return {{[](const Forward<S>& p, ThreadContext me) { forward(p, me, Equations()); }, forward_workspace<S>},
            {[](const Backward<S>& p, ThreadContext me) { backward(p, me, Equations()); }, backward_workspace<S>}};
  } else {
    return {{any_forward<S>, forward_workspace<S>}, {any_backward<S>, backward_workspace<S>}};
  }
}

}  // namespace

template <class S>
template <SimdLevel>
Kernels<S> Kernels<S>::at(int cell_id) {
#define RNNKERN_KERNELS(Cell) kernels_of<S, Cell>(),
  static constexpr Kernels all[] = {RNNKERN_ALL_CELLS(RNNKERN_KERNELS) kernels_of<S, void>()};
#undef RNNKERN_KERNELS
  return all[cell_id];
}

}  // namespace rnnkern
