// The arguments of the kernels of the relevancy recurrence: pointers and sizes, all checked and allocated by the
// caller. The row of sample b at step t is row(t) + b; the sample is alive in the first length(b) steps.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"
#include "relevancy/problem.h"

namespace rnnkern {

// An event of a sample's memory, with its score and id, which is negative if the slot is empty.
template <class T, class Id>
struct RelevancySlot {
  Id* id;
  T *event, *score;
};

// The state that is carried between calls (RelevancyState in rnnkern/reference/_relevancy.py). `c` may be null.
template <class T, class Id>
struct RelevancyMemory {
  T *s, *c;
  T *buffer, *buffer_scores;
  Id* buffer_ids;
  T *relevant, *scores;
  Id *ids, *time;

  // Slot j of sample b, of `slots` in the buffer and then `size` in the relevant set, for n units.
  RelevancySlot<T, Id> slot(int64_t b, int64_t j, int64_t slots, int64_t size, int64_t n) const {
    const int64_t in_buffer = b * slots + j, in_set = b * size + j - slots;
    if (j < slots) return {buffer_ids + in_buffer, buffer + in_buffer * n, buffer_scores + in_buffer};
    return {ids + in_set, relevant + in_set * n, scores + in_set};
  }
};

template <class T>
struct RelevancyProblem : RelevancySizes {
  T mix;
  const T *V, *W_a, *U_a, *v, *params;
  RelevancyMemory<const T, const int64_t> first;
  T* workspace;
};

template <class T>
struct RelevancyForward : RelevancyProblem<T> {
  const T* u;
  const T* given;  // (steps, batch) scores, or null: scores are computed from the attention
  T *h, *s;
  RelevancyMemory<T, int64_t> last;
  T* map;          // (rows, kappa) or null: alpha, averaged over the heads
  T* alpha;        // (rows, heads, kappa) or null: for the backward
  int64_t* ids;    // (rows, kappa) or null
  int32_t* taken;  // (rows,) or null: the slot of the relevant set that was overwritten, or -1
  T *gates, *c;    // (rows, saved, hidden), (rows, hidden), or null
};

template <class T>
struct RelevancyBackward : RelevancyProblem<T> {
  const T *h, *s, *alpha;  // alpha: (rows, heads, kappa), or null if no event leaves the buffer
  const int32_t* taken;
  const T *gates, *c;
  const T *grad_h, *grad_s;                                                    // or null
  const T *grad_last_s, *grad_last_c, *grad_last_buffer, *grad_last_relevant;  // or all null
  T *du, *dV, *dW_a, *dU_a, *dv, *dparams;
  T *ds, *dc, *dbuffer, *drelevant;
  T* dscores;  // (steps, batch) or null
};

// Indexed by the position of the cell in RNNKERN_RELEVANCY_CELLS.
template <class T>
struct RelevancyKernels {
  const Kernel<RelevancyForward<T>>* forward;
  const Kernel<RelevancyBackward<T>>* backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static RelevancyKernels at();
};

}  // namespace rnnkern
