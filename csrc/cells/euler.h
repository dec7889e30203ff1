// h' = h + dt tanh(u + r): one forward-Euler step of dh/dt = tanh(u + R h), dt per unit.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct Euler : CellFacts<1, 1, 1, 1, 1, true> {
  static constexpr const char* name = "euler";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V* params, V* next, V* save) {
    save[0] = tanh(u[0] + r[0]);
    next[0] = old[0] + params[0] * save[0];
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V*, const V*, const V* params, V* grad, V* du, V* dr, V* dparams) {
    du[0] = dr[0] = grad[0] * params[0] * (V(1) - save[0] * save[0]);
    dparams[0] = dparams[0] + grad[0] * save[0];
  }
};

}  // namespace rnnkern
