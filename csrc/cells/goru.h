// Gated orthogonal recurrent unit (Jing et al. 2019), gates r, z, n; R's rows of n are to be orthogonal:
//   n = modrelu(u_n + s(u_r + r_r) r_n; b),  h' = (1 - z) n + z h,  z = s(u_z + r_z).
#pragma once

#include "cells/modrelu.h"

namespace rnnkern {

struct Goru : CellFacts<3, 3, 1, 1, 4, false> {
  static constexpr const char* name = "goru";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V* params, V* next, V* save) {
    save[0] = sigmoid(u[0] + r[0]);
    save[1] = sigmoid(u[1] + r[1]);
    save[2] = ModRelu::of(u[2] + save[0] * r[2], params[0]);
    save[3] = r[2];
    next[0] = (V(1) - save[1]) * save[2] + save[1] * old[0];
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V* old, const V*, const V*, V* grad, V* du, V* dr, V* dparams) {
    const V r = save[0], z = save[1], n = save[2];
    du[2] = ModRelu::backward_of(n, grad[0] * (V(1) - z), dparams[0]);
    dr[2] = du[2] * r;
    du[0] = dr[0] = du[2] * save[3] * r * (V(1) - r);
    du[1] = dr[1] = grad[0] * (old[0] - n) * z * (V(1) - z);
    grad[0] = grad[0] * z;
  }
};

}  // namespace rnnkern
