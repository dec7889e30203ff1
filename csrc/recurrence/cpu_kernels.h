// The recurrence over time for one storage type at one SIMD level: the engine, forward and backward, for any cell over
// its strips, and compiled once more for each of the cells that are used most, with their equations inline. Included
// once per level source; a thread runs the whole sequence and meets its team at barriers only when hidden units are
// shared out.
#pragma once

#include "cells/list.h"
#include "recurrence/cpu_backward.h"
#include "recurrence/cpu_cell.h"
#include "recurrence/cpu_forward.h"

namespace rnnkern {
namespace {

// Of these cells calls of strips cost 2 to 8 % of a forward in float32 (AVX2), and nothing that was measured where 16
// bits are storage alone.
template <class S, class Cell>
constexpr bool is_inline =
    (std::is_same_v<S, float> || dots<S>) && (std::is_same_v<Cell, Tanh> || std::is_same_v<Cell, Relu> ||
                                              std::is_same_v<Cell, Lstm> || std::is_same_v<Cell, Gru>);

template <class S, class Cell>
void inline_forward(const Forward<S>& p, Member me) {
  forward(p, me, InlineCell<Arithmetic<S>, Cell>());
}

template <class S, class Cell>
void inline_backward(const Backward<S>& p, Member me) {
  backward(p, me, InlineCell<Arithmetic<S>, Cell>());
}

template <class S>
void any_forward(const Forward<S>& p, Member me) {
  forward(p, me, StripCell<Arithmetic<S>>{p.cell, p.strips});
}

template <class S>
void any_backward(const Backward<S>& p, Member me) {
  backward(p, me, StripCell<Arithmetic<S>>{p.cell, p.strips});
}

template <class S, class Cell>
constexpr auto forward_of() -> void (*)(const Forward<S>&, Member) {
  if constexpr (is_inline<S, Cell>)
    return inline_forward<S, Cell>;
  else
    return nullptr;
}

template <class S, class Cell>
constexpr auto backward_of() -> void (*)(const Backward<S>&, Member) {
  if constexpr (is_inline<S, Cell>)
    return inline_backward<S, Cell>;
  else
    return nullptr;
}

template <class S>
Kernels<S> kernels() {
#define RNNKERN_FORWARD(Cell) forward_of<S, Cell>(),
#define RNNKERN_BACKWARD(Cell) backward_of<S, Cell>(),
  static void (*const all_forward[])(const Forward<S>&, Member) = {RNNKERN_ALL_CELLS(RNNKERN_FORWARD)};
  static void (*const all_backward[])(const Backward<S>&, Member) = {RNNKERN_ALL_CELLS(RNNKERN_BACKWARD)};
  return {any_forward<S>, any_backward<S>, all_forward, all_backward, forward_room<S>, backward_room<S>};
}

}  // namespace
}  // namespace rnnkern
