// Gated recurrent unit, the reset gate after the product, gates r, z, n (PyTorch, cuDNN):
//   n = tanh(u_n + s(u_r + r_r) r_n),  h' = (1 - z) n + z h.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct Gru : CellFacts<3, 3, 1, 0, 4, false> {
  static constexpr const char* name = "gru";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V*, V* next, V* save) {
    save[0] = sigmoid(u[0] + r[0]);
    save[1] = sigmoid(u[1] + r[1]);
    save[2] = tanh(u[2] + save[0] * r[2]);
    save[3] = r[2];
    next[0] = (V(1) - save[1]) * save[2] + save[1] * old[0];
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V* old, const V*, const V*, V* grad, V* du, V* dr, V*) {
    const V r = save[0], z = save[1], n = save[2];
    du[2] = grad[0] * (V(1) - z) * (V(1) - n * n);
    dr[2] = du[2] * r;
    du[0] = dr[0] = du[2] * save[3] * r * (V(1) - r);
    du[1] = dr[1] = grad[0] * (old[0] - n) * z * (V(1) - z);
    grad[0] = grad[0] * z;
  }
};

}  // namespace rnnkern
