// h' = sign(z) max(|z| + b, 0), z = u + r  (Arjovsky et al. 2016, eq. 8, real). Subgradient 0 where h' = 0.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct ModRelu : CellFacts<1, 1, 1, 1, 0, true> {
  static constexpr const char* name = "modrelu";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V*, const V* params, V* next, V*) {
    const V z = u[0] + r[0];
    const V length = abs(z) + params[0];
    const V signed_length = select(z < V(0), V(0) - length, select(z > V(0), length, z));  // 0 and NaN stay
    next[0] = select(length <= V(0), V(0), signed_length);
  }

  // h' != 0 says that |z| + b > 0, and then h' has the sign of z.
  template <class V>
  RNNKERN_CELL void backward(const V*, const V*, const V* next, const V*, V* grad, V* du, V* dr, V* dparams) {
    const V h = next[0];
    const V dz = select(h == V(0), V(0), grad[0]);
    du[0] = dr[0] = dz;
    dparams[0] = dparams[0] + select(h < V(0), V(0) - dz, dz);
    grad[0] = V(0);
  }
};

}  // namespace rnnkern
