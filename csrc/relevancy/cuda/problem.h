// The arguments of the CUDA kernels of the relevancy recurrence: device pointers and sizes, all checked and allocated
// by the caller. T is float or double. T steps, B samples, n hidden units, G gates; L slots of the buffer and rho of
// the relevant set, kappa = L + rho.
#pragma once

#include <cstdint>

#include "cuda/rows.h"
#include "device/device.h"

namespace rnnkern::relevancy {

using cuda::Rows;

// event mod size, which is never negative, even if the caller's `time` is.
RNNKERN_HOST_DEVICE int64_t slot_of(int64_t event, int64_t size) {
  const int64_t slot = event % size;
  return slot < 0 ? slot + size : slot;
}

struct MemorySizes {
  int64_t slots, relevant_size, buffer_size;  // L, rho, nu

  RNNKERN_HOST_DEVICE int64_t members() const { return slots + relevant_size; }  // kappa
};

// The memory of all samples. Empty slots have id -1 and zeros.
template <class T>
struct Memory : MemorySizes {
  T *buffer, *keys, *buffer_scores;      // (B, L, n); U_a of it; (B, L)
  int64_t* buffer_ids;                   // (B, L)
  T *relevant, *relevant_keys, *scores;  // (B, rho, n); U_a of it; (B, rho)
  int64_t *ids, *time;                   // (B, rho); (B,)
};

// Copies the initial memory to `to`, and fills it with empty slots up to the L of `to`.
template <class T>
struct Remember {
  int64_t batch, hidden, slots;     // slots: L0
  const T *buffer, *buffer_scores;  // (B, L0, n), (B, L0)
  const T *relevant, *scores;       // (B, rho, n), (B, rho)
  const int64_t *buffer_ids, *ids;  // (B, L0), (B, rho)
  Memory<T> to;                     // without keys and time
};

// One unit of one sample per thread: h of a step whose product is known.
template <class T>
struct CellForward {
  int64_t rows, hidden;
  const T *u, *r;      // (rows, G*n); (rows, (G+1)*n): the products with V, and the query, which is not read
  const T* params[1];  // (n,)
  const bool* reset;   // (rows,) or null
  T* c;                // (rows, n): in: the old c, out: the new one
  T *h, *now;          // (rows, n) both: the output, and the operand of U_a
  T *gates, *cells;    // (rows, 4n), (rows, n), for the backward; or null
};

// The attention of one step or of all steps: an event enters the memory, the event that leaves the buffer is screened,
// and the state attends to the memory. `memory` holds the initial state, and finally the last one.
template <class T>
struct AttentionForward {
  Memory<T> memory;
  const T *v, *given;  // (n,); given scores of the events: (T, B), or null
  T mix;
  bool dot;
  T *s, *alpha;    // (rows, n): the output; (rows, kappa), or null for all steps
  int64_t* ids;    // (rows, kappa), or null
  int32_t* taken;  // (rows,), or null: the slot of the relevant set that was overwritten, or -1
};

// One sample per block, one step.
template <class T>
struct StepwiseAttentionForward : AttentionForward<T> {
  int64_t rows, hidden, products;  // products: (G+1)*n
  const T *h, *key, *r;            // (rows, n), (rows, n), (rows, (G+1)*n) with the query in the last n columns
  const bool* reset;               // (rows,) or null
  T* state;                        // (rows, n): s, as the operand of the next products
};

// One sample per block or cluster, all steps. The keys of the memory are not read.
struct PerSequenceForward : AttentionForward<float> {
  Rows rows;
  const float *u, *V, *W_a, *U_a;  // (rows, G*n), ...
  const float* params[1];
  float* packed;             // workspace for packed weights, or null
  float *last_s, *last_c;    // (B, n): in: the initial s and c, out: the final ones
  float *h, *gates, *cells;  // (rows, n); as in CellForward
};

// A value for every event: those of this call, by step, and those of the initial state.
template <class T>
struct Events {
  T *steps, *buffer, *relevant;  // (rows, n), (B, L0, n), (B, rho, n)
};

// The event in a slot: its step or, as a number below -1, an event of the initial state, or none.
constexpr int32_t no_event = -1;
RNNKERN_HOST_DEVICE int32_t first_event(int64_t place) { return int32_t(-2 - place); }

// Reconstructs the contents of the memory in every step, from the slots that were overwritten.
struct History : MemorySizes {
  Rows rows;
  int64_t first_slots;                     // L0
  const int64_t *buffer_ids, *ids, *time;  // of the initial state
  const int32_t* taken;                    // (rows,): the slot overwritten at each step
  int32_t *occupants, *starts;  // (rows, rho): the event in each slot of the relevant set after each step; (rows,): the
                                // last reset up to each step, or -1

  // The event in a slot of the buffer after step t (-1: at the beginning).
  RNNKERN_HOST_DEVICE int32_t buffered(int64_t b, int64_t t, int64_t start, int64_t slot) const {
    const int64_t newest = slot_of(time[b] + t, buffer_size), age = newest - slot + (slot > newest ? buffer_size : 0);
    const int64_t step = t - age;
    if (step >= 0) return step >= start ? int32_t(step) : no_event;
    return start < 0 && slot < first_slots && buffer_ids[b * first_slots + slot] >= 0 ? first_event(slot) : no_event;
  }
  RNNKERN_HOST_DEVICE int32_t first_relevant(int64_t b, int64_t slot) const {
    return ids[b * relevant_size + slot] >= 0 ? first_event(first_slots + slot) : no_event;
  }

  // The event in any slot after step t.
  RNNKERN_HOST_DEVICE int32_t event(int64_t b, int64_t t, int64_t slot) const {
    const int64_t row = t < 0 ? 0 : rows.offset(t) + b;
    if (slot < slots) return buffered(b, t, t < 0 ? -1 : starts[row], slot);
    return t < 0 ? first_relevant(b, slot - slots) : occupants[row * relevant_size + slot - slots];
  }
  // The slot that the event of step t takes.
  RNNKERN_HOST_DEVICE int64_t taken_by(int64_t b, int64_t t) const {
    const int64_t wanted = slot_of(time[b] + t, buffer_size);
    return wanted < slots ? wanted : slots - 1;  // below L for a valid state
  }

  template <class T>
  RNNKERN_HOST_DEVICE T* at(const Events<T>& events, int64_t b, int32_t event) const {
    if (event >= 0) return events.steps + (rows.offset(event) + b) * rows.hidden;
    const int64_t place = -2 - int64_t(event);
    return place < first_slots ? events.buffer + (b * first_slots + place) * rows.hidden
                               : events.relevant + (b * relevant_size + place - first_slots) * rows.hidden;
  }
};

// Initialises dh of the events in the final memory with the gradients of their slots.
template <class T>
struct Leave {
  History history;
  const T *grad_buffer, *grad_relevant;  // (B, L, n), (B, rho, n), or null
  Events<T> dh;
};

// One sample per block: the backward of step t through the attention. It completes the gradients of the event of step
// t, except the part of dh that comes through its key.
template <class T>
struct StepwiseAttentionBackward {
  History history;
  int64_t t, alive;
  Events<const T> h, keys;
  Events<T> dh, dkeys;           // added to
  const T *v, *grad_h, *grad_s;  // (n,); (rows, n) or null both
  const T* alpha;                // (rows, kappa), or null
  T mix;
  bool dot;
  T *workspace, *dalpha;  // (B, kappa) both: alpha, recomputed if it was not saved; the gradient of the scores
  T* ds;     // (B, n): in: gradient of s after this step, without grad_s; out: gradient of the attention's sum
  T* query;  // (rows, n): in: the query, out: its gradient
  T* dv;     // (B, n), added to
};

// One unit of one sample per thread: the backward of step t through the cell.
template <class T>
struct CellBackward {
  Rows rows;
  int64_t t, alive;
  const T* params[1];
  const T *h, *dh, *dquery;     // (rows, n) each
  const T* through_key;         // (alive, n): U_a^T dkey
  const T *gates, *cells, *c0;  // (rows, 4n), (rows, n), (B, n): of an LSTM
  T* dc;                        // (B, n): in: gradient of c after the step; out: before it
  T *du, *step;                 // (rows, G*n); (alive, (G+1)*n): with the query's, zero after a reset
  T* dparams[1];                // (B, n), added to
};

// One sample per block or cluster, all steps: `t`, `alive`, `through_key` and `step` are not read.
struct PerSequenceBackward {
  StepwiseAttentionBackward<float> attend;
  CellBackward<float> cell;
  const float *V, *W_a, *U_a;
  float* packed;  // workspace for packed weights, or null
};

// Packs weights in the order in which the kernels with one sample per block read them.
struct Pack {
  int64_t n;
  bool transposed;
  const float *V, *W_a, *U_a;
  int gates;
  float* to;
};

}  // namespace rnnkern::relevancy
