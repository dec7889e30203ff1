// The interface between the engine (recurrence/cpu) and the equations of a cell: functions over a strip, which is units
// begin..end-1 of one sequence at one step. recurrence/cpu/cell.h implements it for cells of cells/list.h; other
// libraries can implement it without torch. Pointers point to unit 0 of the sequence's row. Where a unit has several
// values (gates, saved values), value g is H elements after value g - 1. T is float or double.
#pragma once

#include <cstdint>

namespace rnnkern {

constexpr int most_states = 8, most_params = 8;

// The properties of a cell that the engine needs; cells/cell.h defines them.
struct CellNumbers {
  int first_gates, gates, recurrent, states, params, saved;
  bool joint, projected, normalised;

  constexpr bool two_products() const { return first_gates < recurrent; }
  // Number of values that the equations save. With layer norm the engine saves R h after them.
  constexpr int own_saved() const { return saved - (normalised ? recurrent : 0); }
  // Elements of workspace for a row with layer norm, forward and backward.
  constexpr int64_t workspace_size(int64_t hidden) const { return normalised ? (recurrent + 2) * hidden : 0; }
};

template <class T>
struct ForwardStrip {
  int64_t begin, end, hidden;
  const T* u;     // (gates, H)
  const T* r;     // vectors of `lanes` units from `begin` on: vector v of gate g is at v * r_vector + g * r_gate; with
  int64_t lanes;  // two products, the gates of the last one
  int64_t r_gate, r_vector;
  const T* old[most_states];
  const T* params[most_params];
  T* next[most_states];
  T* saved;    // (saved, H), or null: nothing is saved
  T* operand;  // of the second product
  // With layer norm a strip is a whole row, and R h is the last of `saved`:
  const T* bias;  // (recurrent * H,), or null
  T* workspace;   // workspace_size()
};

template <class T>
struct BackwardStrip {
  int64_t begin, end, hidden;
  const T* saved;
  const T* saved_ahead;  // of the next sequence, to prefetch
  const T* old[most_states];
  const T* next[most_states];  // after zoneout; a cell that saves values must not read it
  const T* params[most_params];
  T* grad[most_states];     // in: dL/dnext; out: dL/dold without the part that passes through R
  const T* grad_h;          // added to grad[0] first, or null
  T* du;                    // (gates, H); null for a joint cell, where du equals dr
  T* dr;                    // (recurrent, H)
  T *du_sum, *dr_sum;       // shaped like du and dr, which are added to them; or null
  T* dparams[most_params];  // added to; without layer norm, null if they are not wanted
  const T* doperand;        // the gradient of the second product's operand
  T* operand;               // of the second product, or the input of W_hr, recomputed
  const T* bias;            // as in ForwardStrip
  T* workspace;
  bool mixed;  // next[1] is the state after zoneout, not the input of the norm
};

// With layer norm: the tangents of a whole row, given that of R h. Tangents are null where they are zero.
template <class T>
struct TangentStrip {
  int64_t hidden;
  const T* saved;
  const T* old[most_states];
  const T* next[most_states];
  const T* params[most_params];
  const T* bias;
  bool mixed;  // as in BackwardStrip
  const T* old_tangent[most_states];
  const T* u_tangent;
  T* r_tangent;  // in: of R h; overwritten
  const T* params_tangent[most_params];
  const T* bias_tangent;
  T* next_tangent[most_states];  // other rows than old_tangent
  T* workspace;                  // workspace_size()
};

// Functions that a cell does not have are null.
template <class T>
struct Strips {
  using Forward = void (*)(const ForwardStrip<T>&);
  using Backward = void (*)(const BackwardStrip<T>&);
  using Tangent = void (*)(const TangentStrip<T>&);

  Forward prepare;            // with two products: computes saved and operand from the first
  Forward forward;            // next and saved
  Backward backward;          // grad, du, dr, dparams; with two products, not the final du and dr of the first gates
  Backward prepare_backward;  // after it: du and dr of the first gates, operand; adds to grad[0]
  Tangent tangent;            // with layer norm: next_tangent
};

// The strips of a cell that was compiled at run time, for one SIMD level.
struct CompiledStrips {
  Strips<float> float32;
  Strips<double> float64;
};

struct CompiledKernels;  // recurrence/cuda/kernels.h

// What a library compiled from a cell at run time exports, under the name `rnnkern_cell`: strips or CUDA kernels.
struct CompiledCell {
  int vector_bytes;  // of its SIMD level: strips of products are laid out in vectors; 0: CUDA kernels
  CellNumbers numbers;
  const CompiledStrips* strips;
  const CompiledKernels* kernels;
};

}  // namespace rnnkern
