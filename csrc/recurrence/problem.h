// The arguments of a recurrence kernel: pointers, sizes and strides, all checked and allocated by the caller. T, float
// or double, is the type of the arithmetic and of everything whose size does not depend on the sequence length; rows of
// a sequence may be stored in 16 bits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cells/strip.h"
#include "common/simd_level.h"
#include "common/team.h"
#include "device/types.h"
#include "recurrence/noise.h"

namespace rnnkern {

using device::Arithmetic;

template <class S>
constexpr bool narrow = sizeof(S) < sizeof(Arithmetic<S>);

// How the rows of a sequence are stored: in the type of the arithmetic, or in 16 bits.
#define RNNKERN_STORAGE(type, name) , type
enum class Storage : uint8_t { arithmetic RNNKERN_NARROW_TYPES(RNNKERN_STORAGE) };
#undef RNNKERN_STORAGE

template <class S>
constexpr Storage storage_of = Storage::arithmetic;
#define RNNKERN_STORAGE(type, name) \
  template <>                       \
  inline constexpr Storage storage_of<device::type> = Storage::type;
RNNKERN_NARROW_TYPES(RNNKERN_STORAGE)
#undef RNNKERN_STORAGE

// Rows of a sequence, or null; recurrence/cpu/rows.h converts them.
template <class T>
struct Rows {
  char* data = nullptr;
  Storage storage = Storage::arithmetic;

  Rows() = default;
  Rows(const void* data, Storage storage) : data(static_cast<char*>(const_cast<void*>(data))), storage(storage) {}
  template <class S>
  Rows(const S* rows) : Rows(rows, storage_of<S>) {}

  explicit operator bool() const { return data; }
  bool narrow() const { return sizeof(T) == 4 && storage != Storage::arithmetic; }
  Rows from(int64_t element) const { return {data + element * int64_t(narrow() ? 2 : sizeof(T)), storage}; }
  // The elements, if they are of type F.
  template <class F>
  F* as() const {
    return reinterpret_cast<F*>(data);
  }
};

// The rows of the (rows, columns) tensors that belong to step t. Row b of a step is sequence b.
struct Steps {
  int64_t count, batch;    // T, B
  const int64_t* offsets;  // (T + 1,): the first row of each step, then the number of rows; null: each step has B rows
  bool reverse;

  int64_t rows(int64_t t) const { return offsets ? offsets[t + 1] - offsets[t] : batch; }
  int64_t offset(int64_t t) const { return offsets ? offsets[t] : t * batch; }
  // The k-th step in processing order, and the step before step t in that order (outside 0..T-1 for the first).
  int64_t at(int64_t k) const { return reverse ? count - 1 - k : k; }
  int64_t before(int64_t t) const { return reverse ? t + 1 : t - 1; }
  int64_t total() const { return offset(count); }
};

// A weight whose rows are the gates of units: (K, G*U, C), K heads of U units, each head with its own C columns of the
// operand.
template <class T>
struct Matrix {
  const void* values;  // of the type that products multiply: T or bfloat16
  const T* bias;       // (G*K*U,), gate after gate, or null
  int gates;
  int64_t heads, units, columns;
};

template <class T>
struct Weights {
  int64_t hidden, width;         // H; P, the columns of h, equal to H unless h is projected
  Matrix<T> R;                   // (K, G*D, D), D = H / K; K = 1 is the dense (G*H, P)
  Matrix<T> W;                   // (G*H, I); no values if the caller has projected the input
  Matrix<T> W_hr;                // (P, H); no values if h is not projected
  const T* params[most_params];  // (param_rows * H,) each
};

// The weight of the old state in the new one, for all of its tensors: element (t, b) at t*step + b*row. It excludes
// zoneout.
template <class T>
struct Keep {
  const T* values;  // null: not given
  int64_t step, row;
};

// Maximum number of rows of one product of the input projection.
constexpr int chunk_rows = 128;

// Minimum number of chunks of two problems that run at the same time, of which one reads the other's results.
constexpr int min_pipeline_chunks = 8;

// The first state, h, is (B, P), or (rows, P) for all steps; all others are (B, H) and (rows, H).
template <class Float>
struct Forward {
  using T = Float;

  CellNumbers cell;
  Strips<T> strips;
  Steps steps;
  Weights<T> weights;
  bool split_hidden;  // threads divide hidden units, with barriers in every step; otherwise they divide sequences
  int parts;          // the bfloat16 parts of the factors of products in tiles, or 0: without tiles
  Rows<T> u;          // the projected input (rows, G*H), or if W is given
  Rows<T> x;          // the input itself (rows, I)
  bool u_repeats;     // u is (B, G*H), and every step reads it
  const T* state[most_states];
  const bool* reset;  // (T, B) or null
  Noise noise;
  Keep<T> keep;
  Rows<T> h;
  T* final_state[most_states];
  T* states[most_states];  // all states except h, of every step; or null
  T* saved;                // (rows, saved*H), or null
  T* candidates;           // (rows, H), or null: h before the mean of zoneout or `keep`, for a cell that saves nothing
  const Progress* below;   // of the problem that produces x at the same time, or null
  Progress* progress;  // of h, for a problem that reads it at the same time, or null; needs split_hidden or one thread
  T* workspace;        // workspace, as many elements as the kernel says
  // Packed weights that later calls use too, in a layout for so many threads, of which all or some run. Null and 0: the
  // call packs them in its workspace.
  T* packs;
  int layout_team;
  bool packed;  // they are already there
};

template <class Float>
struct Backward {
  using T = Float;

  CellNumbers cell;
  Strips<T> strips;
  Steps steps;
  Weights<T> weights;
  bool split_hidden;
  int parts;
  Rows<T> u, x;                 // one of them, as in Forward; u is read where `saved` is null
  bool u_repeats;               // as in Forward
  Rows<T> h0;                   // (B, P)
  const T* state[most_states];  // the initial states except h
  const bool* reset;            // (T, B) or null
  Noise noise;
  Keep<T> keep;
  const T* grad_scale;  // element (t, b) at t*scale_step + b*scale_row, or null
  int64_t scale_step, scale_row;
  Rows<T> h;  // (rows, P)
  const T* states[most_states];
  const T* saved;  // null: recomputed from h, a chunk of steps at a time
  const T* candidates;
  Rows<T> grad_h;                    // (rows, P) or null
  const T* grad_state[most_states];  // or null
  Rows<T> du;                        // (rows, G*H), where u is given
  T* du_sum;                         // (B, G*H): instead of it the sum over all steps, where u repeats
  Rows<T> dx;                        // (rows, I), if x is given and dx is wanted
  Rows<T> dh;                        // (rows, P) or null: of h of each step, through all later steps
  T* dstate[most_states];
  T* dparams[most_params];  // one row per sequence, which the caller sums over B; null if not wanted
  T *dR, *dW, *dW_hr;       // shaped like the weights, or null if not wanted
  const Progress* above;    // of the problem that produces grad_h at the same time, or null
  Progress* progress;       // of dx, as in Forward
  T *dbias, *dbias_ih;      // (G*H,) or null; equal for a joint cell, where the second is null
  T* workspace;             // workspace, as many elements as the kernel says
};

// The kernels of a cell at one SIMD level.
template <class T>
struct Kernels {
  Kernel<Forward<T>> forward;
  int64_t (*packs)(const Forward<T>&, int team);  // the number of elements that lasting packed weights need
  Kernel<Backward<T>> backward;
};

// Those of a cell by its index in cells/list.h. Their products multiply factors of type F: T, or bfloat16 where the
// level has an instruction for it.
template <class F, SimdLevel>
Kernels<Arithmetic<F>> kernels_at(int cell_id);

// The strip functions of a cell by its index in cells/list.h.
template <class T, SimdLevel level>
Strips<T> strips_at(int cell_id);

}  // namespace rnnkern
