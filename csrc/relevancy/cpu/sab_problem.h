// What a call of sab_recurrence is to its kernels, in pointers and sizes.
#pragma once

#include <cstdint>

#include "common/simd_level.h"
#include "common/team.h"

namespace rnnkern {

constexpr int sab_tile = 4;  // samples that one thread takes through time together

// A matrix (depth, columns) as a product reads it.
template <class T>
struct SabPacked {
  T* panels = nullptr;
  int64_t depth = 0, columns = 0;
};

// T steps, B samples, n units. Rows of packed tensors stand step by step; sample b's at step t is row(t) + b.
template <class T>
struct SabCall {
  int64_t batch, size, width;  // width: of the mlp's hidden layer, 0 for separable scores
  int64_t top_k, every, truncation, old_slots, slots;
  int64_t steps;
  const int64_t *offsets, *lengths;  // as RowLayout has them
  const int64_t* time;
  const bool* reset;                   // (T, B) or nothing
  const T *u, *bias, *h, *c, *memory;  // memory (B, old_slots, n)
  const T* w;                          // of the query's half and of the memory's, or of the hidden layer
  const T* zeros;                      // n
  SabPacked<T> R, query, key;          // h R^T; h Wq^T, m Wm^T of the mlp
  T* workspace;

  int64_t key_width() const { return width ? width : 1; }
  int64_t row(int64_t step) const { return offsets ? offsets[step] : step * batch; }
  int64_t length(int64_t sample) const { return lengths ? lengths[sample] : steps; }
};

template <class T>
struct SabForward : SabCall<T> {
  T *out, *last_h, *last_c, *last_memory, *weights, *sums, *all_c;  // sums and all_c or nothing
  int64_t* last_time;
  int32_t* attended;
};

template <class T>
struct SabBackward : SabCall<T> {
  const T *grad_out, *grad_h, *grad_c, *grad_memory;  // or nothing
  const T *out, *weights, *sums, *all_c;
  const int32_t* attended;
  SabPacked<T> R_back, query_back, key_back;  // du R, dq Wq, dkey Wm
  T* du;                                      // in: R h of each row; out: the gradient of u
  T *d_h, *d_c, *d_memory;
  T* d_w;                            // (B, as w), zero at first
  T *d_query, *provisional, *d_key;  // of the mlp: (rows, width), (rows, n), (rows and then B old_slots, width), zeros
  int64_t first_key;                 // rows
};

// PartialSums are samples, which no member shares with another.
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
