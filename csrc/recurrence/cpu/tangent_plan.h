// The workspace of the forward mode, and the coefficients by which a cell's tangents depend on one another.
// level_tangent.cpp includes this file once per SIMD level.
//
// A unit's new state depends on its old state, u, r and the parameters of the same unit. The cell's backward is linear
// in the gradient of the new state, so its results for a gradient of 1 in state k are row k of the Jacobian of a unit:
//   next_tangent[k] = sum_j A[k][j] old_tangent[j] + sum_g (R[k][g] r_tangent[g] + U[k][g] u_tangent[g])
//                     + sum_i P[k][i] params_tangent[i].
// These coefficients are computed once per sequence and step and used for all of its tangents.
#pragma once

#include "recurrence/cpu/orthonormal.h"
#include "recurrence/cpu/step.h"
#include "recurrence/tangent.h"

namespace rnnkern {
namespace {

constexpr int most_recurrent = 16;  // gates of R that the products of users' cells may have

// Rows are (sequence, tangent) pairs: row b * S + s.
template <class T>
struct TangentPlan {
  Workspace<T> workspace;
  const int64_t rows;
  Product<T> first, second, projection;
  Zoneouts<T> zoneout;
  Dropout<T> dropout;
  T* zeros;
  T* tangent[most_states];            // of the current state, rows of a state's width
  T *h_next, *r, *operand, *dropped;  // rows: the new tangent of h, of R h, of the second product's operand, and of h
                                      // after dropout
  int kept_gates;                     // of r
  T* m;                               // rows: the tangent of the projection's input
  // Per thread:
  T *local, *of_operand;  // coefficients of a sequence, and those of the second product's operand
  T *ones, *discarded;    // a row of ones; results that are not needed
  T *made, *norms;        // new tangents of one row with norms, and workspace for these
  T* covered;

  static Matrix<T> without_bias(Matrix<T> M) {
    M.bias = nullptr;
    return M;
  }

  TangentPlan(const Tangent<T>& p, ThreadContext me)
      : workspace{p.workspace},
        rows(p.steps.batch * p.count),
        first(without_bias(p.weights.R), 0, p.cell.first_gates, false, false, workspace, nullptr, me),
        second(without_bias(p.weights.R), p.cell.first_gates, p.cell.recurrent - p.cell.first_gates, false, false,
               workspace, nullptr, me),
        projection(p.weights.W_hr, 0, 1, false, false, workspace, nullptr, me),
        zoneout(p.noise, p.keep, p.cell, p.steps.batch, p.weights, workspace),
        dropout(p.noise, p.steps.batch, p.weights.width, workspace) {
    const CellNumbers& cell = p.cell;
    const int64_t hidden = p.weights.hidden, width = p.weights.width;
    zeros = workspace.alloc(larger(hidden, width));
    for (int k = 0; k < cell.states; ++k) tangent[k] = workspace.alloc(rows * (k ? hidden : width));
    h_next = workspace.alloc(rows * width);
    kept_gates = cell.normalised ? cell.recurrent : cell.two_products() ? cell.first_gates : 0;
    r = workspace.alloc(rows * kept_gates * hidden);
    operand = workspace.alloc(cell.two_products() ? rows * hidden : 0);
    dropped = p.noise.dropout > 0 ? workspace.alloc(rows * width) : nullptr;
    m = workspace.alloc(cell.projected ? rows * hidden : 0);
    local = workspace.alloc(cell.normalised ? 0 : cell.states * block(cell) * hidden, me);
    of_operand = workspace.alloc(cell.two_products() ? block(cell) * hidden : 0, me);
    ones = workspace.alloc(cell.two_products() ? hidden : 0, me);
    discarded = workspace.alloc(hidden, me);
    made = workspace.alloc(cell.normalised ? cell.states * hidden : 0, me);
    norms = workspace.alloc(cell.norm_rows * hidden, me);
    covered = workspace.alloc(p.every ? width + (cell.states - 1) * hidden : 0, me);
  }

  // The coefficients of one result, each a row of H: of the old states, r, the params, and of u where they are not
  // those of r.
  static int block(const CellNumbers& cell) {
    return cell.states + cell.recurrent + cell.params + (cell.joint ? 0 : cell.gates);
  }
};

// The tangents that the equations of a row read; all but `old` may be null.
template <class T>
struct Directions {
  const T *old[most_states], *u, *r, *params[most_params];
};

template <class T>
int64_t tangent_workspace(const Tangent<T>& p, int team) {
  return TangentPlan<T>(p, ThreadContext{0, team, nullptr}).workspace.used;
}

// Where the backward of a cell writes the coefficients of one result, for some units.
template <class T>
BackwardStrip<T> coefficients_of(const CellNumbers& cell, BackwardStrip<T> strip, T* block, int result) {
  const int64_t hidden = strip.hidden, units = strip.end - strip.begin;
  for (int j = 0; j < cell.states; ++j) {
    strip.grad[j] = block + j * hidden;
    for (int64_t unit = strip.begin; unit < strip.end; ++unit) strip.grad[j][unit] = j == result ? T(1) : T(0);
  }
  T* const r = block + cell.states * hidden;
  T* const params = r + cell.recurrent * hidden;
  for (int g = 0; g < cell.recurrent; ++g) clear(r + g * hidden + strip.begin, units);
  for (int i = 0; i < cell.params; ++i) {
    strip.dparams[i] = params + i * hidden;
    clear(strip.dparams[i] + strip.begin, units);
  }
  strip.dr = r;
  strip.du = cell.joint ? nullptr : params + cell.params * hidden;
  for (int g = 0; strip.du && g < cell.gates; ++g) clear(strip.du + g * hidden + strip.begin, units);
  return strip;
}

}  // namespace
}  // namespace rnnkern
