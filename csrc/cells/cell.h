// The contract of a cell: one unit of one sequence at one step, in a type V that is a scalar or a SIMD vector of units.
//
//   name                 as users spell it
//   gates, states        values of u per unit; the state's tensors, of which R multiplies the first
//   recurrent            values of R h per unit: as many as gates; fewer where the last gates have no recurrent part;
//                        more where the last products have no gate of u
//   params               the cell's own tensors, each (H,) but the first where R h is normalised
//   saved                values per unit that the backward needs beside the states
//   joint                u and r enter only as u + r, so that the gradients of u and of r are one
//   first_gates          those of the first product R h; the rest (none for most cells) wait for a second product,
//                        whose operand `prepare` makes from the first
//   projected            h is W_hr times what the equations give (no others read it): a weight (P, H) beside `params`
//   normalised           r = LN(R h) params[0] + b, a norm over the units of all gates, params[0] (G*H,). R h itself is
//                        the last of what is saved, by the engine; `backward` finds r there. Neither reads `params`.
//
//   forward(u, r, old, params, next, save)                       the new state and what to save
//   backward(save, old, next, params, grad, du, dr, dparams)     grad: in, dL/dnext; out, dL/dold but for what flows
//                                                                through R; dparams is added to
// and with a second product, first_gates < gates:
//   prepare(u, r, old, save, operand)                            runs before forward
//   prepare_backward(save, old, doperand, grad, du, dr, operand) runs after backward; adds to grad, du and dr, gives
//   operand
//
// and where h is projected:
//   unprojected(save, old)                                       what W_hr multiplies, again
//
// and where R h is normalised and c with it, y = LN(c') params[1] + params[2]: `forward` leaves h' to `output`, and
// `backward` finds y in next[1] and in grad[1] also what came to c' through y:
//   next_c(save, old)                                            c' again
//   output(save, y)                                              h'
//   output_backward(save, y, dh)                                 dL/dy
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
  static constexpr bool joint = joint_, projected = false, normalised = false;
  static constexpr bool two_products = first_gates < gates;
};

template <class Cell>
constexpr CellNumbers numbers_of{Cell::first_gates, Cell::gates, Cell::recurrent, Cell::states,    Cell::params,
                                 Cell::saved,       Cell::joint, Cell::projected, Cell::normalised};

constexpr double norm_eps = 1e-5;  // what LN adds to a variance

using ElmanFacts = CellFacts<1, 1, 1, 0, 0, true>;

}  // namespace rnnkern
