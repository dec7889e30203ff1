// What a kernel of the relevancy recurrence is told: pointers and sizes, all checked and allocated by the caller. The
// row of a step and a sample is row(step) + sample; a sample is alive for the first length(sample) steps.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

// What is carried from call to call (RelevancyState in rnnkern/reference/_relevancy.py). `c` may be null.
template <class T, class Id>
struct RelevancyMemory {
  T *s, *c;
  T *buffer, *buffer_scores;
  Id* buffer_ids;
  T *relevant, *scores;
  Id *ids, *time;
};

template <class T>
struct RelevancyProblem {
  int64_t steps, batch, hidden;
  int64_t buffer_size, slots, first_slots, relevant;  // slots of the buffer after the call and before it, and of R
  T mix;
  bool dot;
  const int64_t *offsets, *lengths;  // as RowLayout has them
  const bool* reset;                 // (steps, batch) or null
  const T *V, *W_a, *U_a, *v, *params;
  RelevancyMemory<const T, const int64_t> first;
  T* workspace;

  int64_t kappa() const { return slots + relevant; }
  int64_t row(int64_t step) const { return offsets ? offsets[step] : step * batch; }
  int64_t length(int64_t sample) const { return lengths ? lengths[sample] : steps; }
};

template <class T>
struct RelevancyForward : RelevancyProblem<T> {
  const T* u;
  const T* given;  // (steps, batch), or null: then attention gives the scores
  T *h, *s;
  RelevancyMemory<T, int64_t> last;
  T *map, *alpha;  // (rows, kappa) each, or null: to return, to keep
  int64_t* ids;    // (rows, kappa) or null
  int32_t* taken;  // (rows,) or null: the slot of R that was overwritten, or -1
  T *gates, *c;    // (rows, saved, hidden), (rows, hidden), or null
};

template <class T>
struct RelevancyBackward : RelevancyProblem<T> {
  const T *h, *s, *alpha;  // alpha: null where no event leaves the buffer
  const int32_t* taken;
  const T *gates, *c;
  const T *grad_h, *grad_s;                                                    // or null
  const T *grad_last_s, *grad_last_c, *grad_last_buffer, *grad_last_relevant;  // or all null
  T *du, *dV, *dW_a, *dU_a, *dv, *dparams;
  T *ds, *dc, *dbuffer, *drelevant;
};

// By the place of the cell in RNNKERN_RELEVANCY_CELLS.
template <class T>
struct RelevancyKernels {
  const Kernel<RelevancyForward<T>>* forward;
  const Kernel<RelevancyBackward<T>>* backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static RelevancyKernels at();
};

}  // namespace rnnkern
