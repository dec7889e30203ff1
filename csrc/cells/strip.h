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
  int r_slot, norm_rows, all_param_rows;  // norm_rows: of the workspace of a row: inputs of norms that are not saved,
                                          // and the gradients or tangents of all inputs
  int8_t param_rows[most_params];

  constexpr bool two_products() const { return first_gates < recurrent; }
  constexpr int second_gates() const { return recurrent - (two_products() ? first_gates : 0); }  // of the last product
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
  // With norms a strip is a whole row; r is (gates of the last product, H), and `saved` is never null.
  T* workspace;  // (norm_rows, H)
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
  T* dparams[most_params];  // added to; or null
  const T* doperand;        // the gradient of the second product's operand
  T* operand;               // of the second product, or the input of W_hr, recomputed
  T* workspace;             // as in ForwardStrip
};

// With norms: the tangents of a whole row, given that of R h. Tangents are null where they are zero.
template <class T>
struct TangentStrip {
  int64_t hidden;
  const T* saved;
  const T* old[most_states];
  const T* params[most_params];
  const T* old_tangent[most_states];
  const T *u_tangent, *r_tangent;
  const T* params_tangent[most_params];
  T* next_tangent[most_states];  // other rows than old_tangent
  T* workspace;                  // (norm_rows, H)
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
  Tangent tangent;            // with norms: next_tangent
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
