// The recurrence over time for one SIMD level: forward and backward of every cell. Included once per level file, which
// says the vector's width; a thread runs the whole sequence and meets its team at barriers only when hidden units are
// shared out.
#pragma once

#include "common/simd.h"

#include "cells/list.h"
#include "recurrence/cpu_storage.h"

#include "recurrence/cpu_product.h"
#include "recurrence/cpu_sequence.h"
#include "recurrence/cpu_weight_gradient.h"

#include "recurrence/cpu_backward.h"
#include "recurrence/cpu_forward.h"

namespace rnnkern {
namespace {

template <class T>
int64_t packed_size(int64_t hidden, int64_t heads, int gates) {
  const int64_t d = hidden / heads, width = Vec<T>::width;
  return heads * ((d + width - 1) / width * width) * gates * (d + 1);
}

template <class T>
int64_t gradient_size(int64_t hidden, int64_t heads, int gates) {
  return gates * hidden * padded_columns<T>(hidden, heads);
}

template <class S>
Kernels<S> kernels() {
#define RNNKERN_FORWARD(Cell) forward<S, Cell>,
#define RNNKERN_BACKWARD(Cell) backward<S, Cell>,
  static void (*const all_forward[])(const Forward<S>&, Member) = {RNNKERN_CELLS(RNNKERN_FORWARD)};
  static void (*const all_backward[])(const Backward<S>&, Member) = {RNNKERN_CELLS(RNNKERN_BACKWARD)};
  return {packed_size<Arithmetic<S>>, gradient_size<Arithmetic<S>>, all_forward, all_backward};
}

}  // namespace
}  // namespace rnnkern
