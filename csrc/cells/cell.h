// The interface of a cell: the equations of one unit of one sequence at one step, in a type V that is a scalar or a
// SIMD vector of units.
//
//   name                 the name in the Python interface
//   gates, states        values of u per unit; number of state tensors, of which R multiplies the first
//   recurrent            values of R h per unit: as many as gates; fewer where the last gates have no recurrent part;
//                        more where the last products have no gate of u
//   params               the cell's own tensors, (H,) each unless param_rows says that they have several values per
//   unit saved                values per unit that the backward needs in addition to the states joint                u
//   and r are only used as u + r, so that their gradients are equal first_gates          gates of the first product R
//   h; the remaining ones (none for most cells) belong to a second
//                        product, whose operand `prepare` computes from the first
//   projected            h is W_hr times the result of the equations; W_hr (P, H) is passed in addition to `params`
//   norms                number of norms over the units of values; if any, the functions below marked * are replaced by
//                        those at the end
//
//   forward(u, r, old, params, next, save)*                      the new state and what to save
//   backward(save, old, next, params, grad, du, dr, dparams)*    grad: in, dL/dnext; out, dL/dold without the part that
//                                                                passes through R; adds to dparams
// and with a second product, first_gates < gates:
//   prepare(u, r, old, save, operand)                            runs before forward
//   prepare_backward(save, old, doperand, grad, du, dr, operand) runs after backward; adds to grad, du and dr; sets
//                                                                operand
//
// and where h is projected:
//   unprojected(save, old)                                       recomputes the input of W_hr
//
// A cell with norms has passes over the row of a sequence, forward<pass>(at), inputs<pass>(at), backward<pass>(at) and
// tangent<pass>(at), each of which reads and writes the values of one unit through `at`; rnnkern/_cells/rows.py writes
// them and says what they do. `levels` is the number of norms that depend on one another, and r_slot the number of the
// first saved value if R h is saved, else -1.
//
// Arrays hold one value per gate, state, parameter or saved quantity. No torch and no CUDA headers here.
#pragma once

#include "cells/math.h"
#include "cells/strip.h"

namespace rnnkern {

template <int first_gates_, int gates_, int states_, int params_, int saved_, bool joint_>
struct CellFacts {
  static constexpr int first_gates = first_gates_, gates = gates_, states = states_, params = params_, saved = saved_;
  static constexpr int recurrent = gates;
  static constexpr bool joint = joint_, projected = false;
  static constexpr bool two_products = first_gates < gates;
  static constexpr int norms = 0, levels = 0, r_slot = -1;
  static constexpr int8_t param_rows[most_params] = {1, 1, 1, 1, 1, 1, 1, 1};
};

// A norm over the units of `values` values, (x - mean) / sqrt(variance + eps), or with the mean replaced by 0.
struct NormFacts {
  int level, values;
  int slot;       // of its inputs among the saved values, if they are saved next to one another, else -1
  bool centered;  // whether the mean is subtracted
  double eps;
};

template <class Cell>
constexpr CellNumbers numbers_of = [] {
  CellNumbers n{Cell::first_gates, Cell::gates, Cell::recurrent, Cell::states,    Cell::params,
                Cell::saved,       Cell::joint, Cell::projected, Cell::norms > 0, Cell::r_slot};
  for (int i = 0; i < Cell::params; ++i) n.all_param_rows += n.param_rows[i] = Cell::param_rows[i];
  if constexpr (Cell::norms > 0)
    for (const NormFacts& norm : Cell::norm_facts) n.norm_rows += (norm.slot < 0 ? 2 : 1) * norm.values;
  return n;
}();

using ElmanFacts = CellFacts<1, 1, 1, 0, 0, true>;

}  // namespace rnnkern
