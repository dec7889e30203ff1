// The recurrence over time for one storage type at one SIMD level: the engine, forward and backward, for any cell over
// its strips, and compiled once more for each of the cells that are used most, with their equations inline. A thread
// runs the whole sequence and meets its team at barriers only when hidden units are shared out. Each storage type has a
// level source of its own, which balances the build.
#pragma once

#include "recurrence/cpu/includes.h"

#include "common/simd_target.h"

#include "cells/list.h"
#include "recurrence/cpu/backward.h"
#include "recurrence/cpu/cell.h"
#include "recurrence/cpu/forward.h"

namespace rnnkern {
namespace {

// Of these cells calls of strips cost 2 to 8 % of a forward in float32 (AVX2), and nothing that was measured where 16
// bits are storage alone.
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

// `Cell` is void of those that were compiled at run time.
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
Kernels<S> Kernels<S>::at(int place) {
#define RNNKERN_KERNELS(Cell) kernels_of<S, Cell>(),
  static constexpr Kernels all[] = {RNNKERN_ALL_CELLS(RNNKERN_KERNELS) kernels_of<S, void>()};
#undef RNNKERN_KERNELS
  return all[place];
}

}  // namespace rnnkern
