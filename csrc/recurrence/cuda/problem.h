// What the CUDA kernels of the recurrence are told: device pointers and sizes, all checked and allocated by the caller.
// S is how tensors are stored, A = Arithmetic<S> what is computed in. T steps, B sequences, K heads of D = H / K units,
// G gates of u and Q of R h.
#pragma once

#include <cstdint>

#include "cells/strip.h"
#include "device/device.h"

namespace rnnkern {

using device::Arithmetic;
using device::widen;

// Which rows of the (rows, columns) tensors belong to step t, and which of them are alive.
struct Sequence {
  int64_t count, batch, hidden, heads;  // T, B, H, K
  const int64_t* offsets;               // (T + 1,), the first row of each step, or null when every step has B rows
  const int64_t* lengths;               // (B,), or null
  const bool* reset;                    // (T, B), or null
  bool reverse;

  RNNKERN_HOST_DEVICE int64_t head_size() const { return hidden / heads; }
  RNNKERN_HOST_DEVICE int64_t offset(int64_t t) const { return offsets ? offsets[t] : t * batch; }
  RNNKERN_HOST_DEVICE int64_t length(int64_t b) const { return b >= batch ? 0 : lengths ? lengths[b] : count; }
  RNNKERN_HOST_DEVICE bool resets(int64_t t, int64_t b) const { return reset && reset[t * batch + b]; }
  // The step whose state enters step t of a sequence of this length, or -1 for the initial state.
  RNNKERN_HOST_DEVICE int64_t before(int64_t t, int64_t length) const {
    return !reverse ? t - 1 : t + 1 < length ? t + 1 : -1;
  }
};

template <class S>
struct BlockForward {
  Sequence sequence;
  const S *u, *R, *bias;              // (rows, G*H); (K, Q*D, D); (Q*H,) or null
  const S* params[most_params];       // (H,) each
  const S* state[most_states];        // (B, H)
  S* h;                               // (rows, H)
  S* final_state[most_states];        // (B, H)
  Arithmetic<S>* cells[most_states];  // but of the first: the state of every step (rows, H), or null
  Arithmetic<S>* saved;               // (rows, saved*H), or null
};

// The steps first..first+steps-1; arrays marked "here" begin at the first row of `first`.
template <class S>
struct BlockBackward {
  Sequence sequence;
  int64_t first, steps, rows;  // rows: of these steps together
  const S* R;                  // (K, Q*D, D)
  const S* params[most_params];
  const S* cell_state[most_states];         // but of the first: the initial state (B, H)
  const S* h;                               // (all rows, H)
  const Arithmetic<S>* cells[most_states];  // (all rows, H)
  const Arithmetic<S>* saved;               // here (rows, saved*H)
  const S* previous;                        // here (K, rows, D): h before each step, zero where it was reset
  const S* grad_h;                          // (all rows, H), or null
  const S* grad_scale;                      // element (t, b) at t*scale_step + b*scale_row, or null
  int64_t scale_step, scale_row;
  Arithmetic<S>* carry[most_states];    // (B, H): the gradient of the state after these steps, in; before them, out
  Arithmetic<S>* dparams[most_params];  // (B, H), added to
  S* du;                                // (all rows, G*H)
  S* dr;                                // here (K, rows, Q*D), or null where du serves
  S* operand;                           // here (K, rows, D), for cells with a second product
};

// How tensors are stored that R multiplies as M: float as float or tfloat32, else M.
template <class M>
struct StoredOf {
  using type = M;
};
template <>
struct StoredOf<device::tfloat32> {
  using type = float;
};
template <class M>
using Stored = typename StoredOf<M>::type;

// What a cluster kernel is told beside what a block kernel is, of which one head: of the sequences each cluster has so
// many; the last has what is left.
template <class BlockProblem>
struct OnCluster : BlockProblem {
  int64_t columns;
};
template <class S>
using ClusterForward = OnCluster<BlockForward<S>>;
template <class S>
using ClusterBackward = OnCluster<BlockBackward<S>>;

// The blocks of a group of a grid kernel, its members, share out the units of a dense R, and keep their slices for all
// steps; groups have copies of R, and share out the batch by 8 columns.
struct GridSize {
  int members = 0, groups = 0;
  int sets = 0;  // of 8 columns, of the group that has most

  RNNKERN_HOST_DEVICE int blocks() const { return members * groups; }
};

constexpr int grid_columns = 8, most_grid_sets = 8;

// Units of a member in elements of this many bytes: 32 bytes of a column.
constexpr int units_of_member(int bytes) { return 32 / bytes; }

template <class BlockProblem>
struct OnGrid {
  BlockProblem call;  // one head
  GridSize size;
  device::Word16* words;  // zero
};
template <class S>
using GridForward = OnGrid<BlockForward<S>>;
template <class S>
using GridBackward = OnGrid<BlockBackward<S>>;

// Zoneout and dropout at a step.
template <class A>
struct StepNoise {
  A zoneout[most_states];       // the rates of the state's tensors
  uint32_t below[most_states];  // their thresholds
  const int64_t* seed;          // on the device; null: zoneout takes the mean
  int64_t t;                    // the step
  const A* mask;                // (B, H): by which h is multiplied wherever R is, or null

  bool any() const {
    for (const A rate : zoneout)
      if (rate > 0) return true;
    return mask;
  }
};

// One unit of one row per thread: the pointwise part of `rows` rows whose products are there. Outputs may be null.
// Where h is projected, P columns, this is without it but for what W_hr multiplies. Where R h is normalised `saved` is
// there.
template <class S>
struct StepForward {
  int64_t rows, hidden, heads;
  const S *u, *r, *bias;         // (rows, G*H); (K, rows, Q*D); (Q*H,) or null
  const S* params[most_params];  // (H,) each; (G*H,) the first where R h is normalised
  const bool* reset;             // (rows,) or null: the old state, and with it the product, counts as zero
  const Arithmetic<S>*
      state[most_states];            // (rows, H) each; with `previous`, null but for states that the equations need
  const S* previous;                 // (K, rows, D): h of the old state, or null
  Arithmetic<S>* next[most_states];  // (rows, H); may be `state`
  S *h, *x;  // (rows, H) both: the output (or what W_hr multiplies), what the next product reads
  Arithmetic<S>* cells[most_states];  // (rows, H), but of the first
  Arithmetic<S>* saved;               // (rows, saved*H)
  S* operand;                         // not null asks for the operand of the second product, and for nothing else;
  bool operand_by_head;               // (K, rows, D) or (rows, H)
  Arithmetic<S>* candidates;          // (rows, H): h before zoneout
  StepNoise<Arithmetic<S>> noise;
};

// One column of h of one row per thread, of rows whose projection is there.
template <class S>
struct StepProjected {
  int64_t rows, width;   // P
  const S* product;      // (rows, P)
  const bool* reset;     // (rows,) or null
  Arithmetic<S>* state;  // (rows, P), from the old to the new
  S *h, *x;              // (rows, P) both: the output, and what the next product reads
  StepNoise<Arithmetic<S>> noise;
};

// One unit of one sequence per thread: finishes the step processed before, then the pointwise backward of this one.
// Where h is projected one kernel finishes, over P columns, and gives dL/dh; the other has W_hr^T of it as `from_R`.
template <class S>
struct StepBackward {
  Sequence sequence;
  int64_t threads, alive;      // sequences looked at, and how many of them are alive in this step
  int64_t t, row, here, rows;  // this step (-1: only finish), its first row, that row in arrays "here", their rows
  int64_t finished, finished_alive;  // the step processed before (-1: none), and its sequences
  bool second;                       // of a cell with two products: after the product for the operand
  const S* from_R;                   // (K, finished_alive, D): R^T dr of that step; with `second`, of the operand
  const S *params[most_params], *bias;
  const S* cell_state[most_states];
  const S* h;
  const Arithmetic<S>* cells[most_states];
  const Arithmetic<S>* saved;  // here
  const S* previous;           // here (K, rows, D)
  const S* grad_h;
  const S* grad_scale;
  int64_t scale_step, scale_row;
  Arithmetic<S>* carry[most_states];
  Arithmetic<S>* dparams[most_params];  // (B, H), and (B, G*H) the first where R h is normalised, added to
  Arithmetic<S>* dbias;                 // (B, G*H) likewise, where R h is normalised
  Arithmetic<S>* workspace;             // (B, G*H), where R h is normalised
  S* du;                                // (all rows, G*H)
  S* dr;                                // here (K, rows, Q*D), or null where du serves
  S* step_dr;                           // (K, alive, Q*D), for the product that follows
  S* operand;                           // here (K, rows, D): what a second product, or W_hr, multiplied
  S *dh, *step_dh;                      // here (rows, P); (alive, P): the gradient of what W_hr gave
  const Arithmetic<S>* candidates;
  StepNoise<Arithmetic<S>> noise;
};

// previous (K, rows, D) of the steps that begin with `first`: the state before each row, zero where it was reset.
template <class S, class T>
struct Previous {
  Sequence sequence;
  int64_t first, rows;
  const T* h;      // (all rows, H)
  const S* state;  // (B, H)
  T* previous;
};

// The mask of dropout (B, H): 0 where a draw is below the threshold, else `scale`.
template <class S>
struct Mask {
  int64_t batch, hidden;
  uint32_t below;
  Arithmetic<S> scale;
  const int64_t* seed;
  Arithmetic<S>* mask;
};

// to = from times each sequence's row of the mask, (K, rows, D) both, of the steps that begin with `first`.
template <class S>
struct Drop {
  Sequence sequence;
  int64_t first, rows;
  const Arithmetic<S>* mask;
  const S* from;
  S* to;  // may be `from`
};

// to[o * stride + i] += from[o * inner + i], for i < inner, o * inner + i < count.
template <class S>
struct Accumulate {
  int64_t count, inner, stride;
  const S* from;
  Arithmetic<S>* to;
};

}  // namespace rnnkern
