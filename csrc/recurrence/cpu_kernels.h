// The recurrence over time for one SIMD level: forward and backward of every cell. Included once per level file, which
// says the vector's width; a thread runs the whole sequence and meets its team at barriers only when hidden units are
// shared out.
#pragma once

#include "cells/list.h"
#include "common/simd.h"
#include "common/simd_math.h"
#include "cpu/factors.h"
#include "cpu/gemm.h"
#include "cpu/room.h"
#include "cpu/storage.h"
#include "cpu/vectors.h"
#include "cpu/weight_gradient.h"

#include "recurrence/cpu_product.h"
#include "recurrence/cpu_sequence.h"

#include "recurrence/cpu_noise.h"
#include "recurrence/cpu_normalised.h"
#include "recurrence/cpu_step.h"

#include "recurrence/cpu_backward.h"
#include "recurrence/cpu_forward.h"

namespace rnnkern {
namespace {

template <class S>
Kernels<S> kernels() {
#define RNNKERN_FORWARD(Cell) forward<S, Cell>,
#define RNNKERN_BACKWARD(Cell) backward<S, Cell>,
#define RNNKERN_FORWARD_ROOM(Cell) forward_room<S, Cell>,
#define RNNKERN_BACKWARD_ROOM(Cell) backward_room<S, Cell>,
  static void (*const all_forward[])(const Forward<S>&, Member) = {RNNKERN_ALL_CELLS(RNNKERN_FORWARD)};
  static void (*const all_backward[])(const Backward<S>&, Member) = {RNNKERN_ALL_CELLS(RNNKERN_BACKWARD)};
  static int64_t (*const forward_rooms[])(const Forward<S>&, int) = {RNNKERN_ALL_CELLS(RNNKERN_FORWARD_ROOM)};
  static int64_t (*const backward_rooms[])(const Backward<S>&, int) = {RNNKERN_ALL_CELLS(RNNKERN_BACKWARD_ROOM)};
  return {all_forward, all_backward, forward_rooms, backward_rooms};
}

}  // namespace
}  // namespace rnnkern
