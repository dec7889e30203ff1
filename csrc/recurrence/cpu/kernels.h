// The recurrence over time for one type of factors at one SIMD level, forward and backward: once for any cell, through
// its strip functions, and once for each of the most used cells, with inlined equations. A thread runs the whole
// sequence and synchronizes with the others only if hidden units are divided among threads. Each type has its own level
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

// The inlined cells. Calling strip functions costs them 2 to 8 % of a forward pass in float32 (AVX2).
template <class T, class Cell>
constexpr bool is_inline = std::is_same_v<T, float> && (std::is_same_v<Cell, Tanh> || std::is_same_v<Cell, Relu> ||
                                                        std::is_same_v<Cell, Lstm> || std::is_same_v<Cell, Gru>);

// `Cell` is void for cells compiled at run time.
template <class F, class Cell>
constexpr Kernels<Arithmetic<F>> kernels_of() {
  using T = Arithmetic<F>;
  using Equations = std::conditional_t<is_inline<T, Cell>, InlineCell<T, Cell>, StripCell<T>>;
  return {
      {forward<F, Equations>, forward_workspace<F>}, forward_packs<F>, {backward<F, Equations>, backward_workspace<F>}};
}

}  // namespace

template <class F, SimdLevel>
Kernels<Arithmetic<F>> kernels_at(int cell_id) {
#define RNNKERN_KERNELS(Cell) kernels_of<F, Cell>(),
  static constexpr Kernels<Arithmetic<F>> all[] = {RNNKERN_ALL_CELLS(RNNKERN_KERNELS) kernels_of<F, void>()};
#undef RNNKERN_KERNELS
  return all[cell_id];
}

}  // namespace rnnkern
