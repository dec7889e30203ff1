// h' = u + r
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct Identity : ElmanFacts {
  static constexpr const char* name = "identity";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V*, const V*, V* next, V*) {
    const V z = u[0] + r[0];
    next[0] = z;
  }

  template <class V>
  RNNKERN_CELL void backward(const V*, const V*, const V*, const V*, V* grad, V* du, V* dr, V*) {
    du[0] = dr[0] = grad[0];
    grad[0] = V(0);
  }
};

}  // namespace rnnkern
