// modReLU of complex numbers (Arjovsky et al. 2016, eq. 8), by parts: a unit is the real or the imaginary part of one
// number z; its gates are that part, a, and the other, p:
//   h' = a / |z| max(|z| + b, 0),  |z|^2 = a^2 + p^2.  Subgradient 0 where |z| = 0 or |z| + b <= 0.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct ComplexModRelu : CellFacts<2, 2, 1, 1, 3, true> {
  static constexpr const char* name = "complex_modrelu";

  template <class V>
  RNNKERN_CELL V where_alive(V length, V kept, V x) {
    return select(length <= V(0), V(0), select(kept <= V(0), V(0), x));
  }

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V*, const V* params, V* next, V* save) {
    const V a = u[0] + r[0], p = u[1] + r[1], x = abs(a), y = abs(p);
    const V large = select(x > y, x, y), small = select(x > y, y, x);
    const V ratio = small / select(large > V(0), large, V(1));  // so that no square overflows, or vanishes
    const V length = large * sqrt(V(1) + ratio * ratio), kept = length + params[0], part = a / length;
    save[0] = where_alive(length, kept, kept / length);
    save[1] = where_alive(length, kept, part);
    save[2] = where_alive(length, kept, p / length);
    next[0] = where_alive(length, kept, kept * part);
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V*, const V*, const V*, V* grad, V* du, V* dr, V* dparams) {
    const V scale = save[0], part = save[1], other = save[2];
    du[0] = dr[0] = grad[0] * (scale + (V(1) - scale) * part * part);
    du[1] = dr[1] = grad[0] * (V(1) - scale) * part * other;
    dparams[0] = dparams[0] + grad[0] * part;
    grad[0] = V(0);
  }
};

}  // namespace rnnkern
