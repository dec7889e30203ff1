// h' = max(u + r, 0); NaN stays NaN
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct Relu : ElmanFacts {
  static constexpr const char* name = "relu";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V*, const V*, V* next, V*) {
    const V z = u[0] + r[0];
    next[0] = select(z < V(0), V(0), z);
  }

  template <class V>
  RNNKERN_CELL void backward(const V*, const V*, const V* next, const V*, V* grad, V* du, V* dr, V*) {
    const V h = next[0];
    du[0] = dr[0] = select(h <= V(0), V(0), grad[0]);
    grad[0] = V(0);
  }
};

}  // namespace rnnkern
