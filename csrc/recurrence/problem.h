// What a recurrence kernel is told: pointers, sizes and strides, all checked and allocated by the caller. S is how the
// rows of a sequence are stored, T = Arithmetic<S> what is computed in; whatever does not grow with the sequence is in
// T.
#pragma once

#include <cstdint>

#include "common/team.h"
#include "device/types.h"

namespace rnnkern {

using device::Arithmetic;

template <class S>
constexpr bool narrow = sizeof(S) < sizeof(Arithmetic<S>);

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

constexpr int gradient_rows = 128;  // of a block of dR: 64 columns of h for all of them fit the first-level cache

constexpr int64_t zeros_size(int64_t hidden) { return hidden < 64 ? 64 : hidden; }

template <class S>
struct Forward {
  using T = Arithmetic<S>;

  Steps steps;
  Weights<T> weights;
  bool split_hidden;  // threads share out hidden units and meet at every step, or share out sequences
  const S* u;         // (rows, G*H)
  const T* state[2];  // (B, H)
  const bool* reset;  // (T, B) or null
  S* h;               // (rows, H)
  T* carried;         // workspace (2, B, H) for h between steps where S is narrow, else null: it is read from h
  T* final_state[2];  // (B, H)
  T* cell_states;     // c of every step (rows, H), or null
  T* saved;           // (rows, saved*H) when keep_saved; else null or, for a second product, room for one step
  bool keep_saved;
  T *packed, *operand, *zeros;  // workspace: packed_size(), (B, H) for a second product, zeros_size() zeros
};

template <class S>
struct Backward {
  using T = Arithmetic<S>;

  Steps steps;
  Weights<T> weights;
  bool split_hidden;
  const S* h0;          // (B, H)
  const T* c0;          // (B, H), or null
  const bool* reset;    // (T, B) or null
  const T* grad_scale;  // element (t, b) at t*scale_step + b*scale_row, or null
  int64_t scale_step, scale_row;
  const S* h;  // (rows, H)
  const T *cell_states, *saved;
  const S* grad_h;         // (rows, H) or null
  const T* grad_state[2];  // (B, H), or null
  S* du;                   // (rows, G*H)
  T* dr;  // the gradient of r (rows, G*H), du itself where both are one; where S is narrow, of the last steps alone
  int64_t slots;      // those steps: dr and operand are then (slots, B, .), at least two, which members may be apart
  T* dstate[2];       // (B, H)
  T* dparams[2];      // (B, H), to be summed over B
  T* dbias;           // (threads, 2, G*H) zeros, to be summed over threads: one row sums a step, one all steps
  T* dR;              // like R, or null where it is not wanted
  T* dR_parts;        // workspace for it: gradient_size() elements, for each thread when sequences are shared out
  T* operand;         // workspace for dR, (rows, H) or (slots, B, H): the operand of a second product
  T *packed, *zeros;  // workspace as above
};

// One SIMD level's kernels for one dtype; the arrays are in the order of cells/list.h.
template <class S>
struct Kernels {
  // Elements of workspace: for R, packed in either direction, and for one thread's part of dR.
  int64_t (*packed_size)(int64_t hidden, int64_t heads, int gates);
  int64_t (*gradient_size)(int64_t hidden, int64_t heads, int gates);
  void (*const* forward)(const Forward<S>&, Member);
  void (*const* backward)(const Backward<S>&, Member);
};

struct Level {
  Kernels<float> f32;
  Kernels<double> f64;
  Kernels<device::bfloat16> bf16;
  Kernels<device::float16> f16;
};

Level level_plain();
#if defined(__x86_64__)
Level level_avx2();
Level level_avx512();
#endif

}  // namespace rnnkern
