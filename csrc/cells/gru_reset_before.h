// Gated recurrent unit, the reset gate before the product (Cho et al. 2014), gates r, z, n:
//   n = tanh(u_n + R_n (s(u_r + r_r) h) + b_n),  h' = (1 - z) n + z h.
// The second product's operand, s(u_r + r_r) h, depends on the first product.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct GruResetBefore : CellFacts<2, 3, 1, 0, 3, true> {
  static constexpr const char* name = "gru_reset_before";

  template <class V>
  RNNKERN_CELL void prepare(const V* u, const V* r, const V* old, V* save, V& operand) {
    save[0] = sigmoid(u[0] + r[0]);
    save[1] = sigmoid(u[1] + r[1]);
    operand = save[0] * old[0];
  }

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V*, V* next, V* save) {
    save[2] = tanh(u[2] + r[2]);
    next[0] = (V(1) - save[1]) * save[2] + save[1] * old[0];
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V* old, const V*, const V*, V* grad, V* du, V* dr, V*) {
    const V z = save[1], n = save[2];
    du[1] = dr[1] = grad[0] * (old[0] - n) * z * (V(1) - z);
    du[2] = dr[2] = grad[0] * (V(1) - z) * (V(1) - n * n);
    grad[0] = grad[0] * z;
  }

  template <class V>
  RNNKERN_CELL void prepare_backward(const V* save, const V* old, V doperand, V* grad, V* du, V* dr, V& operand) {
    const V r = save[0];
    operand = r * old[0];
    du[0] = dr[0] = doperand * operand * (V(1) - r);
    grad[0] = grad[0] + doperand * r;
  }
};

}  // namespace rnnkern
