// The arguments of the forward mode of the recurrence: S tangents of each sequence along a known trajectory.
#pragma once

#include "recurrence/problem.h"

namespace rnnkern {

// The trajectory is what the training forward received and returned, with the gates saved.
template <class T>
struct Tangent {
  CellNumbers cell;
  Strips<T> strips;
  Steps steps;
  Weights<T> weights;
  const T* state[most_states];  // the initial state: h is (B, P), the others are (B, H)
  const bool* reset;
  Noise noise;
  Keep<T> keep;
  const T* h;                    // (rows, P)
  const T* states[most_states];  // the states except h, (rows, H)
  const T *saved, *candidates;

  int64_t count;                         // S, the tangents of each sequence
  const T *u_tangent, *r_tangent;        // (S, rows, G*H), or null
  const T* params_tangent[most_params];  // shaped like params with a leading S, or null
  const T* projected_tangent;            // (S, rows, P): added to the tangent of a projected h; or null
  const T* initial[most_states];         // tangents of the initial state, (S, B, P) and (S, B, H)
  T* final[most_states];                 // those of the final state
  T* h_tangent;                          // (S, rows, P), or null
  int64_t every;                         // orthonormalize after so many steps, and after the last; 0: never
  double* log_r;                         // (ceil(T / every), B, S)
  int64_t* lost;                         // (B, S)
  T* workspace;
};

// Defined by the level sources, once per SIMD level.
template <class T, SimdLevel level>
Kernel<Tangent<T>> tangent_at();

}  // namespace rnnkern
