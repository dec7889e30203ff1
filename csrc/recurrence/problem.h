// What a recurrence kernel is told: pointers, sizes and strides, all checked and allocated by the caller.
#pragma once

#include <cstdint>

#include "common/team.h"

namespace rnnkern {

// The sequence: which rows of the (rows, columns) tensors belong to step t. Row b of a step is sequence b.
struct Steps {
  int64_t count, batch;        // T, B
  const int64_t* batch_sizes;  // (T,), or null when every step has B rows
  const int64_t* offsets;      // (T,), the first row of each step, or null
  bool reverse;

  int64_t rows(int64_t t) const { return batch_sizes ? batch_sizes[t] : batch; }
  int64_t offset(int64_t t) const { return offsets ? offsets[t] : t * batch; }
  // The k-th step in processing order, and the step whose state enters step t (outside 0..T-1 for the first).
  int64_t at(int64_t k) const { return reverse ? count - 1 - k : k; }
  int64_t before(int64_t t) const { return reverse ? t + 1 : t - 1; }
  int64_t total() const { return count ? offset(count - 1) + rows(count - 1) : 0; }
};

template <class T>
struct Weights {
  int64_t hidden, heads;  // H, K; D = H / K
  const T* R;             // (K, G*D, D); K = 1 is the dense (G*H, H)
  const T* bias;          // (G*H,) or null
  const T* params[2];     // (H,) each
};

constexpr int64_t zeros_size(int64_t hidden) { return hidden < 64 ? 64 : hidden; }

template <class T>
struct Forward {
  Steps steps;
  Weights<T> weights;
  bool split_hidden;  // threads share out hidden units and meet at every step, or share out sequences
  const T* u;         // (rows, G*H)
  const T* state[2];  // (B, H)
  const bool* reset;  // (T, B) or null
  T* h;               // (rows, H)
  T* final_state[2];  // (B, H)
  T* cell_states;     // c of every step (rows, H), or null
  T* saved;           // (rows, saved*H) when keep_saved; else null or, for a second product, room for one step
  bool keep_saved;
  T *packed, *operand, *zeros;  // workspace: packed_size(), (B, H) for a second product, zeros_size() zeros
};

template <class T>
struct Backward {
  Steps steps;
  Weights<T> weights;
  bool split_hidden;
  const T* state[2];    // (B, H)
  const bool* reset;    // (T, B) or null
  const T* grad_scale;  // element (t, b) at t*scale_step + b*scale_row, or null
  int64_t scale_step, scale_row;
  const T *h, *cell_states, *saved;
  const T* grad_h;         // (rows, H) or null
  const T* grad_state[2];  // (B, H), or null
  T *du, *dr;              // (rows, G*H): gradients of u and of r; one buffer where they are one
  T* dstate[2];            // (B, H)
  T* dparams[2];           // (B, H), to be summed over B
  T* dbias;                // (threads, 2, G*H) zeros, to be summed over threads: one row sums a step, one all steps
  T* dR;                   // like R, or null where it is not wanted
  T* dR_parts;             // workspace for it: gradient_size() elements, for each thread when sequences are shared out
  T* operand;              // (rows, H), workspace for dR: the operand of a second product
  T *packed, *zeros;       // workspace as above
};

// One SIMD level's kernels for one dtype; the arrays are in the order of cells/list.h.
template <class T>
struct Kernels {
  // Elements of workspace: for R, packed in either direction, and for one thread's part of dR.
  int64_t (*packed_size)(int64_t hidden, int64_t heads, int gates);
  int64_t (*gradient_size)(int64_t hidden, int64_t heads, int gates);
  void (*const* forward)(const Forward<T>&, Member);
  void (*const* backward)(const Backward<T>&, Member);
};

struct Level {
  Kernels<float> f32;
  Kernels<double> f64;
};

Level level_plain();
#if defined(__x86_64__)
Level level_avx2();
Level level_avx512();
#endif

}  // namespace rnnkern
