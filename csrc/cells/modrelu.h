// h' = sign(z) max(|z| + b, 0), z = u + r  (Arjovsky et al. 2016, eq. 8, real). Subgradient 0 where h' = 0.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct ModRelu : CellFacts<1, 1, 1, 1, 0, true> {
  static constexpr const char* name = "modrelu";

  template <class V>
  RNNKERN_CELL V of(V z, V b) {
    const V length = abs(z) + b;
    const V signed_length = select(z < V(0), V(0) - length, select(z > V(0), length, z));  // 0 and NaN stay
    return select(length <= V(0), V(0), signed_length);
  }

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V*, const V* params, V* next, V*) {
    next[0] = of(u[0] + r[0], params[0]);
  }

  // dL/dz from the gradient of h = of(z, b), and what it adds to that of b. h != 0 says that |z| + b > 0, and then h
  // has the sign of z.
  template <class V>
  RNNKERN_CELL V backward_of(V h, V grad, V& db) {
    const V dz = select(h == V(0), V(0), grad);
    db = db + select(h < V(0), V(0) - dz, dz);
    return dz;
  }

  template <class V>
  RNNKERN_CELL void backward(const V*, const V*, const V* next, const V*, V* grad, V* du, V* dr, V* dparams) {
    du[0] = dr[0] = backward_of(next[0], grad[0], dparams[0]);
    grad[0] = V(0);
  }
};

}  // namespace rnnkern
