// The arguments of the CUDA kernels of the recurrence: device pointers and sizes, all checked and allocated by the
// caller. Tensors are stored as S; A = Arithmetic<S> is the type of the arithmetic. T steps, B sequences, K heads, each
// of D = H / K units, G gates of u, Q gates of R h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cells/strip.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "device/device.h"

namespace rnnkern {

using cuda::GridSize, cuda::Sequence;
using device::Arithmetic;
using device::widen;

template <class S>
struct BlockForward {
  Sequence sequence;
  const S *u, *R, *bias;              // (rows, G*H); (K, Q*D, D); (Q*H,) or null
  const S* params[most_params];       // (H,) each
  const S* state[most_states];        // (B, H)
  S* h;                               // (rows, H)
  S* final_state[most_states];        // (B, H)
  Arithmetic<S>* cells[most_states];  // states except the first, of every step: (rows, H), or null
  Arithmetic<S>* saved;               // (rows, saved*H), or null
};

// Of all kernels of the backward, which processes a range of steps. Arrays marked "here" begin at the range's first
// row.
template <class S>
struct RangeBackward {
  Sequence sequence;
  int64_t rows;  // of the range
  const S* params[most_params];
  const S* cell_state[most_states];         // initial states except the first: (B, H)
  const S* h;                               // (all rows, H)
  const Arithmetic<S>* cells[most_states];  // (all rows, H)
  const Arithmetic<S>* saved;               // here (rows, saved*H)
  const S* previous;                        // here (K, rows, D): h before each step, zero after a reset
  const S* grad_h;                          // (all rows, H), or null
  const S* grad_scale;                      // element (t, b) at t*scale_step + b*scale_row, or null
  int64_t scale_step, scale_row;
  Arithmetic<S>* carry[most_states];    // (B, H): gradient of the state; in: after these steps, out: before them
  Arithmetic<S>* dparams[most_params];  // (B, H), or as many values per unit as param_rows; added to
  S* du;                                // (all rows, G*H)
  S* dr;                                // here (K, rows, Q*D), or null if du is used instead
  S* operand;                           // here (K, rows, D): the input of a second product, or of W_hr
};

template <class S>
struct BlockBackward : RangeBackward<S> {
  int64_t first, steps;  // steps first..first+steps-1
  const S* R;            // (K, Q*D, D)
};

// The storage type of tensors that R multiplies as M: float for float and tfloat32, else M.
template <class M>
using Stored = std::conditional_t<std::is_same_v<M, device::tfloat32>, float, M>;

// The arguments of a cluster kernel: those of a block kernel with one head, and the number of sequences of each cluster
// but the last, which has the remaining ones.
template <class BlockProblem>
struct OnCluster : BlockProblem {
  int64_t columns;
};

constexpr int grid_columns = 8, most_grid_sets = 8;  // columns of a set; sets of a group

// Units of a member, of which one column takes 32 bytes, in elements of `bytes` bytes.
constexpr int units_of_member(int bytes) { return 32 / bytes; }

template <class BlockProblem>
struct OnGrid {
  BlockProblem call;  // with one head
  GridSize size;
  device::Word16* words;  // zeroed
};

// Zoneout and dropout at one step.
template <class A>
struct StepNoise {
  A zoneout[most_states];       // the rate of each state
  uint32_t below[most_states];  // their thresholds
  const int64_t* seed;          // on the device; null: zoneout uses its expectation
  int64_t t;                    // the step
  const A* mask;                // (B, H): the mask by which the input of R is multiplied; or null

  bool any() const {
    for (const A rate : zoneout)
      if (rate > 0) return true;
    return mask;
  }
};

// The pointwise part of `rows` rows whose products are known, one unit of one row per thread. Outputs may be null. If h
// is projected, to P columns, the kernel computes the input of W_hr instead of h. With norms, `saved` is not null.
template <class S>
struct StepForward {
  int64_t rows, hidden, heads;
  const S *u, *r, *bias;         // (rows, G*H); (K, rows, Q*D); (Q*H,) or null
  const S* params[most_params];  // (H,) each, or as many values per unit as param_rows
  const bool* reset;             // (rows,) or null: the old state, and therefore the product, is zero
  const Arithmetic<S>*
      state[most_states];            // (rows, H) each; with `previous`, null except for states that the equations need
  const S* previous;                 // (K, rows, D): h of the old state, or null
  Arithmetic<S>* next[most_states];  // (rows, H); may be `state`
  S *h, *x;  // (rows, H) both: the output (or the input of W_hr), and the input of the next product
  Arithmetic<S>* cells[most_states];  // (rows, H), states except the first
  Arithmetic<S>* saved;               // (rows, saved*H)
  S* operand;                         // if not null, only the operand of the second product is computed;
  bool operand_by_head;               // (K, rows, D) or (rows, H)
  Arithmetic<S>* workspace;           // (rows, norm_rows*H), with norms
  Arithmetic<S>* candidates;          // (rows, H): h before zoneout
  StepNoise<Arithmetic<S>> noise;
};

// The rows after the projection, one column of h of one row per thread.
template <class S>
struct StepProjected {
  int64_t rows, width;   // P
  const S* product;      // (rows, P)
  const bool* reset;     // (rows,) or null
  Arithmetic<S>* state;  // (rows, P): in: the old state, out: the new one
  S *h, *x;              // (rows, P) both: the output, and the input of the next product
  StepNoise<Arithmetic<S>> noise;
};

// One unit of one sequence per thread: finishes the step processed before, then runs the pointwise backward of this
// one. If h is projected, a separate kernel over P columns finishes the step and computes dL/dh; the kernel over units
// reads the product of dL/dh with W_hr in `from_R`.
template <class S>
struct StepBackward : RangeBackward<S> {
  int64_t threads, alive;            // sequences with a thread, and those of them that are alive in this step
  int64_t t, row, here;              // this step (-1: only finish), and its first row, in all rows and "here"
  int64_t finished, finished_alive;  // the step processed before (-1: none), and how many sequences were alive
  bool second;               // for a cell with two products: the second part, after the product that gives dL/doperand
  const S* from_R;           // (K, finished_alive, D): R^T dr of that step; if `second`, dL/doperand
  Arithmetic<S>* workspace;  // (B, norm_rows*H), with norms
  S* step_dr;                // (K, alive, Q*D), for the next product
  S *dh, *step_dh;           // here (rows, P); (alive, P): the gradient of the output of W_hr
  const Arithmetic<S>* candidates;
  StepNoise<Arithmetic<S>> noise;
};

// The dropout mask (B, H): 0 where a draw is below the threshold, else `scale`.
template <class S>
struct Mask {
  int64_t batch, hidden;
  uint32_t below;
  Arithmetic<S> scale;
  const int64_t* seed;
  Arithmetic<S>* mask;
};

// to = from times the mask of each sequence, (K, rows, D) both, of the steps from `first` on.
template <class S>
struct Drop {
  Sequence sequence;
  int64_t first, rows;
  const Arithmetic<S>* mask;
  const S* from;
  S* to;  // may be `from`
};

}  // namespace rnnkern
