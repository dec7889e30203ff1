// The interface of a cell: the equations of one unit of one sequence at one step, in a type V that is a scalar or a
// SIMD vector of units.
//
//   name                 the name in the Python interface
//   gates, states        values of u per unit; number of state tensors, of which R multiplies the first
//   recurrent            values of R h per unit: as many as gates; fewer where the last gates have no recurrent part;
//                        more where the last products have no gate of u
//   params               the cell's own tensors, (H,) each, except the first with layer norm
//   saved                values per unit that the backward needs in addition to the states
//   joint                u and r are only used as u + r, so that their gradients are equal
//   first_gates          gates of the first product R h; the remaining ones (none for most cells) belong to a second
//                        product, whose operand `prepare` computes from the first
//   projected            h is W_hr times the result of the equations; W_hr (P, H) is passed in addition to `params`
//   normalised           r = LN(R h) params[0] + b, a norm over the units of all gates, params[0] (G*H,). The engine
//                        saves R h after the other values; `backward` finds r there. Neither function reads `params`.
//
//   forward(u, r, old, params, next, save)                       the new state and what to save
//   backward(save, old, next, params, grad, du, dr, dparams)     grad: in, dL/dnext; out, dL/dold without the part that
//                                                                passes through R; adds to dparams
// and with a second product, first_gates < gates:
//   prepare(u, r, old, save, operand)                            runs before forward
//   prepare_backward(save, old, doperand, grad, du, dr, operand) runs after backward; adds to grad, du and dr; sets
//                                                                operand
//
// and where h is projected:
//   unprojected(save, old)                                       recomputes the input of W_hr
//
// and with layer norm of c too, y = LN(c') params[1] + params[2]: `forward` leaves h' to `output`, and `backward` finds
// y in next[1], and in grad[1] the gradient of c' including the part through y:
//   next_c(save, old)                                            recomputes c'
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

constexpr double norm_eps = 1e-5;  // added to the variance by layer norm

using ElmanFacts = CellFacts<1, 1, 1, 0, 0, true>;

}  // namespace rnnkern
