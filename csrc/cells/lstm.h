// Long short-term memory (Hochreiter & Schmidhuber 1997, with Gers' forget gate), gates i, f, g, o as PyTorch has them:
//   c' = s(f) c + s(i) tanh(g),  h' = s(o) tanh(c'),  each gate's argument u + r.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct Lstm : CellFacts<4, 4, 2, 0, 4, true> {
  static constexpr const char* name = "lstm";

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V*, V* next, V* save) {
    save[0] = sigmoid(u[0] + r[0]);
    save[1] = sigmoid(u[1] + r[1]);
    save[2] = tanh(u[2] + r[2]);
    save[3] = sigmoid(u[3] + r[3]);
    next[1] = next_c(save, old);
    next[0] = save[3] * tanh(next[1]);
  }

  template <class V>
  RNNKERN_CELL V next_c(const V* save, const V* old) {
    return save[1] * old[1] + save[0] * save[2];
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V* old, const V*, const V*, V* grad, V* du, V* dr, V*) {
    const V t = tanh(next_c(save, old));
    backward_of(save, old, t, grad[1] + grad[0] * save[3] * (V(1) - t * t), grad, du, dr);
  }

  // Where h' = s(o) t, and dc is the whole gradient of c'.
  template <class V>
  RNNKERN_CELL void backward_of(const V* save, const V* old, V t, V dc, V* grad, V* du, V* dr) {
    const V i = save[0], f = save[1], g = save[2], o = save[3];
    du[0] = dr[0] = dc * g * i * (V(1) - i);
    du[1] = dr[1] = dc * old[1] * f * (V(1) - f);
    du[2] = dr[2] = dc * i * (V(1) - g * g);
    du[3] = dr[3] = grad[0] * t * o * (V(1) - o);
    grad[0] = V(0);
    grad[1] = dc * f;
  }
};

}  // namespace rnnkern
