// The arguments of the kernels of sab_recurrence: pointers and sizes.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

constexpr int sab_tile = 4;  // samples that a thread processes together

// A matrix (depth, columns), packed for products.
template <class T>
struct SabPacked {
  T* panels = nullptr;
  int64_t depth = 0, columns = 0;
};

// T steps, B samples, n units. The row of sample b at step t is row(t) + b.
struct SabSizes {
  int64_t steps, batch, size, width;  // size: n; width: of the mlp's hidden layer, 0 for separable scores
  int64_t top_k, every, truncation, old_slots, slots;  // slots of the memory before and after the call
  const int64_t *offsets, *lengths;                    // as in RowLayout
  const int64_t* time;                                 // (B,): steps of each sample before the call
  const bool* reset;                                   // (T, B) or null

  int64_t key_width() const { return width ? width : 1; }
  int64_t row(int64_t step) const { return offsets ? offsets[step] : step * batch; }
  int64_t length(int64_t sample) const { return lengths ? lengths[sample] : steps; }
  bool resets(int64_t step, int64_t sample) const { return reset && reset[step * batch + sample]; }
};

template <class T>
struct SabCall : SabSizes {
  const T *u, *bias, *h, *c, *memory;  // bias may be null; memory (B, old_slots, n)
  const T* w;                          // separable: for the query (n), then for memories (n); mlp: for the hidden layer
  const T* zeros;                      // (n,)
  SabPacked<T> R, query, key;          // h R^T; for the mlp h Wq^T and m Wm^T
  T* workspace;
};

template <class T>
struct SabForward : SabCall<T> {
  T *out, *last_h, *last_c, *last_memory, *weights, *sums, *all_c;  // sums and all_c may be null
  int64_t* last_time;
  int32_t* attended;
};

template <class T>
struct SabBackward : SabCall<T> {
  const T *grad_out, *grad_h, *grad_c, *grad_memory;  // may be null
  const T *out, *weights, *sums, *all_c;
  const int32_t* attended;
  SabPacked<T> R_back, query_back, key_back;  // du R, dq Wq, dkey Wm
  T* du;                                      // in: R h of each row; out: the gradient of u
  T *d_h, *d_c, *d_memory;
  T* d_w;                            // (B, sizes of w), zero on entry
  T *d_query, *provisional, *d_key;  // for the mlp: (rows, width), (rows, n), (rows and then B old_slots, width); zeros
  int64_t first_key;                 // the row of d_key where those of `memory` begin
};

// Parts are samples, which are independent of each other.
template <class T>
struct SabKernels {
  int64_t (*packed_size)(int64_t depth, int64_t columns);
  void (*pack)(const T* matrix, int64_t depth, int64_t columns, T* panels);
  KernelOfParts<SabForward<T>> forward;
  KernelOfParts<SabBackward<T>> backward;

  // Defined by the level source, once per SIMD level.
  template <SimdLevel>
  static SabKernels at();
};

}  // namespace rnnkern
