// The contract between the engine (recurrence/cpu) and the equations of a cell: functions over a strip, units
// begin..end-1 of one sequence at one step. A cell of cells/list.h fills it through recurrence/cpu/cell.h; any library
// may, without torch. Pointers are to unit 0 of the sequence's row; value g of several (a gate, something saved) is H
// elements after value g - 1. T is float or double.
#pragma once

#include <cstdint>

namespace rnnkern {

constexpr int most_states = 8, most_params = 8;

// What the engine has to know of a cell; cells/cell.h says what each means.
struct CellNumbers {
  int first_gates, gates, recurrent, states, params, saved;
  bool joint, projected, normalised;

  constexpr bool two_products() const { return first_gates < recurrent; }
  // Values that the equations themselves save: where R h is normalised, it is the last of what is saved.
  constexpr int own_saved() const { return saved - (normalised ? recurrent : 0); }
  // Elements of room that a normalised row takes, forward and backward.
  constexpr int64_t workspace_size(int64_t hidden) const { return normalised ? (recurrent + 2) * hidden : 0; }
};

template <class T>
struct ForwardStrip {
  int64_t begin, end, hidden;
  const T* u;     // (gates, H)
  const T* r;     // vectors of `lanes` units from `begin` on: vector v of gate g is at v * r_vector + g * r_gate; of
  int64_t lanes;  // two products the gates of the one that has just run
  int64_t r_gate, r_vector;
  const T* old[most_states];
  const T* params[most_params];
  T* next[most_states];
  T* saved;    // (saved, H), or null: nothing is kept
  T* operand;  // of the second product
  // Where R h is normalised a strip is a whole row, and R h the last of `saved`:
  const T* bias;  // (recurrent * H,), or null
  T* workspace;   // workspace_size()
};

template <class T>
struct BackwardStrip {
  int64_t begin, end, hidden;
  const T* saved;
  const T* saved_ahead;  // of the sequence that comes next: fetched into the cache
  const T* old[most_states];
  const T* next[most_states];  // but after zoneout, which a cell that saves something does not want to read
  const T* params[most_params];
  T* grad[most_states];     // in: dL/dnext; out: dL/dold but for what flows through R
  const T* grad_h;          // added to grad[0] first, or null
  T* du;                    // (gates, H); null for a joint cell, whose du is dr
  T* dr;                    // (recurrent, H)
  T *du_sum, *dr_sum;       // like du and dr, which are added to them; or null
  T* dparams[most_params];  // added to
  const T* doperand;        // the gradient of the second product's operand
  T* operand;               // of the second product, or what W_hr multiplies: given again
  const T* bias;            // as in ForwardStrip
  T* workspace;
  bool mixed;  // next[1] is not what a norm saw, but that after zoneout
};

// The functions that a cell does not have are null.
template <class T>
struct Strips {
  using Forward = void (*)(const ForwardStrip<T>&);
  using Backward = void (*)(const BackwardStrip<T>&);

  Forward prepare;            // with two products: saved and operand, from the first
  Forward forward;            // next and saved
  Backward backward;          // grad, du, dr, dparams; with two products du and dr but for the first gates
  Backward prepare_backward;  // after it: du and dr of the first gates, operand; adds to grad[0]
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
