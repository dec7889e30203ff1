// h' = min(max(u + r, -1), 1); the gradient is 0 from the bounds outwards, as PyTorch has it
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct Hardtanh : ElmanFacts {
  static constexpr const char* name = "hardtanh";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V*, const V*, V* next, V*) {
    const V z = u[0] + r[0];
    next[0] = select(z < V(-1), V(-1), select(z > V(1), V(1), z));
  }

  template <class V>
  RNNKERN_CELL void backward(const V*, const V*, const V* next, const V*, V* grad, V* du, V* dr, V*) {
    const V h = next[0];
    du[0] = dr[0] = select(h <= V(-1), V(0), select(h >= V(1), V(0), grad[0]));
    grad[0] = V(0);
  }
};

}  // namespace rnnkern
